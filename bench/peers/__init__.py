"""The peers' jobs under the kill matrix; their scripts beside this file are run, not imported."""

import csv
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.points import Phases, Point, Verdict
from bench.sites import Baseline, BenchError, make_plan, run_to_end
from outlast.base.exits import DONE

JOBS = {
    "lightning": ("lightning_job.py", "step"),
    "orbax": ("orbax_job.py", "step"),
    "torch dcp": ("dcp.py", "step"),
    "keras": ("keras_job.py", "epoch"),
    "hf trainer": ("hf_job.py", "step"),
    "xgboost": ("xgboost_job.py", "step"),
}
"""Script, and what its rows are counted by."""


def kinds(where: str) -> Sequence[tuple[str, str]]:
    """(kind, target) of a job that is one process."""
    return (("SIGKILL", "trainer"), ("SIGTERM", "trainer"))


class PeerSite:
    """Runs of one peer's job in folders."""

    where = "folder"

    def __init__(self, name: str, python: str, work: Path) -> None:
        self._script, self._unit = JOBS[name]
        self._name = name
        self._python = python
        self._work = work

    def baseline(self) -> Baseline:
        folder = self._work / "baseline"
        plan = make_plan(folder / "plan", None)
        begun = time.monotonic()
        if (code := self._run(folder, plan)) != DONE:
            raise BenchError(f"{self._name}: ended with {code}; see {folder / 'log'}")
        rows = [{"step": step} for step in self._rows(folder)]
        seconds = time.monotonic() - begun
        return Baseline(self._digest(folder) or "", rows, Phases.read(plan), seconds)

    def inject(self, point: Point, baseline: Baseline) -> Verdict:
        folder = self._work / f"{point.number:04d}"
        plan = make_plan(folder / "plan", point)
        first = self._run(folder, plan)
        saved = (plan / "marks.jsonl").exists() and '"snapshot"' in (
            plan / "marks.jsonl"
        ).read_text()
        fired = plan / "fired.json"
        code = DONE if first == DONE else self._run(folder, None)
        rows, wanted = self._rows(folder), {row["step"] for row in baseline.rows}
        starts = _json_lines(folder / "job" / "starts.jsonl")
        lost = None
        if fired.exists() and starts:
            lost = max(0, json.loads(fired.read_bytes())["steps"] - starts[-1]["step"])
        went_on = bool(starts) and (starts[-1]["step"] > 0 or not saved or first == DONE)
        verdict = Verdict(
            point=point,
            hit=fired.exists(),
            resumed=code == DONE and went_on,
            equal=self._digest(folder) == baseline.digest,
            lost=lost,
            duplicate=len(rows) - len(set(rows)),
            missing=len(wanted - set(rows)),
            why="" if code == DONE else f"the second process ended with {code}",
        )
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        return verdict

    def _run(self, folder: Path, plan: Path | None) -> int:
        script = Path(__file__).parent / self._script
        command = [self._python, str(script), "--dir", str(folder / "job")]
        return run_to_end(command, folder, {}, plan)

    def _digest(self, folder: Path) -> str | None:
        final = folder / "job" / "final.json"
        return json.loads(final.read_bytes())["digest"] if final.exists() else None

    def _rows(self, folder: Path) -> list[int]:
        """The steps or epochs of all rows that the job's logger left, in whatever files."""
        found = [row["step"] for row in _json_lines(folder / "job" / "rows.jsonl")]
        for path in sorted((folder / "job").rglob("*.csv")):
            with path.open(newline="") as file:
                found += [
                    int(float(row[self._unit]))
                    for row in csv.DictReader(file)
                    # Lightning's rows of an evaluation have no loss and are not counted.
                    if row.get(self._unit) and row.get("loss", "0") != ""
                ]
        return found


def _json_lines(path: Path) -> list[dict[str, int]]:
    """The whole lines of a file; a line that a kill cut short is none."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
