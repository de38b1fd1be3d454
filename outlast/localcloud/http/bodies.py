"""The JSON that clients send."""

import json
import math
import re
from typing import NoReturn

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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
