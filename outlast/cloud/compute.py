"""A client of Compute Engine's API, for commands and dynamic providers.

The endpoint comes from the provider's own variable (`GOOGLE_COMPUTE_CUSTOM_ENDPOINT`), so that a
local cloud can serve it. Nothing here waits long: a call has one try and its own time limit.

ComputeError an answer that is not a success, or no answer
├── Missing           404
└── CannotAsk         no network, no credentials, no permission, or an answer that makes no sense
"""

import contextlib
import os
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import Trouble
from outlast.cloud import credentials

ENDPOINT = "https://compute.googleapis.com/compute/v1/"
ENDPOINT_VARIABLE = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT"
ANSWER_TIMEOUT_SEC = 10.0
AGGREGATED_PAGE = 100
"""Resources in one answer. Each VM and template has its metadata with the boot script, about 60 KB:
of the most that a page takes, 500 (discovery document compute v1, revision 20261106), they would be
30 MB."""
AGGREGATED_TIMEOUT_SEC = 60.0
"""Such a list is of all zones, and a person waits for it."""
OPERATION_WAIT_SEC = 150.0
"""Seconds; the platform's own wait lasts up to two minutes (zoneOperations.wait, discovery document
compute v1, revision 20261106)."""

Json = dict[str, Any]


class ComputeError(Exception):
    """An answer that is not a success; `status` is 0 without an answer."""

    trouble: Trouble | None = None
    """None for an answer that another try would get again (`outlast.base.retry`)."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Missing(ComputeError):
    """The resource does not exist."""


class CannotAsk(ComputeError):
    """The answer is unknown."""


class OperationFailed(ComputeError):
    """The platform accepted an operation and it failed."""


@dataclass(frozen=True)
class Group:
    """A managed instance group."""

    project: str
    place: str
    """`zones/<zone>` or `regions/<region>`."""
    name: str


class Compute:
    """The API for one project."""

    def __init__(self, project: str, *, endpoint: str = "") -> None:
        """`endpoint` as in `gcp:computeCustomEndpoint`; empty: from the environment."""
        found = endpoint or os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
        self._base = found.rstrip("/") + "/"
        self.project = project

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        project: str = "",
        timeout_sec: float = ANSWER_TIMEOUT_SEC,
    ) -> Json:
        """Calls a path below the project, the project itself (an empty path) or a method of it
        (`:name`), and returns the answer. Raises ComputeError.
        """
        slash = "" if path[:1] in ("", ":") else "/"
        return ask_google(
            method,
            f"{self._base}projects/{project or self.project}{slash}{path}",
            body,
            what=path.partition("?")[0],
            timeout_sec=timeout_sec,
        )

    def find(
        self, path: str, *, project: str = "", timeout_sec: float = ANSWER_TIMEOUT_SEC
    ) -> Json | None:
        """What is at a path; None if it does not exist. Raises ComputeError."""
        try:
            return self.call("GET", path, project=project, timeout_sec=timeout_sec)
        except Missing:
            return None

    def delete(self, path: str, *, limit_sec: float) -> None:
        """Deletes what may already be gone, and waits. Raises ComputeError."""
        with contextlib.suppress(Missing):
            self.order("DELETE", path, limit_sec=limit_sec)

    def order(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, limit_sec: float
    ) -> None:
        """Starts an operation and waits for it. Raises ComputeError, and OperationFailed with the
        platform's message.
        """
        operation = self.call(method, path, body, timeout_sec=OPERATION_WAIT_SEC)
        deadline = time.monotonic() + limit_sec
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise CannotAsk(0, f"{path}: not done in {limit_sec:.0f} s")
            operation = self.call(
                "POST",
                # The answer may name the project by its number.
                re.sub(r".*/projects/[^/]+/", "", operation["selfLink"]) + "/wait",
                timeout_sec=OPERATION_WAIT_SEC,
            )
        errors = (operation.get("error") or {}).get("errors") or []
        if errors:
            said = "; ".join(f"{one.get('code')}: {one.get('message')}" for one in errors)
            raise OperationFailed(int(operation.get("httpErrorStatusCode") or 0), said)

    def listed(self, path: str) -> Iterator[Json]:
        """All items of a list, from all its pages. Raises ComputeError."""
        for answer in self._pages(path):
            yield from answer.get("items") or []

    def aggregated(self, kind: str) -> Iterator[Json]:
        """All resources of a kind, such as `instances`, in all zones and pages. Raises
        ComputeError.
        """
        few = {"maxResults": AGGREGATED_PAGE}
        for answer in self._pages(f"aggregated/{kind}", few, timeout_sec=AGGREGATED_TIMEOUT_SEC):
            for scope in (answer.get("items") or {}).values():
                yield from scope.get(kind) or []

    def _pages(
        self,
        path: str,
        asked: Mapping[str, Any] = MappingProxyType({}),
        *,
        timeout_sec: float = ANSWER_TIMEOUT_SEC,
    ) -> Iterator[Json]:
        page = ""
        while True:
            query = urllib.parse.urlencode({**asked, "pageToken": page} if page else asked)
            whole = f"{path}?{query}" if query else path
            answer = self.call("GET", whole, timeout_sec=timeout_sec)
            yield answer
            page = str(answer.get("nextPageToken") or "")
            if not page:
                return


def ask_google(
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    what: str,
    timeout_sec: float = ANSWER_TIMEOUT_SEC,
) -> Json:
    """The JSON object that one call of any of Google's APIs answers. Raises ComputeError, whose
    text begins with `what`.
    """
    try:
        return ask(
            url,
            what=what,
            method=method,
            body=body,
            headers={"Authorization": f"Bearer {_token()}"},
            timeout_sec=timeout_sec,
        ).object()
    except RequestFailed as error:
        if error.status == 404:
            raise Missing(404, str(error)) from None
        failed = (ComputeError if error.trouble is None else CannotAsk)(error.status, str(error))
        failed.trouble = error.trouble
        raise failed from None


def _token() -> str:
    """The access token. Raises CannotAsk."""
    from google.auth.exceptions import GoogleAuthError

    try:
        return credentials.token()
    except (GoogleAuthError, OSError) as error:
        raise CannotAsk(401, f"no token ({credentials.first_line(error)})") from None
