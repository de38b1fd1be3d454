"""A command: its words, the values for their fields, and where it runs."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.loop.command import fields
from outlast.loop.command.errors import CommandError
from outlast.loop.command.shell import shell_of
from outlast.spec.command_words import FIELD, QUIET_SEC, RESULT_GB_MAX, CommandWords
from outlast.spec.file_kinds import Kinds


@dataclass(frozen=True)
class Command:
    """A command and where it runs."""

    argv: tuple[str, ...] = ()
    """The program and its arguments; empty for a shell line."""
    line: str = ""
    """A shell line."""
    home: Path | None = None
    """This run's own folder on this machine, for its checkpoint, its result and its files. The path
    is the same in all attempts, because checkpoints often contain their own path. None: a folder
    inside the supervisor's."""
    source: Path | None = None
    """A folder to copy, whose copy the command runs in; None: an empty folder, or ``cwd``."""
    folder: str = ""
    """The folder below ``source`` in which the command runs."""
    cwd: Path | None = None
    """The working directory if there is no ``source``."""
    programs: Path | None = None
    """A folder to put first on the PATH: the command's own environment."""
    data: tuple[str, ...] = ()
    """Local or gs:// paths. For one path, ``DATA_DIR`` and ``{data}`` are its local path; for
    several, a folder with a link to each by its last name."""
    quiet_sec: float = QUIET_SEC
    kinds: Kinds = Kinds()
    """Which files count as checkpoints, logs or by-products."""
    checkpoint_dir: str = ""
    """The user's folder to use as CHECKPOINT_DIR, relative to the working directory; empty for a
    folder of the run."""
    allow_no_output: bool = False
    """Whether exit 0 completes the run even if nothing was saved."""
    result_gb_max: float = RESULT_GB_MAX
    rerun: int = 0
    """A higher number makes a new run of the same command."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values that identify the run: the words as written, and the data."""
        data = {"data": list(self.data)} if self.data else {}
        rerun = {"rerun": self.rerun} if self.rerun else {}
        return {"command": self.line or list(self.argv), **data, **rerun}

    @property
    def text(self) -> str:
        """The whole command as text."""
        return " ".join([self.line, *self.argv])

    @property
    def words(self) -> CommandWords:
        """The words, for questions that they alone answer."""
        return CommandWords(self.text, self.data, self.kinds, self.checkpoint_dir)

    def check(self) -> None:
        """Raise CommandError if no machine can start it as written."""
        if why := self.words.refusal():
            raise CommandError(why)

    def check_program(self) -> None:
        """Raise CommandError if this machine lacks the program."""
        if self.line:
            shell_of(self.line)
            return
        if FIELD.search(self.argv[0]):
            return
        program, cwd = self.argv[0], self.cwd or Path.cwd()
        named = cwd / program if os.sep in program else None
        found = shutil.which(program if named is None else str(named))
        if found is not None:
            _check_first_line(program, Path(found))
        elif named is not None and named.is_file():
            raise CommandError(
                f"command {program!r}: is not executable; write what runs it before it, as in "
                f"python {program}, or make it executable (chmod +x)"
            )
        else:
            raise CommandError(not_started(program, FileNotFoundError(), cwd))

    def filled(self, values: Mapping[str, str], checkpoint: Path) -> list[str]:
        """The words with their fields filled in; other braces stay unchanged."""
        if self.line:
            line = fields.fill_line(self.line, values, checkpoint, self.kinds)
            return [*shell_of(line), line]
        return fields.fill_words(self.argv, values, checkpoint, self.kinds)

    @property
    def names_result(self) -> bool:
        """Whether its words name the place of its result."""
        return "result" in self.words.fields or "RESULT_DIR" in self.text

    def lost_failures(self, folder: Path | None) -> Iterator[str]:
        """Like `CommandWords.lost_failures`; CommandError for a script whose failure cannot be
        detected."""
        if why := self.words.script_refusal(folder):
            raise CommandError(why)
        return self.words.lost_failures(folder)


def _check_first_line(program: str, file: Path) -> None:
    """Raise CommandError for a script that the system cannot start because its interpreter is
    missing."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(256)
    except OSError:
        return  # an executable without read permission
    if begin.startswith(b"#!"):
        # Like the system: a Windows line end is part of the name.
        line = begin[2:].partition(b"\n")[0].decode(errors="replace").strip(" \t")
        name = re.split("[ \t]", line)[0]
        if name.endswith("\r") and os.path.exists(name.removesuffix("\r")):
            raise CommandError(
                f"command {program!r}: its lines end as on Windows (CRLF), and there is no "
                f"{name!r}; save it with the line ends of Unix, as dos2unix does"
            )
        if name and not os.path.exists(name):
            raise CommandError(
                f"command {program!r}: its first line names {name}, which does not exist; correct "
                "that line"
            )
    elif b"\0" not in begin:
        raise CommandError(
            f"command {program!r}: is a text without a line #! that says what runs it; write "
            f"that before it, as in python {program}"
        )


def not_started(program: str, error: OSError, cwd: Path) -> str:
    """A sentence that says why a program did not start."""
    if not cwd.is_dir():
        return f"command {program!r}: its folder {cwd} does not exist"
    if isinstance(error, FileNotFoundError):
        try:
            if found := shutil.which(program if os.sep not in program else str(cwd / program)):
                _check_first_line(program, Path(found))
        except CommandError as why:
            return str(why)
        return (
            f"command {program!r}: no such program on the PATH or in {cwd}; check the spelling, "
            "and that the machine has it"
        )
    return f"command {program!r}: cannot be started ({error.strerror}); check the file"
