"""Membership in the managed instance group, and leaving it.

The group recreates every VM that is powered off or deleted; only ``deleteInstances`` on the group
itself ends that. The call takes names, and a recreated VM keeps its name, so a VM first looks for
its own instance id: a VM that is no longer a member must never call it.

Every question has three answers: yes, no, and *not known* (no answer, 401, 403, 429, 5xx), on which
no code may act. A VM without a token cannot even ask: after `WITHOUT_TOKEN_SEC` it powers off,
since only another one, on another host, may get a token.
"""

import json
import logging
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import Patience, Trouble, pauses
from outlast.spec import permissions
from outlast.supervisor.metadata import Absent, Metadata, MetadataError

_log = logging.getLogger(__name__)

COMPUTE_ENDPOINT = "https://compute.googleapis.com/compute/v1/"
RESOURCE_MANAGER_ENDPOINT = "https://cloudresourcemanager.googleapis.com/v1/"
CREATED_BY_PATTERN = re.compile(
    r"projects/[^/]+/(zones|regions)/([^/]+)/instanceGroupManagers/([^/]+)"
)

WITHOUT_TOKEN_SEC = 60.0
"""Seconds without a token after which a VM stops asking its group; as in startup/leave.sh."""

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """Answer: this VM is in its group."""

    name: str
    zone: str


@dataclass(frozen=True)
class NotMember:
    """Answer: this VM is not a member, or the group does not exist."""

    why: str


@dataclass(frozen=True)
class Unknown:
    """Answer: not known."""

    why: str
    without_token: bool = False
    """Whether the metadata server gave no token to ask with."""


class Stranded(Exception):
    """This VM has had no token for WITHOUT_TOKEN_SEC, so it can neither ask nor leave its group."""


class NoToken(RequestFailed):
    """The metadata server gives no token."""


@dataclass(frozen=True)
class Left:
    """Answer: the group has released this VM, now or earlier."""

    why: str


@dataclass(frozen=True)
class Refused:
    """Answer: the group refused. Asking again may help after the permissions are corrected."""

    why: str


class Membership(Protocol):
    """The questions that the supervisor asks a group."""

    def membership(self) -> Member | NotMember | Unknown:
        """Whether this machine is in its group now."""
        ...

    def leave(self) -> Left | Refused | Unknown:
        """Tries once to leave the group."""
        ...

    def may_leave(self) -> bool | Unknown:
        """Whether leaving would be permitted."""
        ...


class NoGroup:
    """A machine without a group: a laptop, or a VM created by hand."""

    def membership(self) -> NotMember:
        return NotMember("no group created this machine")

    def leave(self) -> Left:
        return Left("no group created this machine")

    def may_leave(self) -> bool:
        return True


