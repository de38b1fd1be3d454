"""Requests to the local cloud's APIs."""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

REQUEST_TIMEOUT_SEC = 60
OPERATION_TIMEOUT_SEC = 300
OPERATION_POLL_SEC = 0.1
BUSY = (429, 503)
BUSY_TRIES = 5
BUSY_WAIT_SEC = 0.5
CONFLICTS = (409, 412)
CONFLICT_TRIES = 12
NEW_ACCOUNT_SEC = 60.0
"""Seconds for which a binding is retried if IAM does not know its account yet."""
NEW_ACCOUNT_WAIT_SEC = 1.0
_NEW_ACCOUNT = re.compile(r"[Ss]ervice account \S+ does not exist")
CONFLICT_WAIT_SEC = 0.2
MAX_CONNECTIONS = 32


class ProviderError(Exception):
    """An error for the engine to show: one sentence.

    ProviderError
    └── ApiFailure      an API answered with an error
    """


class ApiFailure(ProviderError):
    """An error answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One API of the local cloud by its base address, which ends with a slash."""

    def __init__(self, base: str, token: str | None = None) -> None:
        self.base = base if base.endswith("/") else f"{base}/"
        self._headers = {"User-Agent": "outlast-rehearsal-provider"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Sends a call; returns the answer's JSON. Raises ApiFailure for an error answer,
        ProviderError without an answer."""
        data = None if body is None else json.dumps(body).encode()
        return self.send(method, self.base + path, data, "application/json", query)

    def find(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON of a GET; None for a 404."""
        try:
            return self.call("GET", path, query=query)
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise

    def remove(self, path: str) -> Any:
        """Sends a DELETE; returns None for a 404, which is not an error."""
        try:
            return self.call("DELETE", path)
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise

    def send(
        self,
        method: str,
        url: str,
        data: bytes | None,
        content_type: str,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Sends a request to a full address; returns the answer's JSON. Raises like `call`."""
        address = f"{url}?{urlencode({'alt': 'json', **(query or {})})}"
        headers = dict(self._headers)
        if data is not None:
            headers["Content-Type"] = content_type
        for attempt in range(1, BUSY_TRIES + 1):
            try:
                answer = _pool.request(method, address, body=data, headers=headers)
            except urllib3.exceptions.HTTPError as error:
                raise ProviderError(
                    f"{method} {url}: the local cloud does not answer ({error}); is it running?"
                ) from None
            if answer.status not in BUSY or attempt == BUSY_TRIES:
                break
            time.sleep(BUSY_WAIT_SEC * attempt)
        if answer.status >= 400:
            raise ApiFailure(answer.status, f"{method} {url}: {_reason(answer)}")
        return json.loads(answer.data) if answer.data else None

    def operate(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Sends a call that answers with a compute operation; waits for its end and returns it.
        Raises ApiFailure if it fails, ProviderError if it takes too long."""
        operation = self.call(method, path, body, query)
        deadline = time.monotonic() + OPERATION_TIMEOUT_SEC
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise ProviderError(f"{method} {path}: not done after {OPERATION_TIMEOUT_SEC} s.")
            time.sleep(OPERATION_POLL_SEC)
            operation = self.call("GET", _operation_path(path, operation))
        errors = operation.get("error", {}).get("errors", [])
        if errors:
            status = operation.get("httpErrorStatusCode", 400)
            said = "; ".join(f"{each.get('code')}: {each.get('message')}" for each in errors)
            raise ApiFailure(status, f"{method} {path}: {said}")
        return operation

    def destroy(self, path: str) -> None:
        """Sends a DELETE that answers with an operation; a 404 is not an error."""
        try:
            self.operate("DELETE", path)
        except ApiFailure as failure:
            if failure.status != 404:
                raise


_pool = urllib3.PoolManager(
    maxsize=MAX_CONNECTIONS,
    retries=urllib3.Retry(connect=0, read=0, redirect=0, status=0, other=0),
    timeout=urllib3.Timeout(REQUEST_TIMEOUT_SEC),
)
"""Ignores proxies from the environment, because everything is on loopback."""


def _operation_path(path: str, operation: Mapping[str, Any]) -> str:
    project = path.split("/")[1]
    for scope in ("zone", "region"):
        if operation.get(scope):
            place = f"{scope}s/{operation[scope].rpartition('/')[2]}"
            break
    else:
        place = "global"
    return f"projects/{project}/{place}/operations/{operation['name']}"


def _reason(answer: urllib3.BaseHTTPResponse) -> str:
    try:
        return f"{answer.status}: {json.loads(answer.data)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{answer.status}: {answer.data[:200].decode(errors='replace')}"


_policy_locks: dict[str, threading.Lock] = {}
_policy_locks_guard = threading.Lock()


def edit_policy(
    key: str,
    read: Callable[[], dict[str, Any]],
    write: Callable[[dict[str, Any]], Any],
    change: Callable[[dict[str, Any]], bool],
) -> None:
    """Reads an IAM policy, changes it and writes it with its etag; repeats that if another writer
    was faster. `change` returns whether there is something to write; `key` names the policy."""
    with _policy_locks_guard:
        lock = _policy_locks.setdefault(key, threading.Lock())
    with lock:
        tries, until_sec = 0, time.monotonic() + NEW_ACCOUNT_SEC
        while True:
            policy = read()
            if not change(policy):
                return
            try:
                write(policy)
                return
            except ApiFailure as failure:
                if _is_of_new_account(failure) and time.monotonic() < until_sec:
                    time.sleep(NEW_ACCOUNT_WAIT_SEC)
                    continue
                tries += 1
                if failure.status not in CONFLICTS or tries == CONFLICT_TRIES:
                    raise
            time.sleep(CONFLICT_WAIT_SEC * tries)


def _is_of_new_account(failure: ApiFailure) -> bool:
    """Whether IAM does not know an account, which may have been created a moment ago."""
    return failure.status == 400 and bool(_NEW_ACCOUNT.search(str(failure)))
