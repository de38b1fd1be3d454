"""What a process says reaches its stderr or is lost; it never ends the process."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.base.console import crash_report, write_stderr

CAFE = os.fsdecode(b"caf\xe9")


def test_odd_text_is_written_so_that_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "utf-8", errors="strict"))
    write_stderr(f"{CAFE}\n")
    assert raw.getvalue() == b"caf\\udce9\n"


def test_a_closed_stderr_causes_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    write_stderr("this has no reader\n")
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    write_stderr("this has no reader\n")


@pytest.mark.parametrize(
    "end", ["2>/dev/full", "2>&-", "2>&1 >&- | true"], ids=["full", "closed", "no-reader"]
)
def test_a_process_continues_whatever_its_stderr_is(tmp_path: Path, end: str) -> None:
    program = (
        "import os, pathlib; from outlast.base.console import write_stderr\n"
        "for line in range(1000): write_stderr('x' * 1000 + chr(10))\n"
        f"pathlib.Path({str(tmp_path / 'fine')!r}).touch(); os._exit(0)"
    )
    subprocess.run(
        ["bash", "-c", f'exec "$@" {end}' if "|" not in end else f'"$@" {end}; wait', "-"]
        + [sys.executable, "-c", program],
        timeout=60,
        check=True,
    )
    assert (tmp_path / "fine").exists()


def test_a_crash_report_ends_with_one_line_of_the_reason() -> None:
    try:
        raise KeyError("two\nlines")
    except KeyError as error:
        *trace, last = crash_report(error).splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert last == r"outlast: the supervisor crashed: KeyError: 'two\nlines'"


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    """What C code or a child writes to descriptor 2 must not reach a file that is opened later."""
    program = (
        "import os, sys; from outlast.base.console import fill_streams\n"
        "fill_streams()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "assert file.fileno() > 2 and not sys.stderr.isatty()\n"
        "os.write(1, b'out'); os.write(2, b'err'); print('more', file=sys.stderr, flush=True)\n"
        "file.write('mine'); file.close(); os._exit(0)"
    )
    argv = ["bash", "-c", f'exec "$@" {closed}', "-", sys.executable, "-c", program]
    subprocess.run(argv, timeout=60, check=True)
    assert (tmp_path / "file").read_text() == "mine"
