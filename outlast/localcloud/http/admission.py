"""What a request must look like before it reaches a service: sent by a program of the owner or of
a VM, never by a web page.

A browser runs as the owner too, so the user id alone does not keep pages out. They are known by
the Host that they were loaded from, by the headers that a browser adds and no client library has,
and by the few content types that a page may send without asking first.
"""

from collections.abc import Collection, Iterable

from starlette.requests import Request

from outlast.localcloud.base.errors import ApiError

HTTP_PORT = 80
BODY_METHODS = ("POST", "PUT", "PATCH", "DELETE")
PAGE_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""A page sends these to any server without asking it; no client library sends JSON as one."""
TYPED = "none"
"""Sec-Fetch-Site of an address that a person has typed."""


def hosts(names: Iterable[str], port: int) -> frozenset[str]:
    """What Host may be: each name with the port, and without it if HTTP's own is meant."""
    bare = {name.lower() for name in names}
    return frozenset({f"{name}:{port}" for name in bare} | (bare if port == HTTP_PORT else set()))


def check_target(target: str, given: Collection[str], known: frozenset[str]) -> None:
    """421 unless a request is for this server: by one Host header that it answers to, `given`
    being all there are, and a target that is a path."""
    if not target.startswith("/"):
        raise ApiError(
            421, f"{target[:80]!r}: the target of a request must be a path; send no proxy request."
        )
    if len(given) != 1 or next(iter(given)).strip().lower() not in known:
        shown = ", ".join(repr(host[:80]) for host in given) or "missing"
        raise ApiError(421, f"Host {shown}: must be {' or '.join(sorted(known))}.")


def check_no_page(origin: str | None, site: str | None) -> None:
    """403 for what a web page's script, form, picture or link has sent."""
    if origin is not None:
        raise ApiError(403, f"Origin {origin[:80]!r}: web pages are not answered.")
    if site is not None and site.strip().lower() != TYPED:
        raise ApiError(403, f"Sec-Fetch-Site {site[:80]!r}: web pages are not answered.")


def check_content_type(request: Request) -> None:
    """415 for a body of JSON, or of parts, under a type that a page can send unasked."""
    if request.method not in BODY_METHODS or not _has_body(request) or _is_object(request):
        return
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() in PAGE_TYPES:
        raise ApiError(415, f"Content-Type {given[:80]!r}: must be application/json.")


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0").strip()
    return length != "0" or "transfer-encoding" in request.headers


def _is_object(request: Request) -> bool:
    """Whether the body is an object's bytes, whose type is the object's own."""
    query = request.query_params
    return "upload_id" in query or query.get("uploadType") == "media"
