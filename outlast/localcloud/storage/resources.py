"""The JSON of objects and buckets: the fields that a client may set, and their forms."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.requests import Request

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.http.bodies import without_nulls
from outlast.localcloud.http.discovery import check_body

# The fields of an object that a client may set; the server sets all others.
OBJECT_FIELDS = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
)
HEADER_FIELDS = {
    "contentEncoding": "content-encoding",
    "contentDisposition": "content-disposition",
    "contentLanguage": "content-language",
    "cacheControl": "cache-control",
}
UNKNOWN_OBJECT_FIELDS = ("temporaryHold", "eventBasedHold", "retention", "kmsKeyName", "contexts")
STORAGE_CLASSES = (
    *("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
    *("MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY"),
)
MAX_NAME_BYTES = 1024
MAX_CUSTOM_BYTES = 8 * 1024
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_name(name: object) -> str:
    """Returns the name; raises ApiError 400 unless it has 1 to 1024 bytes of UTF-8 and no forbidden
    form."""
    try:
        length = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:  # half of a surrogate pair, from a JSON escape
        length = 0
    text = str(name)
    bad = text in (".", "..") or "\r" in text or "\n" in text
    if not 1 <= length <= MAX_NAME_BYTES or bad or text.startswith(".well-known/acme-challenge/"):
        raise ApiError(400, f"Invalid object name: {ascii(text[:80])}", "invalid")
    return text


def checked_metadata(metadata: Entry, query: Mapping[str, str]) -> tuple[str, Entry]:
    """The object's name and the fields that the client sets. Raises ApiError."""
    if metadata.keys() != {"name"}:
        check_body("storage.v1", "Object", metadata)
    name = query.get("name") or metadata.get("name") or ""
    if not name:
        raise ApiError(400, "Required parameter: name", "required")
    check_name(name)
    metadata = without_nulls(metadata)
    fields = {key: metadata[key] for key in OBJECT_FIELDS if key in metadata}
    if "contentEncoding" in query:
        fields["contentEncoding"] = query["contentEncoding"]
    check_fields({**metadata, **fields})
    return name, fields


def check_fields(given: Entry) -> None:
    """Raises ApiError if a field of an object has a forbidden value."""
    for field in UNKNOWN_OBJECT_FIELDS:
        if given.get(field):
            raise ApiError(501, f"{field} of an object is not implemented by the local cloud")
    for field in ("contentType", *HEADER_FIELDS):
        value = given.get(field)
        if value is not None and CONTROL.search(_encodable(field, value)):
            raise ApiError(400, f"Invalid value for {field}: {value!r}", "invalid")
    check_storage_class(given.get("storageClass"))
    custom = given.get("metadata") or {}
    size = sum(
        len(_encodable("metadata", f"{k}{v}").encode()) for k, v in custom.items() if v is not None
    )
    if size > MAX_CUSTOM_BYTES:
        raise ApiError(
            400,
            f"The metadata of an object is {size} bytes: must be at most {MAX_CUSTOM_BYTES}",
            "invalid",
        )


def _encodable(field: str, value: object) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"Invalid value for {field}: {text!a}", "invalid") from None
    return text


def check_storage_class(value: object) -> None:
    """Raises ApiError 400 for an unknown class; None passes."""
    if value is not None and value not in STORAGE_CLASSES:
        raise ApiError(400, f"Invalid storage class: {value!r}", "invalid")


def check_request(request: Request) -> None:
    """Raises ApiError for headers and parameters that the local cloud does not support."""
    query: QueryParams = request.query_params
    for name in request.headers:
        if name.startswith(("x-goog-encryption-", "x-goog-copy-source-encryption-")):
            raise ApiError(501, f"{name} is not implemented by the local cloud")
    if query.get("kmsKeyName") or query.get("destinationKmsKeyName"):
        raise ApiError(501, "kmsKeyName is not implemented by the local cloud")
    if query.get("predefinedAcl") or query.get("destinationPredefinedAcl"):
        raise ApiError(
            400,
            "Cannot insert legacy ACL for an object when uniform bucket-level access is enabled. "
            "Read more at https://cloud.google.com/storage/docs/uniform-bucket-level-access",
            "invalid",
        )


def merge(entry: Entry, changes: Entry) -> Entry:
    """Applies a JSON merge patch: null removes, objects merge, other values replace."""
    merged = dict(entry)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = without_nulls(value)
    return merged


def shown_object(base_url: str, entry: Entry) -> Entry:
    """The JSON of an object."""
    bucket, generation = entry["bucket"], entry["generation"]
    tail = f"/storage/v1/b/{bucket}/o/{quote(entry['name'], safe='')}"
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{entry['name']}/{generation}",
        "selfLink": base_url + tail,
        "mediaLink": f"{base_url}/download{tail}?generation={generation}&alt=media",
        **entry,
    }
