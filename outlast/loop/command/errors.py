"""Errors of a command that cannot start or is not complete."""

from collections.abc import Sequence

from outlast.loop.errors import LoopError


class CommandError(LoopError):
    """The command cannot start as written; the message says what to change."""


class CommandFailed(LoopError):
    """The command's own failure; ``code`` is its exit code as a shell gives it, ``lines`` the
    end of its stderr."""

    def __init__(self, code: int, lines: Sequence[str], continues: str) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        said = [line.strip() for line in lines if line.strip()]
        super().__init__(said[-1][:1000] if said else f"the command {how}")
        self.lines = list(lines)
        self.code = code if code >= 0 else 128 - code
        self.sentence = f"the command {how}; {continues}"


class NoOutput(LoopError):
    """The command exited with 0 but left no possible result."""


class ResultTooLarge(LoopError):
    """The files in the command's working folder are too large to become the result
    automatically."""
