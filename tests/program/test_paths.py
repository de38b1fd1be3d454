"""The paths of docs/design.md, "Two paths through the code": each row is a call that a traced run
of the program and of two VMs really makes."""

import io
import json
import re
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest

from outlast import settings
from outlast.components.experiment import Experiment
from outlast.settings import lookups
from outlast.spec import bundle as bundles
from tests import tracing
from tests.components import inventory
from tests.program import stack
from tests.supervisor.fake_cloud import fake_cloud
from tests.supervisor.test_main import Machines, wait_until

ROOT = Path(__file__).parents[2]
RATE = "0.0123"
LONGEST = 11
ROW = re.compile(r"\|([a-z]+)\|`([\w.]+)`→`([\w.]+)`\|")

Calls = dict[str, bool]
"""A call, and whether the callee was given the learning rate."""


def paths(text: str) -> dict[str, list[str]]:
    """The rows of each path, by the name in front of its table."""
    section = text.partition("## Two paths through the code")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    name = ""
    for line in section.splitlines():
        if match := re.match(r"\|\*\*(.+)\*\*\|", line):
            name = match[1]
        elif match := ROW.fullmatch(line):
            found.setdefault(name, []).append(f"{match[2]}→{match[3]}")
    return found


PATHS = paths((ROOT / "docs" / "design.md").read_text())


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """All calls of a stack's program, and of two VMs that train one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        found = program_calls(patch)
        folder = tmp_path_factory.mktemp("vms")
        with fake_cloud(patch) as cloud:
            machines = Machines(cloud, folder, traced_bundle(folder / "bundle"))
            try:
                train(machines)
            finally:
                machines.close()
        for file in machines.bundle.glob("calls-*.txt"):
            for line in file.read_text().splitlines():
                call, _, has = line.partition(" ")
                found[call] = found.get(call, False) or has == "1"
        yield found


def program_calls(patch: pytest.MonkeyPatch) -> Calls:
    """The calls of a program with one Experiment."""
    found: Calls = {}

    def note(call: str, has: bool) -> None:
        found[call] = found.get(call, False) or has

    for key, value in stack.LOCAL_CLOUD.items():
        patch.setenv(key, value)
    patch.setattr(lookups, "find_bucket", lambda config: settings.FoundBucket("here"))
    args = json.dumps({"learning-rate": float(RATE)})
    own = {"outlast:trainer": "digits", "outlast:args": args}
    cloud = {"gcp:project": "own", "gcp:region": "europe-west4", "gcp:zone": "europe-west4-a"}
    pulumi.runtime.set_all_config({**stack.defaults(), **cloud, **own})
    traced(f"{ROOT}/", note, lambda: inventory.record(lambda: Experiment.from_config("x") and None))
    return found


def traced(root: str, note: Callable[[str, bool], None], run: Callable[[], object]) -> None:
    sys.setprofile(tracing.tracer(root, RATE, note))
    try:
        run()
    finally:
        sys.setprofile(None)


def traced_bundle(folder: Path) -> Path:
    """A bundle of this checkout, unpacked, whose processes note their calls."""
    zipfile.ZipFile(io.BytesIO(bundles.pack(ROOT, {}))).extractall(folder)
    (folder / "sitecustomize.py").write_bytes(Path(tracing.__file__).read_bytes())
    (folder / "traced.txt").write_text(f"{RATE}\n")
    return folder


def train(machines: Machines) -> None:
    """Train until a commit, stop, and resume on another VM."""
    spec: dict[str, Any] = {
        "outlast-trainer": "digits",
        "outlast-arg-learning-rate": RATE,
        "outlast-arg-epochs": "100000",
        "outlast-arg-limit-rows": "128",
        "outlast-checkpoint-every": "20",
    }
    for term in (1, 2):
        before = machines.committed()[-1:]
        process = machines.boot(**spec)
        wait_until(lambda seen=before: machines.committed()[-1:] > seen, f"a commit of term {term}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75, machines.serial(term - 1)
    assert "resumes at step" in machines.serial(1)


def test_there_are_three_short_paths():
    assert list(PATHS) == ["learning-rate", "to the bucket", "and back"]
    assert all(0 < len(rows) <= LONGEST for rows in PATHS.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "row"), [(name, row) for name in PATHS for row in PATHS[name]])
def test_each_row_is_a_call(calls: Calls, name: str, row: str):
    assert row in calls, f"{row}: was never called"
    assert calls[row] or name != "learning-rate", f"{row}: without the learning rate"


@pytest.mark.timeout(300)
def test_a_path_that_differs_from_the_code_is_found(calls: Calls):
    """Calls that exist, but lead elsewhere."""
    assert "loop.saving.Saver.save_due→bucket.upload.Uploader.send" not in calls
    assert "bucket.upload.Uploader.send→bucket.store.contract.put_new" not in calls
    assert not calls["supervisor.jobs.Jobs.commit→bucket.commit.Committer.commit"]
