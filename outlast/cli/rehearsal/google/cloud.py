"""Google as a rehearsal sees it: its public API, and a scenario played through it.

Google shows how far a VM is only in the bucket, so an event happens when its moment is seen there,
a few seconds late. Its API has two faults: `simulateMaintenanceEvent`, which preempts a Spot VM,
and the deletion of a VM.
"""

import time
from collections.abc import Mapping
from typing import Any

from outlast.base.retry import BRIEF
from outlast.bucket.history import Attempt, History
from outlast.cli.errors import UsageError
from outlast.cli.rehearsal.google import budget, names
from outlast.cli.rehearsal.google.leftovers import Found, Leftovers
from outlast.cli.rehearsal.google.preflight import asking
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cloud.compute import Compute, ComputeError, Json, Missing
from outlast.cloud.project import Project, managed_bucket

PLAYED_AS = {"preempt": "preempt", "maintenance": "preempt", "delete": "delete", "kill": "delete"}
"""What each action of a scenario is on Google. A VM that is deleted is asked to stop, while one
that is killed is not: Google has no call for that."""
AT_STEP = ("", "step", "snapshot", "upload", "commit", "committed")
"""Phases of a moment, all of which are seen as a step."""
SEEN = frozenset({"phase", "attempt", "share", "commits", "part", "after_sec", "nth"})
"""Keys of a moment that the bucket shows."""


def check(played: Scenario) -> None:
    """Raises UsageError if the scenario asks for something that Google's API cannot do."""

    def refuse(where: str, why: str) -> None:
        raise UsageError(
            f"scenario {played.name}: {where}: {why} on Google; rehearse it on the local cloud,"
            " without --on."
        )

    if played.stack:
        refuse(f"stack.{next(iter(played.stack))}", "settings are fixed")
    for key, value in (played.document.get("world") or {}).items():
        if value:
            refuse(f"world.{key}", "cannot be arranged")
    for place, event in enumerate(played.document.get("events") or ()):
        action, when = _action(event), _when(event)
        if action not in PLAYED_AS:
            known = ", ".join(PLAYED_AS)
            refuse(f"events[{place}].do.{action}", f"is not one of {known}, which exist")
        if options := _options(event):
            refuse(f"events[{place}].do.{action}.{options[0]}", "cannot be set")
        if when.get("phase", "") not in AT_STEP:
            refuse(f"events[{place}].when.phase {when['phase']}", "cannot be seen")
        for key in when:
            if key not in SEEN:
                refuse(f"events[{place}].when.{key}", "cannot be seen")
        if when.get("nth", 1) != 1 or event.get("times", 1) != 1:
            refuse(f"events[{place}]", "can happen once")


