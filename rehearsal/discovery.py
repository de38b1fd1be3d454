"""Holds request bodies to Google's own discovery documents: an unknown field is a 400."""

import functools
import json
from importlib import resources
from typing import Any

from rehearsal.errors import ApiError

# What a JSON value of each discovery type may be; int64 and numbers may come as strings.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str, int, float),
    "integer": (int, str),
    "number": (int, float, str),
    "boolean": (bool,),
}


def check_body(api: str, schema: str, body: Any) -> None:
    """Raises ApiError 400 where the body does not fit the schema.

    `api` is a document's name (`compute.beta`), `schema` a name in it (`InstanceTemplate`).
    Nulls and empty objects pass anywhere, as they do in the real API.
    """
    _check({"$ref": schema}, body, _schemas(api), "")


@functools.cache
def _schemas(api: str) -> dict[str, Any]:
    documents = resources.files("googleapiclient.discovery_cache") / "documents"
    return json.loads((documents / f"{api}.json").read_bytes())["schemas"]


def _check(schema: dict[str, Any], value: Any, schemas: dict[str, Any], path: str) -> None:
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    kind = schema.get("type", "any")
    if value is None or value == {} or kind == "any":
        return
    if kind == "object":
        if not isinstance(value, dict):
            raise _refusal(path, f"is {_shown(value)}, must be an object")
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        for key, item in value.items():
            inner = f"{path}.{key}" if path else key
            if key in properties:
                _check(properties[key], item, schemas, inner)
            elif extra is not None:
                _check(extra, item, schemas, inner)
            else:
                where = f" at '{path}'" if path else ""
                raise ApiError(
                    400,
                    f'Invalid JSON payload received. Unknown name "{key}"{where}: '
                    "Cannot find field.",
                )
    elif kind == "array":
        if not isinstance(value, list):
            raise _refusal(path, f"is {_shown(value)}, must be a list")
        for index, item in enumerate(value):
            _check(schema["items"], item, schemas, f"{path}[{index}]")
    else:
        _check_scalar(kind, schema, value, path)


def _check_scalar(kind: str, schema: dict[str, Any], value: Any, path: str) -> None:
    if not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        raise _refusal(path, f"is {_shown(value)}, must be of type {kind}")
    if kind in ("integer", "number") and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            raise _refusal(path, f"is {_shown(value)}, must be of type {kind}") from None
    known = schema.get("enum")
    if known and value not in known:
        raise _refusal(path, f"is {_shown(value)}, must be one of {', '.join(known)}")


def _refusal(path: str, what: str) -> ApiError:
    return ApiError(400, f"Invalid value for field '{path or 'body'}': it {what}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
