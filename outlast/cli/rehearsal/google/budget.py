"""The most that a rehearsal on Google can cost, before anything of it exists.

A VM counts with its on-demand price until its run limit, whatever happens: a Spot VM costs less,
and the platform deletes each VM at its limit, also when nothing of Outlast runs any more.
"""

from dataclasses import dataclass
from typing import Any

from outlast.cli.errors import UsageError
from outlast.cli.rehearsal.google import names
from outlast.costs import pricing

PROBE_TYPE = "e2-micro"
"""The machine type of the probes' VMs, which install nothing."""
PROBE_MINUTES = 10
"""The run limit of a probe's VM, which is far below a cent."""
PROBE_VMS = 3
"""One that answers, one of a group, and one that the platform has to refuse."""
LEAST_MINUTES = 1
"""Added for each VM that a fault recreates: a VM bills for a least time, however short it lives
(docs/assumptions.md)."""

POLL_SEC = 5.0
"""Seconds between two looks at the bucket and the groups."""
LISTS_A_LOOK, READS_A_LOOK = 3, 12
"""Requests for one look at one run."""
WRITES_A_SEC = 1.0
"""Above what a supervisor writes: a heartbeat in 10 seconds, a few objects in a checkpoint."""


@dataclass(frozen=True)
class Part:
    """One item of the sum."""

    what: str
    dollars: float


@dataclass(frozen=True)
class Budget:
    """The worst cost and what it is made of."""

    parts: tuple[Part, ...]

    @property
    def worst(self) -> float:
        """Dollars."""
        return sum(part.dollars for part in self.parts)

    def said(self) -> str:
        """The sum with its parts."""
        parts = ", ".join(f"{part.what} {pricing.dollars(part.dollars)}" for part in self.parts)
        return f"costs at most {pricing.dollars(self.worst)}: {parts}"

    def check(self, most: float) -> None:
        """Raises UsageError if it is above `most` dollars."""
        if self.worst > most:
            raise UsageError(
                f"--max-cost {most:g}: the rehearsal {self.said()}; allow that with --max-cost"
                f" {_rounded_up(self.worst)}, or name a cheaper --zone."
            )


def of(zone: str, faults: int, *, probes_only: bool = False) -> Budget:
    """The worst cost in a zone, for a scenario with that many faults. Raises UsageError if a price
    is unknown.
    """
    parts = [
        _vms(f"{PROBE_VMS} probes", zone, PROBE_TYPE, PROBE_VMS * PROBE_MINUTES),
    ]
    seconds = names.RUN_MINUTES * 60
    if not probes_only:
        parts = [
            _vms("run", zone, names.MACHINE_TYPE, names.RUN_MINUTES + faults * LEAST_MINUTES),
            _vms("baseline", zone, names.MACHINE_TYPE, names.RUN_MINUTES),
            *parts,
            Part(
                "requests to the bucket",
                2
                * pricing.requests(
                    seconds * (WRITES_A_SEC + LISTS_A_LOOK / POLL_SEC),
                    seconds * (1 + READS_A_LOOK / POLL_SEC),
                ),
            ),
        ]
    return Budget(tuple(parts))


def _vms(what: str, zone: str, machine_type: str, minutes: int) -> Part:
    template: dict[str, Any] = {
        "machineType": machine_type,
        "scheduling": {"provisioningModel": "STANDARD"},
        "disks": [{"diskType": names.DISK_TYPE, "diskSizeGb": names.DISK_GB}],
        "networkInterfaces": [{"accessConfigs": [{}]}],
    }
    found = pricing.vm(template, zone)
    if found.unknown:
        raise UsageError(
            f"--zone {zone}: the price of {' and '.join(found.unknown)} is not in Outlast's list of"
            f" {pricing.date()}, so the worst cost is unknown; name a zone of a listed region, such"
            " as us-central1-a."
        )
    return Part(f"{what} ({minutes} min of {machine_type})", found.hour * minutes / 60)


def _rounded_up(dollars: float) -> str:
    cents = int(dollars * 100) + 1
    return f"{cents / 100:.2f}"
