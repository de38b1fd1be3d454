"""What the dynamic providers share: their identity, messages to the engine, and the SDK's host.

Importing this module patches the host, if this process is one.
"""

import sys
import traceback
from types import SimpleNamespace
from typing import Any

from pulumi.dynamic import CheckFailure, ConfigureRequest, ResourceProvider

from outlast.base.log import log_to
from outlast.base.visible import visible
from outlast.cloud import credentials

_said: set[str] = set()


class Provider(ResourceProvider):
    """A dynamic provider that calls Google as the stack's own identity."""

    # It holds no secret, and people can repair a readable state by hand.
    serialize_as_secret_always = False

    def configure(self, req: ConfigureRequest) -> None:
        """Takes the identity from the stack's settings, which the engine passes."""
        credentials.use_settings({key: req.config.get(key) for key in credentials.SETTINGS})


def say(sentence: str) -> None:
    """Prints to the engine, which shows a plugin's stderr; each message once, because checks are
    repeated.
    """
    if sentence not in _said:
        _said.add(sentence)
        print(as_text(sentence), file=sys.stderr, flush=True)


def as_text(sentence: str) -> str:
    """Escapes a sentence for the engine: it may quote a bucket's records, and the engine passes
    control characters on and reads ``<{%red%}>`` as a colour.
    """
    return visible(sentence).replace("<{%", "< {%")


def failure(name: str, reason: str) -> CheckFailure:
    """The failures of a check, as text."""
    return CheckFailure(name, as_text(reason))


def _format_exc() -> str:
    """What the engine shows for an error: ours are sentences; of others, everything."""
    error = sys.exception()
    if type(error).__module__.partition(".")[0] == "outlast":
        return as_text(str(error))
    return traceback.format_exc()


def _cancel(_servicer: Any, _request: Any, _context: Any) -> Any:
    """Runs in the host's process, which does not know this module."""
    from google.protobuf import empty_pb2

    from outlast.cloud import bake

    bake.cancelled.set()
    return empty_pb2.Empty()


def repair_host() -> None:
    """Makes the SDK's host of dynamic providers send one sentence instead of a traceback, and end a
    bake when the engine is interrupted. Does nothing unless the host is the process's main
    module.
    """
    host = sys.modules["__main__"]
    spec = getattr(host, "__spec__", None)
    if spec is not None and spec.name == "pulumi.dynamic.__main__":
        vars(host)["traceback"] = SimpleNamespace(format_exc=_format_exc)
        log_to(say)
        # The server already holds a reference to the function.
        vars(host)["DynamicResourceProviderServicer"].Cancel.__code__ = _cancel.__code__


repair_host()
