"""The log's lines, for tests of what people read."""

import logging
import weakref


class Lines(list[str]):
    __slots__ = ("__weakref__", "below")

    def __init__(self, below: str) -> None:
        super().__init__()
        self.below = below


_LISTENERS: "list[weakref.ref[Lines]]" = []


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        for lines in [listener() for listener in _LISTENERS]:
            if lines is not None and f"{record.name}.".startswith(f"{lines.below}."):
                lines.append(record.getMessage())


def log_lines(below: str = "outlast") -> list[str]:
    """A list that every line of the loggers from `below` down, from now on and of any thread, is
    added to, for as long as the list is used."""
    logger = logging.getLogger("outlast")
    logger.setLevel(logging.INFO)
    if not any(isinstance(one, _Handler) for one in logger.handlers):
        logger.addHandler(_Handler())
    lines = Lines(below)
    _LISTENERS.append(weakref.ref(lines, _LISTENERS.remove))
    return lines
