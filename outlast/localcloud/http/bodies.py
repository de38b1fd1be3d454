"""Reads the JSON that clients send, with helpers for answers."""

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
"""An escape that may be half a surrogate pair, which JSON allows and UTF-8 does not."""


def parse_object(raw: bytes, what: str = "body") -> Entry:
    """Parses a JSON object; {} for an empty text. Raises ApiError 400 for anything else, including
    numbers and text that JSON readers cannot hold."""
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
    """Reads the request's JSON object; {} for an empty body. Raises ApiError 400."""
    return parse_object(await request.body())


def without_nulls(value: Any) -> Any:
    """A body without its nulls, which mean the same as absent fields, whatever their names."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def snake_to_camel(name: str) -> str:
    """Converts `included_permissions` to `includedPermissions`; field masks may have either
    form."""
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
