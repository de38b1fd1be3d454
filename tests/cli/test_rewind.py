"""`outlast resume --from STEP`: a run in a folder is set back, or the refusal says why."""

import json
import sys
from pathlib import Path

import pytest

from outlast.cli.app import main
from tests.loop import programs

RUNNER = [sys.executable, "-m", "outlast.loop.command", "--run-dir", "run", "--shell", "--"]
LINE = (
    "cd $CHECKPOINT_DIR; n=$(cat n 2>/dev/null || echo 0); echo begins after $n; "
    "[ -e ../../../wait ] && touch ../../../waits && sleep 600; "
    "while [ $n -lt 4 ]; do n=$((n + 1)); echo $n > n; outlast mark; done; "
    "[ -e ../../../finish ] && cp n $RESULT_DIR && exit 0; exit 3"
)


def resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["outlast", "resume", *words])
    try:
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    said = capsys.readouterr()
    return code, said.out + said.err


def steps(run_dir: Path) -> list[int]:
    return [entry["step"] for entry in json.loads((run_dir / "HEAD").read_bytes())["chain"]]


def test_a_run_is_set_back_and_its_command_resumes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert programs.run(tmp_path, [*RUNNER, LINE]).returncode == 3
    run_dir = tmp_path / "run"
    before = steps(run_dir)
    assert len(before) >= 2
    code, said = resume(monkeypatch, capsys, str(run_dir), "--from", "99")
    there = ", ".join(map(str, before))
    assert code == 1 and f"has no checkpoint of that step; it has {there}." in said
    assert steps(run_dir) == before
    back = before[-2]
    code, said = resume(monkeypatch, capsys, str(run_dir), "--from", str(back))
    assert code == 0, said
    assert f"set back to step {back}; 1 newer checkpoint given up" in said
    assert steps(run_dir) == before[:-1]
    (tmp_path / "finish").touch()
    done = programs.run(tmp_path, [*RUNNER, LINE])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"begins after {back}"
    assert programs.result_of(run_dir)["n"] == b"4\n"
    code, said = resume(monkeypatch, capsys, str(run_dir), "--from", str(back))
    assert code == 1 and "is done; its result stays as it is" in said


def test_a_run_that_an_attempt_works_on_is_refused_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert programs.run(tmp_path, [*RUNNER, LINE]).returncode == 3
    (tmp_path / "wait").touch()
    run_dir = tmp_path / "run"
    before = steps(run_dir)
    with programs.started(tmp_path, [*RUNNER, LINE]) as process:
        programs.wait_for((tmp_path / "waits").exists, process)
        code, said = resume(monkeypatch, capsys, str(run_dir), "--from", str(before[0]))
        assert code == 1 and "attempt 2 is working on it" in said
        assert steps(run_dir) == before
    programs.wait_until_alone(tmp_path)


def test_a_folder_needs_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = resume(monkeypatch, capsys, str(tmp_path / "run"))
    assert code == 64 and "you run its own command again" in said
