"""Finds failures that a bash script of the command ignores: its training crashes, but the script
continues and ends with 0.

Each bash that runs a script of the working folder first reads our file (BASH_ENV), which notes
commands whose failure the script does not handle (bash's ERR trap). If one of them is a training,
the script's exit code 0 means nothing. The shell otherwise behaves as usual, except that a script
that pipes a training into another program runs with pipefail.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.spec.command_words import losing_lines

_WRITTEN_MAX = 1 << 20
"""The most bytes of notes to read."""
_SIGPIPE = 141
_BEFORE = (
    r"(?:\(\s*|[A-Za-z_]\w*=\S*\s+"
    r"|(?:env|exec|nice|nohup|srun|stdbuf|time|timeout)\s+(?:-\S+\s+|\d\S*\s+)*)*"
)
_TRAINS = re.compile(
    rf"{_BEFORE}(?:[\w./~+${{}}\"-]*(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun)"
    r"|uv run|poetry run|wait|\S+\.py|\"?\$\{?PYTHON\w*\}?\"?)(?=\s|$)"
)
"""The beginning of a command that starts a training or waits for one."""
_SCRIPT = """\
if [ -r "${OUTLAST_OLD_BASH_ENV-}" ]; then . "$OUTLAST_OLD_BASH_ENV"; fi
if [ -z "${BASH_EXECUTION_STRING+x}" ]; then case "$0" in %(scripts)s)
set -E
case "$0" in %(piped)s) set -o pipefail;; esac
__outlast_failed() {
  # What is within $() gives a value; a failure of ( ) is its caller's, too.
  [ "$BASH_SUBSHELL" = 0 ] || return
  local IFS=' '
  { printf '%%s\\0' F "$$" "$1" "$2" "$3" "${*:4}"; printf '\\n'; } >> %(notes)s
}
trap '__outlast_failed "$LINENO" "${BASH_SOURCE[0]-}" "$BASH_COMMAND" "${PIPESTATUS[@]}"' ERR
trap 'printf "E\\0%%s\\0%%s\\0\\n" "$$" "$?" >> %(notes)s' EXIT
;; esac; fi
"""


@dataclass(frozen=True)
class Failure:
    """A training that failed unnoticed."""

    script: str
    line: int
    command: str
    code: int

    def __str__(self) -> str:
        return (
            f"{self.script} line {self.line}: {self.command!r} failed with {self.code}, and the "
            "script continued and ended with 0; start it with set -eo pipefail, or put || true "
            "behind what may fail"
        )


class Hidden:
    """Notes on one command's bash scripts, in our own ``folder``; the command runs in ``cwd``."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self._file = folder / "bash-env"
        self._notes = folder / "failed-commands"
        self._cwd = cwd

    def environment(self, scripts: Iterable[tuple[str, str]], old: str) -> Mapping[str, str]:
        """Environment variables for the command. ``scripts`` are those that its words name, with
        their texts; ``old`` is the BASH_ENV that it would have otherwise."""
        piped = [name for name, text in scripts if losing_lines(name, text)]
        names = [shlex.quote(name) for name in piped] + [f"*/{shlex.quote(n)}" for n in piped]
        self._file.write_text(
            _SCRIPT
            % {
                # Only scripts inside the working folder, which leaves out wrappers such as pyenv's.
                "scripts": f"[!/]*|{shlex.quote(str(self._cwd))}/*",
                "piped": "|".join(names) or "''",
                "notes": shlex.quote(str(self._notes)),
            }
        )
        return {"BASH_ENV": str(self._file), **({"OUTLAST_OLD_BASH_ENV": old} if old else {})}

    def found(self, pid: int) -> Failure | None:
        """The last training that failed unnoticed in a script that ended with 0, like the command
        ``pid``."""
        try:
            with self._notes.open("rb") as file:
                data = file.read(_WRITTEN_MAX)
        except OSError:
            return None
        notes = [line.split("\0") for line in data.decode(errors="replace").split("\0\n")]
        ended = {each[1]: each[2] for each in notes if each[0] == "E" and len(each) == 3}
        ended[str(pid)] = "0"
        failed = [
            self._failure(each)
            for each in notes
            if each[0] == "F" and len(each) == 6 and ended.get(each[1]) == "0"
        ]
        return next((each for each in reversed(failed) if each is not None), None)

    def _failure(self, note: list[str]) -> Failure | None:
        _, _, line, script, command, statuses = note
        codes = [int(code) for code in statuses.split() if code.isdigit()]
        try:
            text = (self._cwd / script).read_text(errors="replace")
        except (OSError, ValueError):
            return None
        if not codes or not line.isdigit() or "$?" in text:  # it checks exit codes itself
            return None
        shown = " ".join(command.split())[:500]
        if len(codes) == 1:
            return (
                Failure(script, int(line), shown[:200], codes[0]) if _TRAINS.match(shown) else None
            )
        code = next((code for code in codes if code not in (0, _SIGPIPE)), 0)
        whole = next((each for each in losing_lines(script, text) if shown in each), "")
        return Failure(script, int(line), whole[:200], code) if code and whole else None
