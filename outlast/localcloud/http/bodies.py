"""The JSON that clients send, and what its answers share."""

import base64
import hashlib
import json
import math
import re
from typing import Any, NoReturn

from starlette.requests import Request

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry

HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""What may be half a character: JSON can say it, and UTF-8 cannot."""


def parse_object(raw: bytes, what: str = "body") -> Entry:
    """A JSON object; {} for nothing, ApiError 400 for anything else, numbers and text that JSON's
    readers cannot hold included."""
    if not raw.strip():
        return {}
    try:
        parsed = json.loads(raw, parse_constant=_refuse, parse_float=_finite)
        if HALF_A_PAIR.search(raw):
            json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ApiError(400, f"Parse Error: the {what} is not JSON", "parseError") from None
    if not isinstance(parsed, dict):
        raise ApiError(400, f"Parse Error: the {what} is not a JSON object", "parseError")
    return parsed


async def read_json(request: Request) -> Entry:
    """The request's JSON object; {} for none, ApiError 400 for anything else."""
    return parse_object(await request.body())


def snake_to_camel(name: str) -> str:
    """`included_permissions` as `includedPermissions`; field masks come in either form."""
    first, *rest = name.strip().split("_")
    return first + "".join(word.capitalize() for word in rest)


def etag_of(value: Any) -> str:
    """An etag that changes with the value."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
