"""Checks requests and answers against Google's own discovery documents: an unknown field is a 400.

A method is found by its HTTP method and path, whatever the names of the path's placeholders. The
document describes its body, query and answer."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from outlast.localcloud.base.errors import ApiError

PLACEHOLDER = re.compile(r"\{[^}]*\}")
# The Python types of each discovery type in a request; int64 and numbers may be strings.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str, int, float),
    "integer": (int, str),
    "number": (int, float, str),
    "boolean": (bool,),
}
# In an answer, each type has only one form.
ANSWER_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
ANSWER_FORMATS = {
    "int64": re.compile(r"-?\d+"),
    "uint64": re.compile(r"\d+"),
    "byte": re.compile(r"[A-Za-z0-9+/_-]*={0,2}"),
    "google-datetime": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[-+]\d\d:\d\d)"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[-+]\d\d:\d\d)"),
}
PROTO_TYPES = {
    **{"int32": "TYPE_INT32", "uint32": "TYPE_UINT32", "int64": "TYPE_INT64"},
    **{"uint64": "TYPE_UINT64", "double": "TYPE_DOUBLE", "float": "TYPE_FLOAT"},
    **{"integer": "TYPE_INT32", "number": "TYPE_DOUBLE", "boolean": "TYPE_BOOL"},
}
RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
# Query parameters of every method. Only some editions of the v1 document have the last one, and
# older clients send it with every list.
COMMON_QUERY = frozenset(
    {"alt", "fields", "key", "prettyPrint", "quotaUser", "userProject", "returnPartialSuccess"}
)


@dataclass(frozen=True)
class Method:
    """A method as its document describes it."""

    api: str
    id: str
    request: str | None
    """Name of the body's schema; None without a body."""
    response: str | None
    parameters: Mapping[str, Any]

    def check_query(self, query: Mapping[str, str]) -> None:
        """Raises ApiError 400 if a query parameter is unknown or of another type."""
        for name, value in query.items():
            known = self.parameters.get(name)
            if name in COMMON_QUERY or name.startswith("$"):
                continue
            if known is None or known["location"] != "query":
                raise _bad_request(
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query '
                    f"parameter. Field '{name}' could not be found in request message."
                )
            if known["type"] in ("integer", "boolean"):
                _check_query_value(name, known, value)

    def check_body(self, body: Any) -> None:
        """Raises ApiError 400 if the body does not fit its schema; a method without a schema
        accepts any."""
        if self.request is None:
            return
        if self.needs_body and not body:
            raise ApiError(400, "Required field 'resource' not specified", "required")
        needs = "" if self.id.endswith(".patch") else self.id
        _Checker(_document(self.api)["schemas"], needs).check({"$ref": self.request}, body, "")

    def check_answer(self, content: Any) -> None:
        """Raises AssertionError if the answer does not fit the document."""
        if self.response is None:
            assert content in (None, {}), f"{self.id} answers nothing"
            return
        check_answer(self.api, self.response, content)

    @property
    def needs_body(self) -> bool:
        """Whether the API refuses a call without a body."""
        return self.api.startswith("compute") and self.id.endswith((".insert", ".patch", ".update"))


@functools.cache
def method(api: str, http_method: str, path: str) -> Method:
    """The method at a path below the API's base address, such as `projects/{project}/zones`.

    Raises KeyError if the document has no such method."""
    try:
        found = _methods(api)[http_method, PLACEHOLDER.sub("{}", path)]
    except KeyError:
        raise KeyError(f"{api} has no {http_method} {path}") from None
    return Method(
        api,
        found["id"],
        found.get("request", {}).get("$ref"),
        found.get("response", {}).get("$ref"),
        found.get("parameters", {}),
    )


def check_body(api: str, schema: str, body: Any) -> None:
    """Raises ApiError 400 if the body does not fit the schema.

    `api` is a document's name (`compute.beta`), `schema` a name in it (`InstanceTemplate`).
    Nulls and empty objects pass anywhere, as they do in the real API.
    """
    _Checker(_document(api)["schemas"]).check({"$ref": schema}, body, "")


def check_answer(api: str, schema: str, content: Any) -> None:
    """Raises AssertionError if an answer does not fit the schema, including the form of each
    value."""
    for problem in _problems(_document(api)["schemas"], {"$ref": schema}, content, schema):
        raise AssertionError(problem)


def properties(api: str, schema: str) -> Mapping[str, Any]:
    """The fields of a schema."""
    return _document(api)["schemas"][schema].get("properties", {})


@functools.cache
def _document(api: str) -> dict[str, Any]:
    documents = resources.files("googleapiclient.discovery_cache") / "documents"
    return json.loads((documents / f"{api}.json").read_bytes())


