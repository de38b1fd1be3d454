"""Checks that a request comes from a program of the owner or of a VM, and not from a web page.

A browser runs as the owner too, so the user id alone does not exclude pages. They are recognized by
the Host that they were loaded from, by the headers that a browser adds and no client library sends,
and by the few content types that a page may send without asking first."""

from collections.abc import Collection, Iterable

from starlette.requests import Request

from outlast.localcloud.base.errors import ApiError

HTTP_PORT = 80
BODY_METHODS = ("POST", "PUT", "PATCH", "DELETE")
PAGE_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""Content types that a page may send to any server without asking; no client library sends JSON
with one of them."""
TYPED = "none"
"""Sec-Fetch-Site for an address that a person has typed."""


def hosts(names: Iterable[str], port: int) -> frozenset[str]:
    """The accepted values of Host: each name with the port, and without it for HTTP's own port."""
    bare = {name.lower() for name in names}
    return frozenset({f"{name}:{port}" for name in bare} | (bare if port == HTTP_PORT else set()))


def check_target(target: str, given: Collection[str], known: frozenset[str]) -> None:
    """Raises ApiError 421 unless the target is a path and `given`, all Host headers of the request,
    is exactly one accepted name."""
    if not target.startswith("/"):
        raise ApiError(
            421, f"{target[:80]!r}: the target of a request must be a path; send no proxy request."
        )
    if len(given) != 1 or next(iter(given)).strip().lower() not in known:
        shown = ", ".join(repr(host[:80]) for host in given) or "missing"
        raise ApiError(421, f"Host {shown}: must be {' or '.join(sorted(known))}.")


def check_no_page(origin: str | None, site: str | None) -> None:
    """Raises ApiError 403 for a request from a web page's script, form, picture or link."""
    if origin is not None:
        raise ApiError(403, f"Origin {origin[:80]!r}: web pages are not answered.")
    if site is not None and site.strip().lower() != TYPED:
        raise ApiError(403, f"Sec-Fetch-Site {site[:80]!r}: web pages are not answered.")


def check_content_type(request: Request) -> None:
    """Raises ApiError 415 for a body of JSON or of parts with a content type that a page can send
    without asking."""
    if request.method not in BODY_METHODS or not _has_body(request) or _is_object(request):
        return
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() in PAGE_TYPES:
        raise ApiError(415, f"Content-Type {given[:80]!r}: must be application/json.")


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0").strip()
    return length != "0" or "transfer-encoding" in request.headers


def _is_object(request: Request) -> bool:
    """Whether the body is an object's bytes, so that the content type is the object's."""
    query = request.query_params
    return "upload_id" in query or query.get("uploadType") == "media"
