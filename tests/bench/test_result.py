"""A result says which command found it, when, at which commit and where, and hides nothing."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from bench import result, table
from bench.result import Result


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "checkout"
    (folder / "bench" / "results").mkdir(parents=True)
    (folder / "file").write_text("one")
    monkeypatch.setattr(result, "ROOT", folder)
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_a_commit_is_marked_if_files_differ_from_it(checkout: Path) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", result.commit())
    (checkout / "bench" / "results" / "ageing.json").write_text("{}")
    assert not result.commit().endswith("+changes"), "a kept result changes nothing that is run"
    (checkout / "new").write_text("two")
    assert result.commit().endswith("+changes")
    (checkout / "new").unlink()
    (checkout / "file").write_text("two")
    assert result.commit().endswith("+changes")


def test_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "ROOT", tmp_path)
    assert result.commit() == "unknown"


def test_a_command_is_shown_without_folders_of_the_machine(checkout: Path) -> None:
    argv = ["--json", "/home/a/b.json", "--keep=/home/a", f"--python={checkout}/.venv-bench/bin/x"]
    argv += [
        "--image",
        "/srv/image",
        "--flags",
        "--data=/home/a/adult.data --epochs=2",
        "--mb",
        "1",
    ]
    assert result.header("bench.ageing", argv)["command"] == (
        "python -m bench.ageing --python=.venv-bench/bin/x --image image "
        "--flags '--data=adult.data --epochs=2' --mb 1"
    )


ROWS = [{"what": "a", "s": 0.123456, "met": True}, {"what": "b", "s": None, "met": False}]


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "holds"), (1, "does not hold"), (69, "not measured in full")]
)
def test_the_file_gives_the_text_that_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, outcome: str
) -> None:
    found = Result("bench.ageing", ["--commits", "3"])
    found.table("An old run", ROWS)
    found.say("targets missed: b")
    path = tmp_path / "figures.json"
    assert found.end(path, code, rows=ROWS) == code
    body = json.loads(path.read_text())
    printed = capsys.readouterr().out
    assert printed.startswith("python -m bench.ageing --commits 3\n20")
    assert printed.endswith(f"\n\n{result.text(body['parts'])}\n")
    assert "0.123" in printed and "targets missed: b" in printed
    assert (body["outcome"], body["rows"]) == (outcome, ROWS)
    assert table.machine() in printed and "Linux" in table.machine()
    assert set(body["header"]) == {"command", "date", "commit", "machine", "load"}