class GoogleCloud:
    """What a rehearsal asks of the cloud that it plays on."""

    poll_sec = budget.POLL_SEC

    def __init__(self, compute: Compute, project: Project, leftovers: Leftovers) -> None:
        self._compute = compute
        self._project = project
        self._leftovers = leftovers
        self._events: list[tuple[int, Mapping[str, Any]]] = []
        self._due: dict[int, float] = {}
        """When each event that was seen to be due happens, by `time.monotonic`."""
        self._log: list[dict[str, Any]] = []
        self._commits: set[tuple[int, int]] = set()
        """Term and step of every checkpoint seen."""

    def play(self, scenario: Mapping[str, Any], *, target: str) -> None:
        """Starts the scenario; only the run that is given to `watch` is its target."""
        self._events = list(enumerate(scenario.get("events") or ()))

    def watch(self, history: History | None) -> None:
        """Plays the events that are due. Raises RehearsalError if the credentials are refused."""
        if history is None or history.head.state.ended or not history.attempts:
            return
        self._commits |= {(one.term, one.step) for one in history.head.chain}
        attempt = history.attempts[-1]
        if attempt.end is not None:
            return
        for index, event in list(self._events):
            if index not in self._due and self._is_due(_when(event), attempt, history):
                wait_sec = float(_when(event).get("after_sec") or 0)
                self._due[index] = time.monotonic() + wait_sec
            if time.monotonic() >= self._due.get(index, float("inf")):
                self._events.remove((index, event))
                self._carry_out(index, _action(event), attempt)
                return  # The next attempt is another VM.

    def _is_due(self, when: Mapping[str, Any], attempt: Attempt, history: History) -> bool:
        if when.get("attempt") not in (None, attempt.term):
            return False
        if when.get("part") not in (None, history.part):
            return False
        commits = sum(term == attempt.term for term, _ in self._commits)
        if commits < int(when.get("commits") or 0):
            return False
        share = when.get("share")
        if share is None:
            return True
        total = (history.total or 0) - history.before
        return total > 0 and attempt.step - history.before >= share * total

    def _carry_out(self, index: int, action: str, attempt: Attempt) -> None:
        """Carries out an event on the VM of an attempt, and notes it."""
        do = PLAYED_AS[action]
        entry: dict[str, Any] = {
            "do": do,
            "event": index,
            "vm": attempt.instance,
            "attempt": attempt.term,
            "boot": None,
            "step": attempt.step,
        }
        if do != action:
            entry["planned"] = action
        self._log.append(entry)
        path = f"zones/{attempt.zone}/instances/{attempt.instance}"
        try:
            if do == "preempt":
                self._compute.call("POST", f"{path}/simulateMaintenanceEvent", timeout_sec=60)
            else:
                self._compute.call("DELETE", path, timeout_sec=60)
        except ComputeError as error:
            if error.status == 401:
                with asking(self._compute.project):
                    raise
            entry["missed"] = str(error)

    def played(self) -> dict[str, Any]:
        """`log` is what has happened, `waiting` is what is still to come."""
        waiting = [
            {"event": index, "left": 1, "when": _when(event), "do": _action(event)}
            for index, event in self._events
        ]
        return {"log": self._log, "waiting": waiting}

    def notes(self) -> list[str]:
        """None: Google writes no notes."""
        return []

    def faults(self) -> list[dict[str, Any]]:
        """None: Google's API serves every request."""
        return []

    def group_size(self, group: str, place: str) -> int | None:
        """The target size of a group in a zone or region; None if there is no such group. Raises
        RehearsalError.
        """
        with asking(self._compute.project):
            found = BRIEF(lambda: self._compute.find(_group(group, place)))
            return None if found is None else int(found["targetSize"])

    def group_errors(self, group: str, place: str) -> list[str]:
        """Codes of what kept the group from creating VMs. Raises RehearsalError."""
        with asking(self._compute.project):
            try:
                path = f"{_group(group, place)}/listErrors"
                listed = BRIEF(lambda: list(self._compute.listed(path)))
                return [str(item["error"]["code"]) for item in listed]
            except Missing:
                return []

    def vms(self) -> list[dict[str, Any]]:
        """The VMs of both runs. Raises RehearsalError."""
        with asking(self._compute.project):
            listed = BRIEF(lambda: list(self._compute.aggregated("instances")))
        return [{"name": one["name"], "group": None} for one in listed if _is_of_run(one)]

    def has_bucket(self, bucket: str) -> bool:
        """Whether the rehearsal's bucket exists. Raises RehearsalError."""
        with asking(self._compute.project):
            return BRIEF(self._leftovers.bucket) is not None

    def make_bucket(self, name: str, region: str) -> None:
        """Creates the rehearsal's bucket, which the stacks adopt. Raises RehearsalError."""
        with asking(self._compute.project):
            labels = {names.LABEL: names.VALUE}
            self._project.create_bucket(managed_bucket(name, region, labels))

    def audit(self) -> dict[str, Any]:
        """What exists of both runs, without the probes' own, by kind. Raises RehearsalError."""
        with asking(self._compute.project):
            found: Found = BRIEF(self._leftovers.find)
        kept = {
            kind: [one for one in there if names.PROBE not in one] for kind, there in found.items()
        }
        return {**kept, "buckets": [{"name": one} for one in found["buckets"]]}


def _is_of_run(vm: Json) -> bool:
    labels = vm.get("labels") or {}
    return labels.get(names.LABEL) == names.VALUE and not vm["name"].startswith(names.PROBE)


def _group(group: str, place: str) -> str:
    """The path of a group in a zone or region."""
    scope = "zones" if place.rpartition("-")[2].isalpha() else "regions"
    return f"{scope}/{place}/instanceGroupManagers/{group}"


def _when(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event's moment, without what is not set."""
    return {key: value for key, value in event["when"].items() if value not in (None, "", 0)}


def _action(event: Mapping[str, Any]) -> str:
    do = event["do"]
    return str(do) if isinstance(do, str) else str(next(iter(do)))


def _options(event: Mapping[str, Any]) -> list[str]:
    """The options of an event's action that are set."""
    do = event["do"]
    given = None if isinstance(do, str) else next(iter(do.values()))
    return [key for key, value in (given or {}).items() if value is not None]
