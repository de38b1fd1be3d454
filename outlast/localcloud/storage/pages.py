"""Pages of lists: a page ends after its last name, which its token contains."""

import base64
from collections.abc import Mapping

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.storage.conditions import whole_number

MAX_PAGE = 1000
"""Items of a page, also if the query names no size."""


def size(query: Mapping[str, str]) -> int:
    """Maximum number of items and prefixes of a page. Raises ApiError 400."""
    asked = whole_number(query, "maxResults")
    limit = MAX_PAGE if asked is None else min(asked, MAX_PAGE)
    if limit < 1:
        raise ApiError(400, f"maxResults {limit}: must be at least 1", "invalid")
    return limit


def start(query: Mapping[str, str]) -> str:
    """The last name of the previous page; empty for the first page. Raises ApiError 400."""
    token = query.get("pageToken", "")
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        raise ApiError(400, f"Invalid page token: {token!r}", "invalid") from None


def token(last: str) -> str:
    """The `nextPageToken` of a page that ends with this name."""
    return base64.urlsafe_b64encode(last.encode()).decode()
