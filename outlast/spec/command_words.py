"""Analyses a command before it runs: its fields in braces, and the scripts that it names.

The stack's settings and the process that runs the command share this code.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base.suggest import nearest
from outlast.spec.file_kinds import Kinds
from outlast.spec.globs import GlobError, compiled

QUIET_SEC = 10
"""Seconds without a change after which a checkpoint folder is complete."""
RESULT_GB_MAX = 20
"""Limit in GB for files of the working folder that become the result."""
FIELDS = ("data", "checkpoint", "result", "output_uri")
OPTIONAL = ("latest", "resume")
FIELD = re.compile(rf"(?<!\$)\{{({'|'.join(FIELDS)})\}}")
"""A field that always has a value."""
CHANGING = re.compile(
    r"(?<!\$)\{(?:(?P<latest>latest)(?::(?P<glob>[^{}:]*)(?::(?P<instead>[^{}]*))?)?"
    r"|resume:(?P<resume>[^{}]*))\}"
)
"""A field whose value depends on the checkpoint."""

_SAVES = ("checkpoint", "result")
_SAVING_WORDS = ("CHECKPOINT_DIR", "RESULT_DIR", "OUTPUT_URI", "output_uri", "outlast mark")
_LINE_SHOWN = 80
_SCRIPT_BYTES_MAX = 1 << 20
_SHELL = re.compile(r"#!.*\b(?:ba|da|k|z)?sh\b")
_SHELLS = re.compile(r"(?:ba|da|k|z)?sh")
_INSIDE = re.compile(r"""\$\([^()'"]*\)|`[^`]*`|'[^']*'|"[^"$`]*"|(?<!\S)#.*""")
"""Text that is not part of a line's pipe: substitutions, quoted text and comments."""
_PIPED = re.compile(
    r"\|&?\s*tee\b"
    r"|\b(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|uv run|poetry run)\s[^|;]*\|(?!\|)"
)
"""A training before a pipe, recognised by what writes its log or what starts it."""


@dataclass(frozen=True)
class CommandWords:
    """A command, judged by its words alone."""

    text: str
    """All its words."""
    data: tuple[str, ...] = ()
    """Local or gs:// paths."""
    kinds: Kinds = Kinds()
    checkpoint_dir: str = ""

    @property
    def fields(self) -> list[str]:
        """Its fields that always have a value."""
        return FIELD.findall(self.text)

    def refusal(self) -> str:
        """Why no machine can start it as written; empty if no reason is known."""
        if not self.data and "data" in self.fields:
            return (
                "command {data}: the run has no data; name it (outlast:dataPaths, or --data on "
                "this machine), or leave out {data}"
            )
        names = [path.rstrip("/").rpartition("/")[2] for path in self.data]
        for path, name in zip(self.data, names, strict=True):
            if names.count(name) > 1:
                return (
                    f"data {path}: another path ends in {name} too; name the folder that contains"
                    " both"
                )
        try:
            self.kinds.check()
            for found in CHANGING.finditer(self.text):
                if found["glob"]:
                    compiled(glob_of(found["glob"]))
        except GlobError as error:
            return str(error)
        return ""

    def near_misses(self) -> Iterator[str]:
        """Warnings about words in braces that look like a mistyped field."""
        known = [*FIELDS, *OPTIONAL]
        for word in dict.fromkeys(re.findall(r"(?<!\$)\{([a-z_]+)(?::[^{}]*)?\}", self.text)):
            near = nearest(word, known, cutoff=0.8)
            if near and word not in known:
                yield f"command {{{word}}}: is left as it is; did you mean {{{near[0]}}}?"

    def scripts(self, folder: Path | None) -> list[tuple[str, str]]:
        """The files in ``folder`` that its words name, with their texts."""
        return list(_scripts(self.text, folder))

    def lost_failures(self, folder: Path | None) -> Iterator[str]:
        """Warnings about bash scripts in ``folder`` that end with 0 if their training fails before
        a pipe.
        """
        for _, shown, in_bash in self._losing(folder):
            if in_bash:
                yield (
                    f"{shown} crash before the | looks like an end with 0: the script runs with "
                    "pipefail, and such an end is a failure; put set -eo pipefail in front of it"
                )

    def script_refusal(self, folder: Path | None) -> str:
        """Why such a script for another shell is refused: it would hide its failure. Empty if there
        is none.
        """
        for name, shown, in_bash in self._losing(folder):
            if not in_bash:
                return (
                    f"{shown} crash before the | would look like an end with 0, and its shell "
                    f"cannot detect it; run it with bash, as in bash -eo pipefail {name}"
                )
        return ""

    def _losing(self, folder: Path | None) -> Iterator[tuple[str, str, bool]]:
        """Scripts that hide a failed training: name, start of a sentence, whether bash runs it."""
        if "pipefail" in self.text:
            return
        words = list(words_of(self.text))
        for name, text in self.scripts(folder):
            for line in losing_lines(name, text)[:1]:
                shown = f"command: {name} has {line[:_LINE_SHOWN]!r} and no pipefail, so that a"
                yield name, shown, _runs_in_bash(words, name, text)

    def cannot_save(self, folder: Path | None) -> str | None:
        """A warning if neither the command's words nor the files in ``folder`` that they name show
        that it saves anything that can be kept; None otherwise.
        """
        names_field = any(field in _SAVES for field in self.fields)
        if self.checkpoint_dir or names_field or CHANGING.search(self.text):
            return None
        texts = [self.text, *(text for _, text in self.scripts(folder))]
        if any(word in text for text in texts for word in _SAVING_WORDS):
            return None
        return (
            "command: names neither {checkpoint} nor {result}, and its script names neither "
            "CHECKPOINT_DIR nor RESULT_DIR, so it starts from scratch after each interruption; let "
            "it save in {checkpoint}, or name the folder where it saves (--checkpoint-dir FOLDER, "
            "outlast:checkpointDir)"
        )


def glob_of(text: str) -> str:
    """The glob of a field: ``.pt`` matches names that end with it, ``checkpoint-`` names that begin
    with it, because a shell would expand asterisks.
    """
    if any(letter in text for letter in "*?["):
        return text
    if text.startswith("."):
        return f"*{text}"
    return f"{text}*" if text.endswith(("-", "_", "=")) else text


def words_of(line: str) -> Iterator[str]:
    """The words of a line, roughly: text between spaces, quotes and operators."""
    yield from (word for word in re.split(r"[\s;|&<>()'\"]+", line) if word)


def losing_lines(name: str, text: str) -> list[str]:
    """The lines of a shell script that hide a failed training behind a pipe, as far as can be
    guessed; empty if there are none, or if the file is not a shell script.
    """
    first = text.partition("\n")[0]
    if not (name.endswith((".sh", ".bash")) or _SHELL.match(first)):
        return []
    if re.search("pipefail|pipestatus", text, re.IGNORECASE):
        return []
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        own, before = line, ""
        while own != before:
            own, before = _INSIDE.sub("", own), own
        if _PIPED.search(own):
            found.append(" ".join(line.split()))
    return found


def _runs_in_bash(words: Sequence[str], name: str, text: str) -> bool:
    """Whether bash runs the script ``name``, one of a command's ``words``."""
    before = words[words.index(name) - 1] if words.index(name) else ""
    shell = before.rpartition("/")[2]
    if _SHELLS.fullmatch(shell):
        return shell == "bash"
    first = text.partition("\n")[0]
    return not _SHELL.match(first) or "bash" in first


def _scripts(text: str, folder: Path | None) -> Iterator[tuple[str, str]]:
    if folder is None:
        return
    for word in dict.fromkeys(words_of(text)):
        file = folder / word
        try:
            if file.is_file() and file.stat().st_size <= _SCRIPT_BYTES_MAX:
                yield word, file.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue
