"""Operations: the answers of calls that change something; they may be made slow or fail."""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.localcloud.base.clock import Clock, to_rfc3339
from outlast.localcloud.compute.fleet.model import Fault

Json = dict[str, Any]

KEPT_OPERATIONS = 1000
# The HTTP status that matches an operation's error; any other error is a bad request.
HTTP_OF_ERROR = {
    "QUOTA_EXCEEDED": (403, "FORBIDDEN"),
    "RESOURCE_NOT_FOUND": (404, "NOT FOUND"),
    "INTERNAL_ERROR": (500, "INTERNAL SERVER ERROR"),
    "ZONE_RESOURCE_POOL_EXHAUSTED": (503, "SERVICE UNAVAILABLE"),
}


@dataclass
class Trouble:
    """A planned fault of operations: they take longer than their work, or fail without a change."""

    match: re.Pattern[str]
    delay_sec: float
    error: Fault | None
    times: int | None
    applies: Callable[[str], bool]


@dataclass
class _Operation:
    answer: Json
    done: Callable[[], bool]
    not_before: float = 0.0


class Operations:
    """The latest operations of a project, by name."""

    def __init__(
        self, clock: Clock, link: Callable[[str], str], next_number: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._link = link
        self._next_number = next_number
        self._operations: OrderedDict[str, _Operation] = OrderedDict()
        self._troubles: list[Trouble] = []

    def record(
        self,
        kind: str,
        path: str,
        target_id: str,
        done: Callable[[], bool] = lambda: True,
        error: Fault | None = None,
    ) -> Json:
        """Records the operation of a call, finished unless `done` says otherwise; returns its
        JSON."""
        now = self._clock.now()
        name = f"operation-{int(now * 1000)}-{secrets.token_hex(8)}"
        scope = "global" if path.startswith("global/") else "/".join(path.split("/")[:2])
        answer: Json = {
            "kind": "compute#operation",
            "id": str(self._next_number()),
            "name": name,
            "operationType": kind,
            "targetLink": self._link(path),
            "targetId": target_id,
            "user": "owner@local.cloud",
            "insertTime": to_rfc3339(now),
            "startTime": to_rfc3339(now),
            "selfLink": self._link(f"{scope}/operations/{name}"),
        }
        if scope != "global":
            answer[scope.split("/")[0][:-1]] = self._link(scope)
        if error:
            status, message = HTTP_OF_ERROR.get(error.code, (400, "BAD REQUEST"))
            answer["error"] = {"errors": [{"code": error.code, "message": error.message}]}
            answer["httpErrorStatusCode"] = status
            answer["httpErrorMessage"] = message
        self._operations[name] = _Operation(answer, done)
        while len(self._operations) > KEPT_OPERATIONS:
            self._operations.popitem(last=False)
        return self.shown(name)

    def shown(self, name: str) -> Json:
        """The current JSON of an operation; KeyError if it does not exist."""
        operation = self._operations[name]
        answer = operation.answer
        if "endTime" not in answer and self.finished(name):
            answer["endTime"] = to_rfc3339(self._clock.now())
        if "endTime" in answer:
            return {**answer, "status": "DONE", "progress": 100}
        hidden = ("error", "httpErrorStatusCode", "httpErrorMessage")
        shown = {key: value for key, value in answer.items() if key not in hidden}
        return {**shown, "status": "RUNNING", "progress": 0}

    def finished(self, name: str) -> bool:
        """Whether an operation's work is done and its delay has passed."""
        operation = self._operations[name]
        return operation.done() and operation.not_before <= self._clock.now()

    def of(self, scope: str) -> list[Json]:
        """The operations of a zone (`zones/Z`), a region or `global`, the newest first."""
        prefix = self._link(f"{scope}/operations/")
        names = [
            name
            for name, operation in self._operations.items()
            if operation.answer["selfLink"].startswith(prefix)
        ]
        return [self.shown(name) for name in reversed(names)]

    def next_time(self) -> float | None:
        """When the next slow operation's delay ends."""
        now = self._clock.now()
        return min(
            (o.not_before for o in self._operations.values() if o.not_before > now), default=None
        )

    def forget(self) -> None:
        """Forgets the operations, but not the planned faults."""
        self._operations.clear()

    # Faults

    def add(
        self,
        match: str,
        *,
        delay_sec: float = 0.0,
        error: tuple[str, str] | None = None,
        times: int | None = None,
        applies: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """Plans a fault for the next `times` (None: all) operations whose `METHOD PATH` matches the
        whole regular expression and whose path applies.

        A path begins below the project and ends with the name of the object to create, such as
        `POST zones/.*/instanceGroupManagers/g1`. A delayed operation does its work at once, but
        stays RUNNING for `delay_sec`; one with an error, (code, message), changes nothing."""
        fault = Fault(*error) if error else None
        self._troubles.append(Trouble(re.compile(match), delay_sec, fault, times, applies))

    def clear(self, applies: Callable[[str], bool] | None = None) -> None:
        """Removes the planned faults that were added with `applies`; all if it is None."""
        self._troubles[:] = [
            one for one in self._troubles if applies is not None and one.applies != applies
        ]

    def trouble(self, method: str, path: str) -> Trouble | None:
        """The fault of this call, which uses up one of its times; None if it has none."""
        for found in self._troubles:
            if found.times == 0 or not found.applies(path):
                continue
            if found.match.fullmatch(f"{method} {path}"):
                if found.times is not None:
                    found.times -= 1
                return found
        return None

    def slowed(self, answer: Json, delay_sec: float) -> Json:
        """The operation of an answer, delayed by at least `delay_sec`."""
        operation = self._operations[answer["name"]]
        operation.not_before = self._clock.now() + delay_sec
        operation.answer.pop("endTime", None)
        return self.shown(answer["name"])