class Group:
    """The group that created this VM, over REST with the metadata server's token."""

    def __init__(self, metadata: Metadata, created_by: str) -> None:
        """``created_by`` is the attribute that the group sets on its VMs."""
        match = CREATED_BY_PATTERN.fullmatch(created_by)
        if match is None:
            raise ValueError(
                f"metadata key created-by is {created_by!r}: must be "
                "projects/P/zones/Z/instanceGroupManagers/NAME (or regions/R)"
            )
        self._metadata = metadata
        self._project = metadata.get("project/project-id")
        self._instance_id = metadata.get("instance/id")
        self._name = metadata.get("instance/name")
        self._zone = metadata.get("instance/zone").rpartition("/")[2]
        compute = _endpoint("OUTLAST_COMPUTE_ENDPOINT", COMPUTE_ENDPOINT)
        scope, place, name = match.groups()
        self.name = name
        self._url = (
            f"{compute}projects/{self._project}/{scope}/{place}/instanceGroupManagers/{name}"
        )
        self._projects_url = (
            _endpoint("OUTLAST_RESOURCE_MANAGER_ENDPOINT", RESOURCE_MANAGER_ENDPOINT)
            + f"projects/{self._project}"
        )

    def membership(self) -> Member | NotMember | Unknown:
        try:
            for instance in self._managed_instances():
                if str(instance.get("id", "")) == self._instance_id:
                    return Member(self._name, self._zone)
        except RequestFailed as error:
            if error.status == 404:
                return NotMember(f"there is no group {self.name}")
            return _unknown(error)
        return NotMember(f"group {self.name} has no instance {self._instance_id}")

    def leave(self) -> Left | Refused | Unknown:
        """Looks for this VM in the group and deletes it there; if that is refused, resizes the
        group to 0.

        Call it only if a successor of the same name would have to leave too: between the look and
        the call, the group may have replaced this VM."""
        member = self.membership()
        if isinstance(member, NotMember):
            return Left(member.why)
        if isinstance(member, Unknown):
            return member
        body = {"instances": [f"zones/{member.zone}/instances/{member.name}"]}
        try:
            self._call(f"{self._url}/deleteInstances", body)
            return Left(f"group {self.name} deletes {member.name}")
        except RequestFailed as error:
            if error.status == 404:
                return Left(f"there is no group {self.name}")
            if error.trouble is not None and error.status != 403:
                return _unknown(error)
            refusal = str(error)
        # It may be refused because it is no longer a member: the group then has a successor.
        again = self.membership()
        if isinstance(again, NotMember):
            return Left(again.why)
        if isinstance(again, Unknown):
            return again
        try:
            self._call(f"{self._url}/resize?size=0", {})
            return Left(f"group {self.name} resized to 0 ({refusal})")
        except RequestFailed as error:
            return Refused(f"{refusal}; {error}")

    def may_leave(self) -> bool | Unknown:
        try:
            answer = self._call(
                f"{self._projects_url}:testIamPermissions",
                {"permissions": list(permissions.LEAVE_GROUP)},
            )
        except RequestFailed as error:
            return _unknown(error)
        granted = answer.get("permissions") or []
        return isinstance(granted, list) and set(permissions.LEAVE_GROUP) <= set(granted)

    def _managed_instances(self) -> Iterator[Mapping[str, object]]:
        page = ""
        while True:
            query = f"?pageToken={urllib.parse.quote(page)}" if page else ""
            answer = self._call(f"{self._url}/listManagedInstances{query}", {})
            found = answer.get("managedInstances") or []
            if not isinstance(found, list):
                raise RequestFailed(200, "listManagedInstances: managedInstances is not a list")
            yield from found
            page = str(answer.get("nextPageToken") or "")
            if not page:
                return

    def _call(self, url: str, body: Mapping[str, object]) -> Mapping[str, object]:
        what = url.removeprefix(self._url).removeprefix(self._projects_url).lstrip("/:")
        try:
            token = self._metadata.token()
        except MetadataError as error:
            # Without a service account a token will never come, so this is as final as a refusal.
            status = 403 if isinstance(error, Absent) else 0
            raise NoToken(status, f"{what}: no token ({error})") from None
        headers = {"Authorization": f"Bearer {token}"}
        try:
            found = ask(url, what=what, method="POST", body=body, headers=headers).object()
        except RequestFailed as error:
            if error.status == 401:
                self._metadata.forget_token()
            raise
        failed = found.get("error")
        if failed:  # an operation that was accepted and failed at once
            raise RequestFailed(409, f"{what}: {json.dumps(failed)[:300]}")
        return found


def find_group(metadata: Metadata, attributes: Mapping[str, str]) -> Group | NoGroup:
    """The group of this VM, from the attribute that the group sets; NoGroup without it."""
    created_by = attributes.get("created-by", "")
    return Group(metadata, created_by) if created_by else NoGroup()


def asking(
    question: Callable[[], T | Unknown], *, backoff_sec: float, clock: Clock = SYSTEM_CLOCK
) -> Iterator[T | Unknown]:
    """The answers to a question, asked with growing pauses for as long as the caller wants more.
    Raises Stranded."""
    since: float | None = None
    for pause_sec in pauses(backoff_sec):
        answer = question()
        yield answer
        if isinstance(answer, Unknown) and answer.without_token:
            now = clock.monotonic()
            since = now if since is None else since
            if now - since >= WITHOUT_TOKEN_SEC:
                raise Stranded(answer.why)
            pause_sec = min(pause_sec, WITHOUT_TOKEN_SEC)
        else:
            since = None
        clock.sleep(pause_sec)


def leave_until_deleted(
    group: Membership,
    *,
    backoff_sec: float,
    clock: Clock = SYSTEM_CLOCK,
    stuck: Callable[[str], None] = _log.info,
) -> Left:
    """Leaves the group, however long it takes. Only then may the VM power off: a member that powers
    off is always recreated. Raises Stranded.

    ``stuck`` gets the sentence about a missing permission."""
    for answer in asking(group.leave, backoff_sec=backoff_sec, clock=clock):
        if isinstance(answer, Left):
            _log.info(f"left the group: {answer.why}")
            return answer
        if isinstance(answer, Refused):
            stuck(f"stuck-leaving: {answer.why}; grant {' and '.join(permissions.LEAVE_GROUP)}")
        else:
            _log.info(f"leaving: not known whether still a member ({answer.why}); asking again")
    raise AssertionError("the pauses have no end")


class _MayNotLeave(Exception):
    trouble = Trouble.FORBIDDEN


def wait_for_permission(group: Membership, patience: Patience) -> bool:
    """Whether this machine may leave its group. Waits for new permissions for as long as
    ``patience`` allows."""

    def once() -> None:
        answer = group.may_leave()
        if answer is not True:
            raise _MayNotLeave(answer.why if isinstance(answer, Unknown) else "missing")

    try:
        patience(once, "permission to leave the group")
    except _MayNotLeave:
        return False
    return True


def _unknown(error: RequestFailed) -> Unknown:
    return Unknown(str(error), without_token=isinstance(error, NoToken))


def _endpoint(variable: str, default: str) -> str:
    return (os.environ.get(variable) or default).rstrip("/") + "/"
