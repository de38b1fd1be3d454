"""Identifies the sender of a request, by its token or by the process at the other end."""

import os
from collections.abc import Callable
from typing import Any, Protocol

from starlette.requests import Request

from outlast.localcloud.base.access import OWNER, Caller
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.http.peers import Socket, far_end

VM_TOKEN_PREFIX = "vm-token-"


class Tokens(Protocol):
    """The VMs, as senders."""

    def caller(self, token: str) -> Caller | None:
        """The VM to which its metadata server gave this token; None if there is none."""
        ...

    def sender(self, inode: int) -> Caller | None:
        """The VM with a process that has this socket open; None if there is none."""
        ...


class Senders:
    """Identifies the senders of requests."""

    def __init__(self, vms: Tokens, impersonating: Callable[[str], Caller | None]) -> None:
        """`impersonating`: the service account for which a token was issued."""
        self._vms = vms
        self._impersonating = impersonating

    def admit(self, request: Request) -> None:
        """Admits requests of this user's processes and of VMs. Raises ApiError 403 for another
        user's request, 401 if the sender has closed the connection."""
        far: Socket | None = request.scope["state"]["connection"]["far"]
        if far is None:
            raise _gone()
        if far.uid != os.geteuid():
            self._sender(request)

    def caller(self, request: Request) -> Caller:
        """The VM or service account whose token a request has, or else the VM whose process sent
        it.

        A VM without a token is its service account: Google's clients send none if
        STORAGE_EMULATOR_HOST is set. This user's processes outside of VMs are the owner, with any
        token except one that only a VM can have had. Raises ApiError 401 and 403."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        if token and (caller := self._vms.caller(token) or self._impersonating(token)):
            return caller
        sender = self._sender(request)
        if token.startswith(VM_TOKEN_PREFIX) or (token and sender is not OWNER):
            raise ApiError(401, "Invalid Credentials")
        return sender

    def _sender(self, request: Request) -> Caller:
        """The sender by the process at the other end, looked up once for each connection."""
        state = request.scope["state"]
        known: dict[str, Any] = state["connection"]
        if "sender" not in known:
            far: Socket | None = known["far"]
            if far is None:
                raise _gone()
            sender = self._vms.sender(far.inode)
            if sender is None and far.uid != os.geteuid():
                raise ApiError(
                    403,
                    f"This local cloud serves user {os.geteuid()} alone; the request is of "
                    f"user {far.uid}.",
                    headers={"connection": "close"},
                )
            # If a VM's process has just ended, it must not pass for the owner's.
            if sender is None and far_end(state["transport"].get_extra_info("socket")) != far:
                raise _gone()
            known["sender"] = sender or OWNER
        return known["sender"]


def _gone() -> ApiError:
    text = "The sender of this request has gone."
    return ApiError(401, text, headers={"connection": "close"})
