"""The bench of old runs measures what it says, on a small scale."""

import json
from pathlib import Path

import pytest

from bench import ageing


def test_each_figure_is_measured_and_the_targets_that_do_not_depend_on_time_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ageing, "PIECES", 20)
    monkeypatch.setattr(ageing, "ATTEMPTS", 150)
    monkeypatch.setattr(ageing, "EVALUATIONS", (10, 20))
    ageing.main(["--commits", "250", "--json", str(tmp_path / "figures.json")])
    found = json.loads((tmp_path / "figures.json").read_text())
    rows = {row["what"]: row for row in found["parts"][0]["rows"]}
    operations = [row for what, row in rows.items() if what.startswith("commit") and "oper" in what]
    assert len(operations) == 2 and all(row["ratio"] <= 1.2 for row in operations)
    kib = [row["old"] for what, row in rows.items() if what.startswith("HEAD")]
    assert len(kib) == 2 and all(0.5 < size < 16 for size in kib)
    status = rows["status of 10 and 150 attempts: operations"]
    assert status["old"] < 3 * 150
    assert rows["standing still for 20 evaluations: ms"]["old"] > 0
