"""What is run, and where: the words of a command, and what is put into them."""

import difflib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.loop.command.globs import GlobError, compiled
from outlast.loop.command.kinds import Kinds
from outlast.loop.command.listing import look
from outlast.loop.command.rhythm import numbers_in
from outlast.loop.errors import LoopError

QUIET_SEC = 10.0
RESULT_GB_MAX = 20.0
"""Files of the working folder become the result up to this size."""

FIELDS = ("data", "checkpoint", "result", "output_uri")
OPTIONAL = ("latest", "resume")
_FIELD = re.compile(rf"(?<!\$)\{{({'|'.join(FIELDS)})\}}")
_OPTIONAL = re.compile(
    r"(?<!\$)\{(?:(?P<latest>latest)(?::(?P<glob>[^{}:]*)(?::(?P<instead>[^{}]*))?)?"
    r"|resume:(?P<resume>[^{}]*))\}"
)
_FLAG_BEFORE = re.compile(r"(?:^|(?<=\s))(?P<flag>--?[A-Za-z][\w-]*)(?P<join>=|\s+)$")
_SAVES = ("checkpoint", "result")
_SAVING_WORDS = ("CHECKPOINT_DIR", "RESULT_DIR", "OUTPUT_URI", "output_uri", "outlast mark")
_SCRIPT_BYTES_MAX = 1 << 20


class CommandError(LoopError):
    """The command cannot be started as it is written; the message says what to change."""


@dataclass(frozen=True)
class Command:
    """What is run, and where."""

    argv: tuple[str, ...] = ()
    """The program and its arguments; empty where it is a shell line."""
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

    def check(self) -> None:
        """CommandError where it cannot be started as it is written, on whatever machine."""
        if not self.data and "data" in _FIELD.findall(self.text):
            raise CommandError(
                "command {data}: the run has no data; name it (outlast:dataPaths, or --data on "
                "this machine), or leave {data} out"
            )
        names = [path.rstrip("/").rpartition("/")[2] for path in self.data]
        for path, name in zip(self.data, names, strict=True):
            if names.count(name) > 1:
                raise CommandError(
                    f"data {path}: another one ends in {name} too; name the folder that both are in"
                )
        try:
            self.kinds.check()
            for found in _OPTIONAL.finditer(self.text):
                if found["glob"]:
                    compiled(_glob_of(found["glob"]))
        except GlobError as error:
            raise CommandError(str(error)) from None

    def near_misses(self) -> Iterator[str]:
        """Sentences about words in braces that look like a mistyped field."""
        known = [*FIELDS, *OPTIONAL]
        for word in dict.fromkeys(re.findall(r"(?<!\$)\{([a-z_]+)(?::[^{}]*)?\}", self.text)):
            near = difflib.get_close_matches(word, known, n=1, cutoff=0.8)
            if near and word not in known:
                yield f"command {{{word}}}: stays as it is; did you mean {{{near[0]}}}?"

    def check_program(self) -> None:
        """CommandError where this machine has no such program."""
        if self.line:
            shell_of(self.line)
            return
        if _FIELD.search(self.argv[0]):
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
        """The words with their fields filled in; braces that are none are left alone.

        ``{latest:GLOB}`` is the newest file or folder below ``checkpoint`` that matches. Where
        there is none, the word goes, and the flag before it; ``{latest:GLOB:WORD}`` is WORD then.
        ``{resume:WORDS}`` is WORDS where there is a checkpoint's file, and nothing before.
        """
        if self.line:
            line = _fill_line(self.line, checkpoint, self.kinds)
            line = _FIELD.sub(lambda match: shlex.quote(values[match[1]]), line)
            return [*shell_of(line), line]
        words = _fill_words(self.argv, checkpoint, self.kinds)
        return [_FIELD.sub(lambda match: values[match[1]], word) for word in words]

    def cannot_save(self, folder: Path | None) -> str | None:
        """A sentence where nothing says that the command saves what could be kept: neither its
        words nor the files in ``folder`` that they name. None where something does."""
        names_field = any(field in _SAVES for field in _FIELD.findall(self.text))
        if self.checkpoint_dir or names_field or _OPTIONAL.search(self.text):
            return None
        texts = [self.text, *(_script_texts(self.text, folder) if folder is not None else ())]
        if any(word in text for text in texts for word in _SAVING_WORDS):
            return None
        return (
            "command: names neither {checkpoint} nor {result}, and its script names neither "
            "CHECKPOINT_DIR nor RESULT_DIR, so it starts from scratch after each interruption; let "
            "it save in {checkpoint}, or name the folder where it saves (--checkpoint-dir FOLDER, "
            "outlast:checkpointDir)"
        )


