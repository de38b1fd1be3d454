"""Errors that the command line prints as one sentence and no traceback.

OperateError
├── EngineError     no engine that fits, or the engine ended with an error
│   ├── NoEngine    it is not on PATH
│   ├── NoStack     the backend has no stack of that name
│   └── NoPlugin    Google's provider plugin is not installed
├── NotUp           a stack that declares nothing now
├── CloudError      the local cloud did not start or does not answer
└── RehearsalError  the rehearsal could not be carried out (a broken guarantee is not an error)
"""

import contextlib
from collections.abc import Iterator

from outlast.base import exits
from outlast.base.visible import VisibleError


class OperateError(VisibleError):
    """One sentence for a person; `exit_code` is the command's."""

    exit_code = 1


class EngineError(OperateError):
    """No engine that fits, or the engine ended with an error."""


class NoEngine(EngineError):
    """There is no `pulumi` on PATH."""


class NoStack(EngineError):
    """The backend has no stack of that name."""

    exit_code = exits.USAGE


class NoPlugin(EngineError):
    """Google's provider plugin is not installed."""


class NotUp(OperateError):
    """The stack declares nothing now: it was never up, or it was destroyed."""


class CloudError(OperateError):
    """The local cloud did not start or does not answer."""


class UsageError(OperateError):
    """The request makes no sense; repeating it changes nothing."""

    exit_code = exits.USAGE


class RehearsalError(OperateError):
    """The rehearsal could not be carried out."""


@contextlib.contextmanager
def reading(experiment: str) -> Iterator[None]:
    """Converts errors of reading or writing the bucket into one sentence."""
    from outlast.bucket.errors import RestoreError
    from outlast.bucket.head import HeadError
    from outlast.bucket.store import StoreError

    try:
        yield
    except (HeadError, RestoreError, StoreError) as error:
        raise OperateError(about(experiment, error)) from None


def about(name: str, error: Exception) -> str:
    """The error's sentence, with the name of the run (unless it begins with the place) and the
    remedy.
    """
    from outlast.bucket.head import HeadUnreadable

    said = str(error)
    if isinstance(error, HeadUnreadable):
        said += f"; outlast repair {name} repairs it"
    return said if said.startswith("gs://") else f"{name}: {said}"
