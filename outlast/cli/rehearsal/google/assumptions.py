"""The assumptions about Google that no document settles; docs/assumptions.md shows them.

`probes.py` asks each of them.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Assumption:
    """Something that Outlast takes for true."""

    name: str
    says: str
    where: str
    """The code that relies on it."""
    how: str
    """How the probe asks."""


class Outcome(StrEnum):
    """What a probe found."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNASKED = "could not be asked"


@dataclass(frozen=True)
class Answer:
    """One assumption's outcome, and what was seen."""

    assumption: Assumption
    outcome: Outcome
    seen: str

    def as_json(self) -> dict[str, str]:
        return {
            "name": self.assumption.name,
            "says": self.assumption.says,
            "outcome": self.outcome,
            "seen": self.seen,
        }


ASSUMPTIONS = {
    one.name: one
    for one in (
        Assumption(
            "image-fits",
            "Google's Debian image exists and fits a boot disk of 10 GB",
            "`outlast/cloud/fit.py`",
            "reads the image",
        ),
        Assumption(
            "operation-paths",
            "an operation's address has the project's id in it, not its number",
            "`outlast/cloud/compute.py`",
            "reads an operation",
        ),
        Assumption(
            "soft-delete-off",
            "a bucket that asks for no soft delete has none; an organisation policy could force it",
            "`components/checkpoint_bucket.py`",
            "reads the bucket",
        ),
        Assumption(
            "regional-group",
            "the settings of a regional group work together",
            "`components/healing_group.py`",
            "creates such a group of size 0",
        ),
        Assumption(
            "e2-must-migrate",
            "a standard E2 VM that would stop for maintenance is refused",
            "`outlast/machines/families.py`",
            "asks for one",
        ),
        Assumption(
            "spot-notice",
            "a Spot VM may have a notice of 120 s and a run limit",
            "`components/vm_template.py`",
            "creates an e2-micro",
        ),
        Assumption(
            "first-boot",
            "the image has a fitting Python, makes virtual environments without apt, and runs the"
            " startup script",
            "`startup/boot.sh`",
            "that VM tries",
        ),
        Assumption(
            "preempted-flag",
            "the metadata server shows whether a Spot VM is preempted",
            "`outlast/supervisor`",
            "that VM reads it",
        ),
        Assumption(
            "guest-attributes",
            "what a VM writes can be read outside; a policy could forbid it",
            "`outlast/cloud/bake.py`",
            "that VM writes them",
        ),
        Assumption(
            "absent-object",
            "an absent object below the VM's own prefix answers 404; public reports contradict each"
            " other",
            "`outlast/bucket/head.py`, `startup/lib.sh`",
            "that VM asks for one",
        ),
        Assumption(
            "own-prefix",
            "the VM's role lets it list and read its own prefix, and nothing else",
            "`components/vm_identity.py`",
            "that VM tries",
        ),
        Assumption(
            "old-template",
            "a template that its group no longer names can be deleted while a VM of it runs",
            "`components/vm_template.py`",
            "a group of one VM gets another template",
        ),
        Assumption(
            "run-limit",
            "at its `terminationTime` a group's VM is deleted, and no other is created",
            "`components/vm_template.py`",
            "waits for that group's limit",
        ),
        Assumption(
            "simulated-preemption",
            "`simulateMaintenanceEvent` preempts a Spot VM, and its attempt ends as preempted",
            "this rehearsal",
            "the run",
        ),
        Assumption(
            "deleted-vm",
            "a group recreates a deleted VM under the same name",
            "`components/healing_group.py`",
            "the run",
        ),
        Assumption(
            "leaving",
            "two permissions of a custom role are enough to leave a group",
            "`outlast/spec/permissions.py`",
            "the run",
        ),
    )
}
"""By name, in the order in which they are asked."""
OF_THE_RUN = ("simulated-preemption", "deleted-vm", "leaving")
"""Those that only a whole rehearsal answers."""