def newest(checkpoint: Path, text: str, kinds: Kinds) -> str | None:
    """The newest file or folder of a checkpoint folder that matches the text of ``{latest:…}``;
    every file that is a checkpoint's where it is empty."""
    listing = look(checkpoint, kinds).chosen()
    if not text:
        found = {name: seen.mtime_ns for name, seen in listing.state.items()}
    else:
        pattern = compiled(_glob_of(text))
        entries = {name: seen.mtime_ns for name, seen in listing.files.items()}
        for folder in listing.folders:
            inside = [at for name, at in entries.items() if name.startswith(f"{folder}/")]
            if inside:  # an empty one is none to resume from
                entries = {**entries, folder: max(inside)}
        found = {
            name: at
            for name, at in entries.items()
            if pattern.fullmatch(name) and not _is_inside_match(name, pattern)
        }
    if not found:
        return None
    name = max(found, key=lambda name: (found[name], numbers_in(name), name))
    return str(checkpoint / name)


def _is_inside_match(name: str, pattern: re.Pattern[str]) -> bool:
    """Whether a folder on the way to it matches already."""
    parts = name.split("/")
    return any(pattern.fullmatch("/".join(parts[:count])) for count in range(1, len(parts)))


def _glob_of(text: str) -> str:
    """``.pt`` is what ends so, ``checkpoint-`` what begins so: a shell eats no asterisks then."""
    if any(letter in text for letter in "*?["):
        return text
    if text.startswith("."):
        return f"*{text}"
    return f"{text}*" if text.endswith(("-", "_", "=")) else text


def _value(found: re.Match[str], checkpoint: Path, kinds: Kinds) -> str | None:
    if found["resume"] is not None:
        return found["resume"] if look(checkpoint, kinds).chosen().state else None
    return newest(checkpoint, found["glob"] or "", kinds) or found["instead"]


def _fill_words(words: tuple[str, ...], checkpoint: Path, kinds: Kinds) -> list[str]:
    filled: list[str] = []
    for word in words:
        values = [(found, _value(found, checkpoint, kinds)) for found in _OPTIONAL.finditer(word)]
        if any(value is None for _, value in values):
            is_whole = _OPTIONAL.fullmatch(word) and values[0][0]["resume"] is None
            if is_whole and filled and re.fullmatch(r"--?[A-Za-z][\w-]*", filled[-1]):
                filled.pop()  # the flag that it was the value of
            continue
        for found, value in reversed(values):
            word = f"{word[: found.start()]}{value}{word[found.end() :]}"
        filled.append(word)
    return filled


def _fill_line(line: str, checkpoint: Path, kinds: Kinds) -> str:
    for found in reversed(list(_OPTIONAL.finditer(line))):
        value = _value(found, checkpoint, kinds)
        begin = found.start()
        if value is not None:
            is_path = found["resume"] is None
            line = f"{line[:begin]}{shlex.quote(value) if is_path else value}{line[found.end() :]}"
            continue
        if found["resume"] is None and (flag := _FLAG_BEFORE.search(line[:begin])):
            begin = flag.start()
        line = line[:begin] + line[found.end() :]
    return line


def shell_of(line: str) -> list[str]:
    """The shell of a line. A command before a | that fails is the line's failure, too: else a
    crash piped into tee would be an end with 0. CommandError where no shell here has that."""
    bash = shutil.which("bash") or "/bin/bash"
    if os.access(bash, os.X_OK):
        return [bash, "-o", "pipefail", "-c"]
    asked = subprocess.run(
        ["/bin/sh", "-o", "pipefail", "-c", ":"], stdin=subprocess.DEVNULL, capture_output=True
    )
    if asked.returncode == 0:
        return ["/bin/sh", "-o", "pipefail", "-c"]
    if "|" in line:
        raise CommandError(
            "command: the line has a | and this machine no bash, so that a failure before the | "
            "would pass for success; install bash, or write the line without it"
        )
    return ["/bin/sh", "-c"]


def _script_texts(text: str, folder: Path) -> Iterator[str]:
    """The texts of the files that the words name."""
    for word in re.split(r"[\s;|&<>()'\"]+", text):
        file = folder / word
        try:
            if word and file.is_file() and file.stat().st_size <= _SCRIPT_BYTES_MAX:
                yield file.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue


def _check_first_line(program: str, file: Path) -> None:
    """CommandError for a text that the system cannot start, for want of what reads it."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(256)
    except OSError:
        return  # a program that may be run and not read
    if begin.startswith(b"#!"):
        words = begin[2:].partition(b"\n")[0].decode(errors="replace").split()
        if words and not os.path.exists(words[0]):
            raise CommandError(
                f"command {program!r}: its first line names {words[0]}, which is not there; mend "
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
        return f"command {program!r}: its folder {cwd} is not there"
    if isinstance(error, FileNotFoundError):
        return (
            f"command {program!r}: no such program on the PATH or in {cwd}; check the spelling, "
            "and that the machine has it"
        )
    return f"command {program!r}: cannot be started ({error.strerror}); check the file"
