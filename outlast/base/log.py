"""Where the log of this process goes.

Every module logs to its own logger below ``outlast``. Only a process that is Outlast's own shows
the lines: its main function calls `log_to` once. A library that a user's program imports sets up
nothing, so there the lines go where the program's own logging sends them.
"""

import logging
from collections.abc import Callable


def log_to(write: Callable[[str], object], redact: Callable[[str], str] = str) -> None:
    """Hand each line of the log to ``write``, once ``redact`` has taken the secrets out of it; no
    longer to what an earlier call named."""
    logger = logging.getLogger("outlast")
    for handler in [one for one in logger.handlers if isinstance(one, _Lines)]:
        logger.removeHandler(handler)
    handler = _Lines(write)
    handler.addFilter(_Redacted(redact))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


class _Redacted(logging.Filter):
    """Changes the record itself, so that the handlers after this one see no secret either."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._redact = redact

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), ()
        return True
