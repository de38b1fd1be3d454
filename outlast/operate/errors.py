"""Errors that the command line prints as one sentence and no traceback.

OperateError
├── EngineError     no engine that fits, or the engine ended with an error
├── CloudError      the local cloud did not start or does not answer
└── RehearsalError  the rehearsal could not be carried out (a broken guarantee is no error)
"""

import contextlib
from collections.abc import Iterator

from outlast import exits


class OperateError(Exception):
    """One sentence for a person; `exit_code` is the command's."""

    exit_code = 1


class EngineError(OperateError):
    """No engine that fits, or the engine ended with an error."""


class CloudError(OperateError):
    """The local cloud did not start or does not answer."""


class UsageError(OperateError):
    """What was asked for makes no sense; asking again changes nothing."""

    exit_code = exits.USAGE


class RehearsalError(OperateError):
    """The rehearsal could not be carried out."""


@contextlib.contextmanager
def reading(experiment: str) -> Iterator[None]:
    """Turns what the bucket answers against reading or writing into one sentence."""
    from outlast.run.head import HeadError
    from outlast.run.store import StoreError

    try:
        yield
    except (HeadError, StoreError) as error:
        raise OperateError(f"{experiment}: {error}") from None
