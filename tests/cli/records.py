"""Records of attempts as supervisors write them, for tests that read a bucket."""

from datetime import datetime
from typing import Any

from outlast.bucket.layout import AttemptStart, Heartbeat
from outlast.spec.metrics import Last


def start_record(
    term: int, step: int, time: datetime, *, restored: str | None = None, resume: int = 0
) -> AttemptStart:
    return AttemptStart(
        term=term,
        resume=resume,
        placement=0,
        instance="vm",
        instance_id=str(term),
        boot_id=f"b{term}",
        zone="europe-west4-a",
        machine_type="n2-standard-2",
        image="i",
        trainer="digits",
        spec={},
        versions={},
        step=step,
        restored=restored,
        time=time,
    )


def heartbeat_record(
    term: int, step: int, time: datetime, *, total: int, row: dict[str, Any]
) -> Heartbeat:
    return Heartbeat(
        term=term,
        step=step,
        total=total,
        phase="train",
        rate=1.0,
        committed=None,
        seconds_to_commit=None,
        rows=(row,),
        time=time,
        metrics={name: Last(row["step"], value) for name, value in row.items() if name != "step"},
    )
