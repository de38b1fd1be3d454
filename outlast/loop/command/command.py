"""What is run, and where: the words of a command, and what is put into them."""

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
    """What is run, and where."""

    argv: tuple[str, ...] = ()
    """The program and its arguments; empty if it is a shell line."""
    line: str = ""
    """A line for the shell."""
    home: Path | None = None
    """This run's folder on this machine, for its checkpoint, its result and its files; no other
    run has it. The path is the same in all attempts, because checkpoints often hold their own
    path. None: in the supervisor's own folder."""
    source: Path | None = None
    """A folder that is copied for the command to run in; None: an empty one, or ``cwd``."""
    folder: str = ""
    """Below ``source``, where the command runs."""
    cwd: Path | None = None
    """Where it runs, without ``source``."""
    programs: Path | None = None
    """A folder of programs that goes before the PATH: the command's own environment."""
    data: tuple[str, ...] = ()
    """Local or gs:// paths. Of one, ``DATA_DIR`` and ``{data}`` are its local path; of several, a
    folder with a link to each by its last name."""
    quiet_sec: float = QUIET_SEC
    kinds: Kinds = Kinds()
    """What counts as a checkpoint, a log or a by-product."""
    checkpoint_dir: str = ""
    """A folder that is CHECKPOINT_DIR as it is, seen from where the command runs; empty for one of
    the run's own."""
    allow_no_output: bool = False
    """Whether exit 0 is the end though nothing was saved."""
    result_gb_max: float = RESULT_GB_MAX
    rerun: int = 0
    """A higher number trains the same again."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes the run this run: the words, as they were written, and the data."""
        data = {"data": list(self.data)} if self.data else {}
        rerun = {"rerun": self.rerun} if self.rerun else {}
        return {"command": self.line or list(self.argv), **data, **rerun}

    @property
    def text(self) -> str:
        """All its words."""
        return " ".join([self.line, *self.argv])

    @property
    def words(self) -> CommandWords:
        """What can be said of it by its words alone."""
        return CommandWords(self.text, self.data, self.kinds, self.checkpoint_dir)

    def check(self) -> None:
        """CommandError if no machine can start it as it is written."""
        if why := self.words.refusal():
            raise CommandError(why)

    def check_program(self) -> None:
        """CommandError if this machine has no such program."""
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
        """The words with their fields filled in; braces that are none are left alone."""
        if self.line:
            line = fields.fill_line(self.line, values, checkpoint, self.kinds)
            return [*shell_of(line), line]
        return fields.fill_words(self.argv, values, checkpoint, self.kinds)

    @property
    def names_result(self) -> bool:
        """Whether its words say where its result is kept."""
        return "result" in self.words.fields or "RESULT_DIR" in self.text

    def lost_failures(self, folder: Path | None) -> Iterator[str]:
        """As `CommandWords.lost_failures`; CommandError for a script whose failure nothing can
        see."""
        if why := self.words.script_refusal(folder):
            raise CommandError(why)
        return self.words.lost_failures(folder)


def _check_first_line(program: str, file: Path) -> None:
    """CommandError for a text that the system cannot start, for want of what reads it."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(256)
    except OSError:
        return  # a program that may be run and not read
    if begin.startswith(b"#!"):
        # As the system does it: a line end of Windows is part of the name.
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
    """Why a program did not start, as a sentence."""
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
