"""The startup scripts: lint, format, the bats files, and the lists they share with Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.base import exits
from outlast.spec import startup_script
from outlast.spec.run_spec import Timeouts

SHELL_BOOT_REASONS = frozenset(
    {
        exits.Reason.NEVER_STARTED,
        exits.Reason.SETUP_FAILED,
        exits.Reason.FORBIDDEN,
        exits.Reason.STUCK_LEAVING,
    }
)
"""The ends of a boot that the startup scripts themselves may write."""
SUPERVISOR_EXITS = frozenset({exits.DONE, exits.USAGE, exits.INTERRUPTED, exits.FENCED})
"""Exit codes with which a supervisor ends on purpose; any other one is a crash."""

HERE = Path(__file__).parent
REPO = HERE.parent.parent
SCRIPTS = sorted((REPO / "startup").glob("*.sh"))
SHELLS = re.compile(r"^#!.*\b(ba|da|)sh\b|^# shellcheck shell=")
BATS_FILES = sorted(HERE.glob("*.bats"))
BATS_TIMEOUT_SEC = 300
TOOLS = Path(sys.executable).parent


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=REPO,
        env={
            "PATH": f"{TOOLS}:/usr/local/bin:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "HOME": os.environ.get("HOME", "/"),
        },
        capture_output=True,
        text=True,
        timeout=BATS_TIMEOUT_SEC,
    )


def constants(pattern: str) -> dict[str, str]:
    """The readonly constants of lib.sh whose names match."""
    text = (REPO / "startup" / "lib.sh").read_text()
    return dict(re.findall(rf"^readonly ({pattern})=(\S+)$", text, re.MULTILINE))


def test_there_are_scripts_and_tests() -> None:
    assert [script.name for script in SCRIPTS] == [
        "bake.sh",
        "boot.sh",
        "interpreter.sh",
        "leave.sh",
        "lib.sh",
        "probe.sh",
        "ssd.sh",
        "system.sh",
    ]
    assert BATS_FILES


def all_scripts() -> list[Path]:
    """Every shell script of the checkout, whatever its name."""
    listed = run("git", "ls-files", "-z").stdout.split("\0")
    files = [REPO / name for name in listed if name and (REPO / name).is_file()]
    return [file for file in files if SHELLS.match(_beginning(file))]


def _beginning(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(80).decode(errors="replace")


def test_shellcheck() -> None:
    found = all_scripts()
    assert {REPO / ".ci/run", REPO / "outlast/localcloud/vm/shims/poweroff", *SCRIPTS} <= {*found}
    # What a bats file gives to `bash -c` is in single quotes, and each test is a subshell.
    bats = ["--shell=bats", "--exclude=SC2016,SC2030,SC2031", *BATS_FILES]
    for words in ([*found, HERE / "helper.bash"], bats):
        done = run(TOOLS / "shellcheck", "--external-sources", "--source-path=.", *words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_format() -> None:
    done = run(TOOLS / "shfmt", "-d", "-i", "2", *all_scripts(), *BATS_FILES, HERE / "helper.bash")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", BATS_FILES, ids=lambda file: file.stem)
def test_bats(file: Path) -> None:
    done = run(TOOLS / "bats", "--tap", file)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^ok \d+ (?!.*# skip)", done.stdout, re.MULTILINE)
    assert passed, f"{file.name} ran no test"
    assert len(passed) == len(re.findall(r"^@test ", file.read_text(), re.MULTILINE))


def test_exit_codes_are_those_of_python() -> None:
    shell = {
        name.removeprefix("EXIT_"): int(value) for name, value in constants("EXIT_[A-Z]+").items()
    }
    assert set(shell.values()) == SUPERVISOR_EXITS
    assert all(getattr(exits, name) == value for name, value in shell.items())
    assert int(constants("MAX_NO_PROGRESS")["MAX_NO_PROGRESS"]) == exits.MAX_NO_PROGRESS


def test_waits_are_those_of_the_settings_until_they_are_read() -> None:
    text = (REPO / "startup" / "lib.sh").read_text()
    shell = dict(re.findall(r"^(IAM_PROPAGATION|SILENCE|BACKOFF)=(\d+)$", text, re.MULTILINE))
    assert len(shell) == 3
    for name, tenths in shell.items():
        assert int(tenths) == 10 * getattr(Timeouts, name.lower())


def test_the_shell_writes_only_its_own_reasons() -> None:
    reasons = set(constants("REASON_[A-Z_]+").values())
    assert reasons
    assert reasons <= {reason.value for reason in SHELL_BOOT_REASONS}
    assert SHELL_BOOT_REASONS <= exits.BOOT_REASONS


@pytest.mark.parametrize("name", ["boot.sh", "bake.sh"])
def test_a_vm_gets_one_script_without_files_beside_it(name: str, tmp_path: Path) -> None:
    text = startup_script.read(name)
    assert len(text.encode()) < 128 * 1024  # one value may have 256 KiB, all together 512 KB
    assert not re.search(r"^\s*source .*\.sh", text, re.MULTILINE)
    for other in ("lib", "system", "interpreter"):
        library = (REPO / "startup" / f"{other}.sh").read_text()
        assert library.partition("\n")[2] in text
    whole = tmp_path / name
    whole.write_text(text)
    done = run(TOOLS / "shellcheck", "--exclude=SC2034", whole)
    assert done.returncode == 0, done.stdout + done.stderr


def test_libraries_set_no_shell_options() -> None:
    for script in SCRIPTS:
        sets_options = re.search(r"^set -", script.read_text(), re.MULTILINE) is not None
        assert sets_options == (script.name in ("bake.sh", "boot.sh", "probe.sh")), script.name
