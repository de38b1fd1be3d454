"""What the dynamic providers share: how they tell the engine something, and the SDK's host of them.

Importing this module fits the host, if there is one.
"""

import sys
import traceback
from types import SimpleNamespace
from typing import Any

from pulumi.dynamic import CheckFailure

from outlast.base.visible import visible

_said: set[str] = set()


def say(sentence: str) -> None:
    """To the engine, which shows a plugin's stderr; once a process, checks being repeated."""
    if sentence not in _said:
        _said.add(sentence)
        print(as_text(sentence), file=sys.stderr, flush=True)


def as_text(sentence: str) -> str:
    """A sentence that the engine shows as it is: it may quote a bucket's records, and the engine
    passes control characters on and takes ``<{%red%}>`` for a colour."""
    return visible(sentence).replace("<{%", "< {%")


def failure(name: str, reason: str) -> CheckFailure:
    """What a check says against an input, as text."""
    return CheckFailure(name, as_text(reason))


def _format_exc() -> str:
    """What the engine shows of an error: ours are sentences, of others it is all there is."""
    error = sys.exception()
    if type(error).__module__.partition(".")[0] == "outlast":
        return as_text(str(error))
    return traceback.format_exc()


def _cancel(_servicer: Any, _request: Any, _context: Any) -> Any:
    """In the host's place: knows nothing of this module."""
    from google.protobuf import empty_pb2

    from outlast.cloud import bake

    bake.cancelled.set()
    return empty_pb2.Empty()


def mend_host() -> None:
    """Lets the SDK's host of dynamic providers, which sends a traceback whatever a provider raises
    and does nothing when the engine is interrupted, send the sentence and end a bake. The host is
    the process's main module; elsewhere nothing is done."""
    host = sys.modules["__main__"]
    spec = getattr(host, "__spec__", None)
    if spec is not None and spec.name == "pulumi.dynamic.__main__":
        vars(host)["traceback"] = SimpleNamespace(format_exc=_format_exc)
        # The server holds the function itself by now.
        vars(host)["DynamicResourceProviderServicer"].Cancel.__code__ = _cancel.__code__


mend_host()
