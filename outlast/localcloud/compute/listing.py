"""Pages, filters and sorts the lists of the Compute API."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from outlast.localcloud.base.errors import ApiError

Json = dict[str, Any]
Test = Callable[[Json], bool]

MAX_PAGE = 500
"""Items of a page, also if the query names no size."""
ITEMS = ("items", "managedInstances")
TOKEN = re.compile(
    r"""\s*(?:(?P<punct>[()]|!=|<=|>=|[=:<>])
    |"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<word>[^\s()=!<>:"']+))""",
    re.VERBOSE,
)
COMPARISONS = ("=", "!=", ":", "<", ">", "<=", ">=", "eq", "ne")


def page(content: Json, query: dict[str, str]) -> Json:
    """The page of a list that the query asks for; other answers are returned unchanged. Raises
    ApiError."""
    name = next((name for name in ITEMS if name in content), None)
    if name is None:
        return content
    by_scope = content[name] if isinstance(content[name], dict) else None
    found: list[Any] = content[name] if by_scope is None else list(_flat(by_scope))
    if query.get("filter"):
        test = parse_filter(query["filter"])
        found = [one for one in found if test(one if by_scope is None else one[2])]
    if by_scope is None:
        found = _ordered(found, query.get("orderBy", ""))
    size = int(query.get("maxResults") or MAX_PAGE) or MAX_PAGE
    first = _first(query.get("pageToken", ""), query)
    shown = found[first : first + size]
    answer = {**content, name: shown if by_scope is None else _scopes(by_scope, shown)}
    if first + size < len(found):
        answer["nextPageToken"] = _token(first + size, query)
    return answer


def nothing_in(scope: str) -> Json:
    """The content of a zone or region without items on this page of an aggregated list."""
    warning = {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{scope}' on this page.",
        "data": [{"key": "scope", "value": scope}],
    }
    return {"warning": warning}


def _flat(scopes: Json) -> Iterator[tuple[str, str, Json]]:
    """Yields the items of an aggregated list, each with its scope and the name of its kind."""
    for scope, content in scopes.items():
        for name, value in content.items():
            if isinstance(value, list):
                yield from ((scope, name, item) for item in value)


def _scopes(scopes: Json, found: list[tuple[str, str, Json]]) -> Json:
    """All scopes, with the items found in them."""
    kept: Json = {scope: nothing_in(scope) for scope in scopes}
    for scope, name, item in found:
        if "warning" in kept[scope]:
            kept[scope] = {name: []}
        kept[scope][name].append(item)
    return kept


def _ordered(items: list[Json], order: str) -> list[Json]:
    match order.split():
        case []:
            return items
        case ["creationTimestamp", "desc"]:
            return sorted(items, key=lambda i: str(i.get("creationTimestamp")), reverse=True)
        case ["name"]:
            return sorted(items, key=lambda i: str(i.get("name")))
    raise ApiError(
        400, f"Invalid value for field 'orderBy': '{order}'. Must be name or creationTimestamp desc"
    )


def _token(first: int, query: dict[str, str]) -> str:
    document = [first, query.get("filter", ""), query.get("orderBy", "")]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def _first(token: str, query: dict[str, str]) -> int:
    if not token:
        return 0
    try:
        padded = token + "=" * (-len(token) % 4)
        first, filtered, order = json.loads(base64.urlsafe_b64decode(padded))
        if [filtered, order] == [query.get("filter", ""), query.get("orderBy", "")]:
            return int(first)
    except (ValueError, TypeError):
        pass
    raise ApiError(400, f"Invalid value for field 'pageToken': '{token}'. The token is not valid.")


