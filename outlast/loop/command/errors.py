"""What is wrong with a command as a person wrote it."""

from outlast.loop.errors import LoopError


class CommandError(LoopError):
    """The command cannot be started as it is written; the message says what to change."""