@functools.cache
def _methods(api: str) -> dict[tuple[str, str], Any]:
    def walk(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from resource.get("methods", {}).values()
        for inner in resource.get("resources", {}).values():
            yield from walk(inner)

    return {
        (found["httpMethod"], PLACEHOLDER.sub("{}", found.get("flatPath") or found["path"])): found
        for found in walk(_document(api))
    }


def _bad_request(message: str, path: str = "") -> ApiError:
    """The refusal of Google's front end for a request that it cannot convert."""
    violation = {"description": message, **({"field": path} if path else {})}
    detail = {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [violation],
    }
    return ApiError(400, message, "badRequest", details=[detail])


def _check_query_value(name: str, schema: Mapping[str, Any], value: str) -> None:
    if schema["type"] == "boolean":
        fits = value.lower() in ("true", "false", "1", "0")
    else:
        fits = re.fullmatch(r"-?\d+", value) is not None
    if not fits:
        raise _wrong_type(name, PROTO_TYPES[schema.get("format", schema["type"])], value)
    if schema["type"] == "integer":
        low, high = int(schema.get("minimum", value)), int(schema.get("maximum", value))
        if not low <= int(value) <= high:
            limits = f"[{low}, {schema.get('maximum', 2**32 - 1)}]"
            raise ApiError(
                400,
                f"Invalid value for field '{name}': '{value}'. Values must be within the range: "
                f"{limits}",
                "invalidParameter",
            )


class _Checker:
    """Checks a body against a schema. With `method`, also checks the fields that this method
    requires."""

    def __init__(self, schemas: dict[str, Any], method: str = "") -> None:
        self._schemas = schemas
        self._method = method

    def check(self, schema: dict[str, Any], value: Any, path: str) -> None:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if value is None or value == {} or kind == "any":
            return
        if kind == "object":
            self._check_object(schema, value, path)
        elif kind == "array":
            if not isinstance(value, list):
                raise _wrong_type(path, "list", value)
            for index, item in enumerate(value):
                self.check(schema["items"], item, f"{path}[{index}]")
        else:
            _check_scalar(kind, schema, value, path)

    def _check_object(self, schema: dict[str, Any], value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise _wrong_type(path, "object", value)
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        for key, item in value.items():
            inner = f"{path}.{key}" if path else key
            known = properties.get(key, extra)
            if known is None and item is None:
                continue  # a null passes, even with an unknown name
            if known is None:
                at = _proto_path(path)
                where = f" at '{at}'" if path else ""
                raise _bad_request(
                    f'Invalid JSON payload received. Unknown name "{key}"{where}: '
                    "Cannot find field.",
                    at,
                )
            self.check(known, item, inner)
        for key, known in properties.items():
            needed = known.get("annotations", {}).get("required", ())
            if self._method in needed and value.get(key) is None:
                field = _resource(f"{path}.{key}" if path else key)
                raise ApiError(400, f"Required field '{field}' not specified", "required")


def _resource(path: str) -> str:
    """The name of a field in the API's own messages: below `resource`."""
    return f"resource.{path}" if path else "resource"


def _proto_path(path: str) -> str:
    """The name of a field in the front end's messages, which use protocol buffer names."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", path).lower()


def _check_scalar(kind: str, schema: dict[str, Any], value: Any, path: str) -> None:
    if not _is_of_type(kind, schema, value):
        raise _wrong_type(path, PROTO_TYPES.get(schema.get("format", kind), "TYPE_STRING"), value)
    known = schema.get("enum")
    if known and value not in known:
        raise ApiError(
            400,
            f"Invalid value for field '{_resource(path)}': '{value}'. Must be one of "
            f"{', '.join(known)}.",
        )
    pattern = schema.get("pattern")
    needed = "required" in schema.get("annotations", {})
    if pattern and (value or needed) and not re.fullmatch(pattern, str(value)):
        raise ApiError(
            400,
            f"Invalid value for field '{_resource(path)}': '{value}'. Must be a match of regex "
            f"'(?:{pattern})'",
        )


def _is_of_type(kind: str, schema: Mapping[str, Any], value: Any) -> bool:
    if not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        return False
    if kind not in ("integer", "number"):
        return True
    try:
        number = float(value)
    except ValueError:
        return False
    low, high = RANGES.get(schema.get("format", ""), (number, number))
    return kind == "number" or (number.is_integer() and low <= number <= high)


def _wrong_type(path: str, kind: str, value: Any) -> ApiError:
    path = _proto_path(path)
    return _bad_request(f"Invalid value at '{path}' ({kind}), {_shown(value)}", path)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _problems(
    schemas: dict[str, Any], schema: dict[str, Any], value: Any, path: str
) -> Iterator[str]:
    """Yields the differences between an answer and its schema."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"]]
    kind = schema.get("type", "any")
    if kind == "any":
        return
    if kind == "object":
        if not isinstance(value, dict):
            yield f"{path} is {_shown(value)}, must be an object"
            return
        extra = schema.get("additionalProperties")
        for key, item in value.items():
            known = schema.get("properties", {}).get(key, extra)
            if known is None:
                yield f"{path}.{key} is not in the schema"
            else:
                yield from _problems(schemas, known, item, f"{path}.{key}")
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{path} is {_shown(value)}, must be a list"
            return
        for index, item in enumerate(value):
            yield from _problems(schemas, schema["items"], item, f"{path}[{index}]")
    else:
        yield from _scalar_problems(kind, schema, value, path)


def _scalar_problems(kind: str, schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, ANSWER_TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        yield f"{path} is {_shown(value)}, must be of type {kind}"
        return
    form = ANSWER_FORMATS.get(schema.get("format", ""))
    if form and kind == "string" and not form.fullmatch(value):
        yield f"{path} is {_shown(value)}, must have the form {schema['format']}"
    known = schema.get("enum")
    if known and value not in known:
        yield f"{path} is {_shown(value)}, must be one of {', '.join(known)}"
