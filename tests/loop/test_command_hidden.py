"""A bash script that continues after its training crashed: its exit 0 is not the training's."""

import shutil
import sys
from pathlib import Path

import pytest

from outlast.loop.command.command import Command
from outlast.loop.command.errors import CommandError
from outlast.protocol import Complete
from tests.loop.test_command import Place, place

__all__ = ["place"]

CRASH = f"{sys.executable} -c 'raise SystemExit(3)'"
SAVE = (
    f"""{sys.executable} -c 'import os; open(os.environ["CHECKPOINT_DIR"] + "/a", "w")'"""
    "; outlast mark"
)

IGNORED = {
    "before a pipe": f"{CRASH} 2>&1 | tee train.log",
    "before a pipe, and more after it": f"{CRASH} |& tee train.log\necho finished",
    "before a pipe, over several lines": f"{CRASH} \\\n  2>&1 \\\n  | tee train.log\necho finished",
    "a group before a pipe": "{ echo begin; false; } | tee train.log",
    "without a pipe": f"{CRASH}\necho finished",
    "in a function": f"train() {{ {CRASH}; echo trained; }}\ntrain",
    "in a subshell": f"( {CRASH} )\necho finished",
    "by a variable": f"export PYTHON={sys.executable}\n$PYTHON -c 'raise SystemExit(3)'\necho x",
    "by a folder in a variable": f"A={Path(sys.executable).parent}\n$A/python -c 'exit(3)'\necho x",
    "with variables and nohup": f"OMP_NUM_THREADS=1 nohup {CRASH}\necho finished",
    "in the background": f"{CRASH} &\nwait $!\necho finished",
    "in a script of the script": "bash inner.sh\necho finished",
    "with its own trap": f"trap 'echo bye' EXIT\n{CRASH}\necho finished",
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_unnoticed_failure_counts_as_a_failure(place: Place, name: str) -> None:
    source = place.folder / "source"
    source.mkdir()
    (source / "inner.sh").write_text(f"{CRASH}\necho trained\n")
    (source / "run.sh").write_text(f"#!/bin/bash\n{SAVE}\n{IGNORED[name]}\n")
    place.options += ["--source", str(source)]
    code, _, err = place.run("--", "bash", "run.sh")
    script = "inner.sh" if "inner" in IGNORED[name] else "run.sh"
    assert code == (1 if "false" in IGNORED[name] else 3), err
    if not IGNORED[name].endswith("| tee train.log"):  # else that is the script's exit code
        assert f"the command exited with 0, but {script} line " in err
        assert "start it with set -eo pipefail" in err
    assert not place.supervisor.of(Complete)
    assert place.saved() == {"a": ""}, "what it had saved is kept"


ASKED_FOR = {
    "or true": f"{CRASH} || true",
    "a condition": f"if {CRASH}; then echo yes; fi",
    "until it works": f"until [ -e once ]; do touch once; {CRASH} || continue; done",
    "a subshell with a fallback": f"( {CRASH} ) || echo no",
    "a function with a fallback": f"check() {{ {CRASH}; }}\ncheck || echo no",
    "a value with a fallback": f"n=$({CRASH}) || n=0",
    "a value": f"n=$({CRASH})\necho $n",
    "a value by a variable": f"PY={sys.executable}\nn=$($PY -c 'raise SystemExit(3)')",
    "its exit code is looked at": f"{CRASH}\nif [ $? -ne 0 ]; then echo no; fi",
    "others than trainings": "ls nothing 2>/dev/null\ngrep x /dev/null\nfalse",
    "others than trainings in pipes": "ls nothing 2>/dev/null | tail -1\nyes | head -1",
    "a script that fails and is called again": "until bash again.sh; do :; done",
    "a wrapper elsewhere": "wrapper",
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_failure_that_the_script_handles_does_not_count(place: Place, name: str) -> None:
    source, programs = place.folder / "source", place.folder / "bin"
    source.mkdir()
    programs.mkdir()
    (source / "again.sh").write_text(f"[ -e once ] && exit\ntouch once\n{CRASH}\n")
    (source / "run.sh").write_text(f"#!/bin/bash\n{SAVE}\n{ASKED_FOR[name]}\n{SAVE}\n")
    (programs / "wrapper").write_text(f"#!/bin/bash\n{CRASH}\nexit 0\n")
    (programs / "wrapper").chmod(0o755)
    (source / "run.sh").write_text(
        f"#!/bin/bash\nPATH={programs}:$PATH\n{SAVE}\n{ASKED_FOR[name]}\n{SAVE}\n"
    )
    place.options += ["--source", str(source)]
    code, _, err = place.run("--", "bash", "run.sh")
    assert code == 0 and place.supervisor.of(Complete), err


def test_a_stopped_script_is_stopped_as_before(place: Place) -> None:
    """Our traps do not change how bash ends, and the user's BASH_ENV is read."""
    (place.folder / "env.bash").write_text("GREETING=hello\n")
    source = place.folder / "source"
    source.mkdir()
    (source / "run.sh").write_text("echo $GREETING > $CHECKPOINT_DIR/a\noutlast mark\nexit 7\n")
    place.options += ["--source", str(source)]
    line = f"export BASH_ENV={place.folder / 'env.bash'}; bash run.sh"
    code, _, err = place.shell(line)
    assert code == 7 and place.saved() == {"a": "hello\n"}, err


def test_a_script_of_another_shell_that_hides_a_crash_is_refused(tmp_path: Path) -> None:
    piped = "python train.py | tee log\n"
    (tmp_path / "plain.sh").write_text(piped)
    (tmp_path / "posix.sh").write_text(f"#!/bin/sh\n{piped}")
    for argv in (("sh", "plain.sh"), ("dash", "posix.sh"), ("posix.sh",)):
        with pytest.raises(CommandError, match=r"run it with bash, as in bash -eo pipefail"):
            list(Command(argv).lost_failures(tmp_path))
    for argv in (("bash", "plain.sh"), ("bash", "posix.sh"), ("/bin/bash", "-x", "posix.sh")):
        if argv[1] != "-x":
            assert len(list(Command(argv).lost_failures(tmp_path))) == 1
    assert shutil.which("bash")
