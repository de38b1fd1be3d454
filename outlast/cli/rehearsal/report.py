"""The report of a rehearsal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.bucket.history import Attempt
from outlast.cli.rehearsal.guarantees import Guarantee, Verdict
from outlast.cli.rehearsal.seen import Fault
from outlast.spec.metrics import Last


@dataclass
class Report:
    """A rehearsal's outcome; `as_json` is what `--json` prints."""

    scenario: str
    experiment: str
    run: str
    ending: str = ""
    """The final state of the run, with its reason."""
    seconds: float = 0.0
    metrics: Mapping[str, Last] = field(default_factory=dict)
    """The last value of each metric of the result."""
    digest: str | None = None
    goodput: float | None = None
    goodput_baseline: float | None = None
    attempts: tuple[Attempt, ...] = ()
    baseline_attempts: tuple[Attempt, ...] = ()
    """The baseline's."""
    faults: tuple[Fault, ...] = ()
    parts: Sequence[Mapping[str, Any]] = ()
    """The progress of each part of the run; empty without parts."""
    guarantees: list[Guarantee] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether every guarantee held."""
        return bool(self.guarantees) and all(g.held for g in self.guarantees)

    def count(self, verdict: Verdict) -> int:
        """How many guarantees have it."""
        return sum(guarantee.verdict is verdict for guarantee in self.guarantees)

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "experiment": self.experiment,
            "run": self.run,
            "end": self.ending,
            "held": self.held,
            "seconds": round(self.seconds, 1),
            "metrics": {name: last.value for name, last in self.metrics.items()},
            "result": self.digest,
            "goodput": self.goodput,
            "goodput_baseline": self.goodput_baseline,
            "faults": [_fault(fault) for fault in self.faults],
            **({"parts": list(self.parts)} if self.parts else {}),
            "attempts": [attempt.as_json() for attempt in self.attempts],
            "attempts_baseline": [attempt.as_json() for attempt in self.baseline_attempts],
            "guarantees": [
                {
                    "name": g.name,
                    "promise": g.promise,
                    "verdict": g.verdict.lower(),
                    "held": g.held,
                    "detail": g.detail,
                }
                for g in self.guarantees
            ],
        }


def _fault(fault: Fault) -> dict[str, Any]:
    found = {"do": fault.do, "boot": fault.boot, "attempt": fault.attempt}
    # What the scenario asks for, where the cloud has something similar only.
    planned = fault.options.get("planned")
    return {**found, **({"planned": planned} if planned else {})}
