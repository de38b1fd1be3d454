"""An authorized call of the Compute API, and the helpers that handlers share."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute.links import Json
from outlast.localcloud.compute.listing import nothing_in

KEPT_REPEATS = 1000
TEMPLATE_REFERENCE = re.compile(
    r"(?:https?://[^/]+/(?:compute/)?(?:v1|beta)/)?(?:projects/(?P<project>[^/]+)/)?"
    r"(?:(?:global|regions/(?P<region>[^/]+))/)?instanceTemplates/(?P<name>[^/?]+)"
    r"(?:\?uniqueId=(?P<id>\d+))?"
)


@dataclass(frozen=True)
class Call:
    """An authorized request."""

    version: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Json
    sent: Json
    """The body with its nulls: a patch uses them to remove fields."""

    def __getitem__(self, name: str) -> str:
        return self.params[name]


Handler = Callable[[Call], Awaitable[Json]]
Row = tuple[str, str, Handler, str]
"""Method, path below a project, handler, permission."""


def place_of(call: Call) -> str:
    """The name of the zone or region of a call."""
    return call.params.get("region") or call["zone"]


def unknown(path: str) -> ApiError:
    """A 404 for a path that does not exist."""
    return ApiError(404, f"The resource '{path}' was not found")


def aggregated(
    kind: str, name: str, scopes: Mapping[str, Sequence[Any]], shown: Callable[[Any], Json]
) -> Json:
    """An aggregated list, by place; an empty one has a warning instead of items."""
    items = {
        scope: {name: list(map(shown, found))} if found else nothing_in(scope)
        for scope, found in scopes.items()
    }
    return {"kind": f"compute#{kind}AggregatedList", "items": items}


def listed(kind: str, items: Iterable[Json]) -> Json:
    """A list of one zone, region or the project."""
    return {"kind": f"compute#{kind}", "items": list(items)}


class Repeats:
    """Calls with a `requestId`: a repeated call does nothing and gets the first call's answer."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], asyncio.Task[Json]] = OrderedDict()

    async def once(self, key: tuple[str, ...], do: Callable[[], Coroutine[Any, Any, Json]]) -> Json:
        """Calls `do` if the key is unknown, and returns its answer. A refused call may be
        repeated."""
        task = self._known.get(key)
        if task is None:
            task = self._known[key] = asyncio.create_task(do())
            task.add_done_callback(lambda done: self._forget_refused(key, done))
            while len(self._known) > KEPT_REPEATS:
                self._known.popitem(last=False)
        return await asyncio.shield(task)

    def clear(self) -> None:
        """Forgets every call."""
        self._known.clear()

    def _forget_refused(self, key: tuple[str, ...], task: "asyncio.Task[Json]") -> None:
        if task.cancelled() or task.exception():
            self._known.pop(key, None)
