"""Fault rules: they hit the nth matching request before, in the middle of, or after it.

A rule is JSON:

    {"id": "…",                              made up if it is absent
     "match": {"method": "POST",             any if absent
               "path": "regex",              searched in the target as sent, decoded, and for an
                                             upload in /upload/storage/v1/b/BUCKET/o/NAME
               "object": "regex",            searched in the object's name alone
               "vm": "NAME",                 the sender, known by its token
               "nth": 1, "count": 1},        fires from the nth match on, count times (0: always)
     "when": "before" | "after" | "mid-body",
     "do": {"status": 503, "message": "…", "retry_after_sec": 1, "reset": true,
            "delay_sec": 0.5, "stall": true, "bytes_per_sec": 10000, "drop_answer": true,
            "kill_vm": true | "NAME", "preempt_vm": …, "freeze_vm": …}}

The actions of one rule are applied in this order: VMs, delay, then the first of stall, reset,
drop_answer and status. `bytes_per_sec` limits the rate of both bodies, with `before`. `after` means
that the request has taken effect; `mid-body` means after half of the request's body, or of the
answer's if the request has none.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from outlast.localcloud.base.checked import Count, Ordinal, Part, Pattern, Sec, sentence_of
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.http.request_facts import RequestFacts


class Match(Part):
    """The requests that a rule counts, and those of them that it hits."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] | None = None
    path: Pattern | None = None
    object: Pattern | None = None
    vm: str | None = None
    nth: Ordinal = 1
    count: Count = 1


class Actions(Part):
    """The actions of a rule."""

    status: Annotated[int, Field(ge=400, le=599)] | None = None
    message: str | None = None
    """Google's words, with the status."""
    retry_after_sec: Sec | None = None
    delay_sec: Sec | None = None
    bytes_per_sec: Annotated[float, Field(gt=0)] | None = None
    stall: bool | None = None
    reset: bool | None = None
    drop_answer: bool | None = None
    kill_vm: bool | str | None = None
    preempt_vm: bool | str | None = None
    freeze_vm: bool | str | None = None

    @model_validator(mode="after")
    def _some(self) -> "Actions":
        if self.retry_after_sec is not None and not self.status:
            raise ValueError(f"retry_after_sec {self.retry_after_sec:g}: must be with a status")
        if self.message is not None and not self.status:
            raise ValueError(f"message {self.message!r}: must be with a status")
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("must name at least one action")
        return self


class FaultRule(Part):
    """A rule, as written in JSON."""

    id: str | None = None
    match: Match = Match()
    when: Literal["before", "after", "mid-body"] = "before"
    do: Actions

    @model_validator(mode="after")
    def _possible(self) -> "FaultRule":
        if self.do.drop_answer and self.when != "after":
            raise ValueError(f"when {self.when!r}: must be 'after' for drop_answer")
        if self.do.bytes_per_sec and self.when != "before":
            raise ValueError(f"when {self.when!r}: must be 'before' for bytes_per_sec")
        return self


@dataclass
class Stall:
    """A request that got no answer."""

    call: RequestFacts
    waited_sec: float | None = None
    """Seconds that its sender waited before it gave up; None if it still waits."""
    again: bool = False
    """Whether the same VM has repeated the request since."""

    def sees(self, call: RequestFacts) -> None:
        """Checks whether another request repeats this one."""
        hung = self.call
        same = call.object == hung.object if hung.object else call.subjects == hung.subjects
        sender = (call.method, call.vm, call.instance) == (hung.method, hung.vm, hung.instance)
        self.again = self.again or (self.waited_sec is not None and same and sender)


@dataclass
class Rule:
    """A fault rule with its counts."""

    id: str
    when: str
    do: Actions
    match: Match = field(default_factory=Match)
    seen: int = 0
    fired: int = 0
    stalls: list[Stall] = field(default_factory=list)
    document: Entry = field(default_factory=dict)
    applies: Callable[[RequestFacts], bool] | None = None
    """Whether it may count and hit a request; None: all."""

    @classmethod
    def of(cls, document: Entry) -> "Rule":
        """Creates a rule from JSON; raises ApiError 400 with the first mistake."""
        try:
            written = FaultRule.model_validate(document)
        except ValidationError as error:
            raise ApiError(400, sentence_of(error, "fault rule")) from None
        return cls(
            id=written.id or secrets.token_hex(4),
            when=written.when,
            do=written.do,
            match=written.match,
            document=document,
        )

    def matches(self, call: RequestFacts) -> bool:
        """Whether the rule counts the request."""
        wanted = self.match
        if wanted.method and wanted.method != call.method:
            return False
        if self.applies and not self.applies(call):
            return False
        if wanted.vm and wanted.vm != call.vm:
            return False
        if wanted.path and not any(re.search(wanted.path, subject) for subject in call.subjects):
            return False
        return not wanted.object or re.search(wanted.object, call.object or "") is not None

    def take(self) -> bool:
        """Counts one match; returns whether the rule fires."""
        self.seen += 1
        if self.seen < self.match.nth or (self.match.count and self.fired >= self.match.count):
            return False
        self.fired += 1
        return True
