"""The report of a rehearsal on Google, to attach to an issue: it names no project and no bill."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from outlast.cli import version
from outlast.cli.rehearsal.google import names
from outlast.cli.rehearsal.google.assumptions import Answer, Outcome
from outlast.cli.rehearsal.google.budget import Budget
from outlast.cli.rehearsal.report import Report

HIDDEN = "PROJECT"
"""Stands for the project's id."""


@dataclass
class GoogleReport:
    """What a rehearsal on Google found; `as_json` is what `--json` prints."""

    project: str
    zone: str
    image: str
    budget: Budget
    run: Report | None = None
    """None: only the probes were asked."""
    answers: Sequence[Answer] = ()
    cleaned: bool = False
    """Whether the audit at the end found nothing."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def count(self, outcome: Outcome) -> int:
        """How many assumptions have it."""
        return sum(answer.outcome is outcome for answer in self.answers)

    def as_json(self) -> dict[str, Any]:
        """Without the project's id."""
        document = {
            "on": "google",
            "outlast": version.text(),
            "began": self.began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "zone": self.zone,
            "image": self.image,
            "machine_type": names.MACHINE_TYPE,
            "worst_cost": {
                "dollars": round(self.budget.worst, 4),
                "parts": {part.what: round(part.dollars, 6) for part in self.budget.parts},
            },
            "assumptions": [answer.as_json() for answer in self.answers],
            "left": [] if self.cleaned else ["unknown"],
            **({"run": self.run.as_json()} if self.run else {}),
        }
        return _hide(document, self.project)


def _hide(value: Any, project: str) -> Any:
    """The document with the project's id replaced in every text."""
    if isinstance(value, str):
        return value.replace(project, HIDDEN)
    if isinstance(value, dict):
        return {_hide(key, project): _hide(one, project) for key, one in value.items()}
    if isinstance(value, list):
        return [_hide(one, project) for one in value]
    return value
