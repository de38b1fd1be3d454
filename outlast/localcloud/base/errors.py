"""The errors of the local cloud, and their forms in Google's APIs.

RehearsalError          the local cloud itself cannot continue
|- UsageError           bad flags or environment: one sentence, exit 64
   |- ScenarioError     a scenario file that cannot be played (`scenario.py`)
ApiError                an answer of one of the APIs, in Google's JSON form
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

USAGE_EXIT = 64

# Names of google.rpc.Code by HTTP status, for the `status` member of an error.
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    416: "OUT_OF_RANGE",
    421: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

# Google's default `reason` by HTTP status.
REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    413: "uploadTooLarge",
    415: "unsupportedMediaType",
    416: "requestedRangeNotSatisfiable",
    421: "misdirectedRequest",
    429: "rateLimitExceeded",
    500: "internalError",
    501: "notImplemented",
    503: "backendError",
    504: "gatewayTimeout",
}


def is_full(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether the error is that of a disk without space."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class RehearsalError(Exception):
    """The local cloud cannot continue; the message is one sentence for its user."""


class UsageError(RehearsalError):
    """A flag or the environment is wrong; ends the command with exit code 64."""


class ApiError(Exception):
    """An error answer; raise it anywhere below a route.

    `reason` is Google's short word (`conditionNotMet`, `rateLimitExceeded`). `status_name` is the
    google.rpc code if the HTTP status alone does not determine it (409 ABORTED). `details` are the
    additional entries of newer APIs."""

    def __init__(
        self,
        status: int,
        message: str,
        reason: str | None = None,
        *,
        status_name: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or REASONS.get(status, "backendError")
        self.status_name = status_name or STATUS_NAMES.get(status, "UNKNOWN")
        self.headers = dict(headers or {})
        self.details = list(details)

    def body(self) -> dict[str, Any]:
        """Google's JSON form of the error."""
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        error = {
            "code": self.status,
            "message": self.message,
            "errors": [entry],
            "status": self.status_name,
            **({"details": self.details} if self.details else {}),
        }
        return {"error": error}

    def response(self) -> Response:
        """The error as an HTTP answer."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def not_found(what: str) -> ApiError:
    """A 404 for a named object."""
    return ApiError(404, f"{what} was not found")


def not_implemented(method: str, path: str) -> ApiError:
    """A 501 for a call that the local cloud does not support."""
    return ApiError(501, f"{method} {path} is not implemented by the local cloud")


async def answer_api_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for ApiError."""
    assert isinstance(error, ApiError)
    return error.response()