def parse_filter(text: str) -> Test:
    """The test of a filter expression. Raises ApiError 400 if it is not valid.

    `name = x`, `labels.a:*`, `(a = 1) (b != 2)`, `status = (…)` with AND, OR, NOT and brackets;
    `eq` and `ne` with a regular expression for the whole value.
    """
    tokens = list(_tokens(text))
    parser = _Parser(text, tokens)
    test = parser.alternatives()
    if parser.at != len(tokens):
        raise parser.refusal()
    return test


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = TOKEN.match(text, at)
        if not match:
            raise _refusal(text)
        at = match.end()
        kind = match.lastgroup or ""
        value = match[kind]
        if kind in ("double", "single"):
            # Other escapes are those of a regular expression.
            yield "text", re.sub(r"\\([\\\"'])", r"\1", value)
        else:
            yield kind, value


def _refusal(text: str) -> ApiError:
    return ApiError(
        400, f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
    )


class _Parser:
    """A recursive descent parser: OR binds less than AND, and AND less than NOT, as in the API."""

    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self._text = text
        self._tokens = tokens
        self.at = 0

    def refusal(self) -> ApiError:
        return _refusal(self._text)

    def alternatives(self) -> Test:
        tests = [self._all()]
        while self._take("word", "OR"):
            tests.append(self._all())
        return lambda item: any(test(item) for test in tests)

    def _all(self) -> Test:
        tests = [self._one()]
        while self._take("word", "AND") or not self._ends():
            tests.append(self._one())
        return lambda item: all(test(item) for test in tests)

    def _one(self) -> Test:
        if self._take("word", "NOT"):
            inner = self._one()
            return lambda item: not inner(item)
        if self._take("punct", "("):
            inner = self.alternatives()
            if not self._take("punct", ")"):
                raise self.refusal()
            return inner
        return self._comparison()

    def _comparison(self) -> Test:
        kind, field = self._next()
        _, operator = self._next()
        value_kind, value = self._next()
        if kind == "punct" or operator not in COMPARISONS or value_kind == "punct":
            raise self.refusal()
        if operator in ("eq", "ne"):
            try:
                pattern = re.compile(value)
            except re.error:
                raise self.refusal() from None
            return lambda item: (
                (operator == "eq")
                == any(pattern.fullmatch(found) for found in _values(item, field))
            )
        return lambda item: _compares(_values(item, field), operator, value)

    def _next(self) -> tuple[str, str]:
        if self.at >= len(self._tokens):
            raise self.refusal()
        self.at += 1
        return self._tokens[self.at - 1]

    def _take(self, kind: str, value: str) -> bool:
        if self.at < len(self._tokens) and self._tokens[self.at] == (kind, value):
            self.at += 1
            return True
        return False

    def _ends(self) -> bool:
        rest = self._tokens[self.at : self.at + 1]
        return rest in ([], [("punct", ")")], [("word", "OR")])


def _values(item: Any, field: str) -> list[str]:
    """Every value at a dotted path, through lists too, as text."""
    if field:
        head, _, rest = field.partition(".")
        if isinstance(item, list):
            return [value for inner in item for value in _values(inner, field)]
        if isinstance(item, dict) and field in item:  # a label may have dots
            return _values(item[field], "")
        return _values(item[head], rest) if isinstance(item, dict) and head in item else []
    if isinstance(item, list):
        return [value for inner in item for value in _values(inner, "")]
    if isinstance(item, bool):
        return [str(item).lower()]
    return [""] if isinstance(item, dict) else [str(item)]


def _compares(values: list[str], operator: str, wanted: str) -> bool:
    if operator == ":" and wanted == "*":
        return bool(values)
    if operator in ("=", "!="):
        pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
        return (operator == "=") == any(re.fullmatch(pattern, value) for value in values)
    if operator == ":":
        return any(wanted.strip("*").lower() in value.lower() for value in values)
    order = {
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
        "<=": lambda a, b: a <= b,
        ">=": lambda a, b: a >= b,
    }[operator]
    return any(order(*_comparable(value, wanted)) for value in values)


def _comparable(one: str, other: str) -> tuple[Any, Any]:
    try:
        return float(one), float(other)
    except ValueError:
        return one, other
