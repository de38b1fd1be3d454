"""The benches on VMs of a local cloud."""

import json
from pathlib import Path

import pytest

from bench import kill_matrix, zombie_matrix
from outlast.base.exits import DONE

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(300)]


def test_a_vm_that_is_cut_is_found_whole_again(tmp_path: Path) -> None:
    flags = ("--flags=--epochs=4 --step-ms=2", "--checkpoint-every=20")
    where = ("--where", "cloud", "--points", "2", "--seed", "5")
    out = ("--json", str(tmp_path / "out.json"))
    assert kill_matrix.main(["--trainer", "dummy", *where, *flags, *out]) == DONE
    found = json.loads((tmp_path / "out.json").read_bytes())["verdicts"]["dummy"]
    assert all(one["hit"] and one["resumed"] and one["equal"] for one in found)


def test_nothing_is_taken_from_a_woken_zombie(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--moment", "commit: manifest", "--json", str(out)]
    assert zombie_matrix.main(arguments) == DONE
    lines = json.loads(out.read_bytes())["lines"]
    assert [line["accepted"] for line in lines] == [0, 0]
    assert all(line["writes sent"] for line in lines)
