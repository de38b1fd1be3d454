"""docs/results.md shows what commands printed, also what does not hold, and what was not run."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import result
from bench.results import __main__ as command
from bench.results import kept, page
from bench.results.entries import ENTRIES, Entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_command_of_each_result_exists(entry: Entry) -> None:
    parser = importlib.import_module(entry.module).parser()
    assert parser.parse_args([*entry.words, "--json", "file"]).json == Path("file")
    assert len([one for one in ENTRIES if entry.name == one.name or entry.title == one.title]) == 1


def test_the_page_is_up_to_date() -> None:
    assert command.main(["--check"]) == 0


def test_each_kept_file_is_of_a_result_and_on_the_page() -> None:
    text = page.PAGE.read_text()
    for file in [*kept.FOLDER.glob("*.json"), *kept.FOLDER.glob("*.md")]:
        (entry,) = (one for one in ENTRIES if one.name == file.stem)
        assert f"## {entry.title}\n" in text
        body = kept.read(entry)
        if body is not None and file.suffix == ".json":
            assert result.text(body["parts"]).strip("\n") in text
            assert result.where_and_when(body["header"]) in text


MEASURES = """
import argparse, sys
from pathlib import Path
from bench.result import Result

def parser():
    made = argparse.ArgumentParser()
    made.add_argument("--points", type=int, default=30)
    made.add_argument("--json", type=Path)
    return made

args, found = parser().parse_args(), Result("planted", sys.argv[1:-2])
if args.points == 0:
    sys.exit(69)
found.table("Planted", [{"points": args.points, "met": args.points < 31}])
found.say("a sentence")
sys.exit(found.end(args.json, int(args.points > 30), verdicts=list(range(1000))))
"""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """The only one there is; its command holds for up to 30 points, and measures nothing for 0."""
    (tmp_path / "planted.py").write_text(MEASURES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = Entry("planted", "A planted one", "It holds.", "planted", ("--points", "30"))
    monkeypatch.setattr(command, "ENTRIES", (one,))
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page" / "results.md")
    (tmp_path / "page").mkdir()
    monkeypatch.setattr(page, "ENTRIES", (one,))
    return one


def shown() -> str:
    return page.PAGE.read_text()


def test_a_result_that_was_not_run_says_so(entry: Entry) -> None:
    assert command.main(["--page"]) == 0
    assert "| It holds. | not run |  |" in shown()
    assert "Result: not run." in shown() and entry.command in shown()


def test_a_result_is_kept_as_it_was_printed(
    entry: Entry, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["planted"]) == 0
    printed = capfd.readouterr().out
    (body,) = (json.loads(file.read_text()) for file in kept.FOLDER.glob("*.json"))
    assert set(body) == set(kept.KEPT), "the figures behind the table are not kept"
    assert result.text(body["parts"]) in printed
    assert f"```\n{result.text(body['parts']).strip()}\n```" in shown()
    assert "| It holds. | holds | 20" in shown() and f"`{entry.command}`" in shown()


def test_one_that_does_not_hold_replaces_one_that_holds(entry: Entry) -> None:
    command.main(["planted"])
    assert command.main(["planted", "--", "--points", "31"]) == 1
    assert "**does not hold, with other arguments**" in shown()
    assert "`python -m planted --points 31`" in shown() and f"In full: `{entry.command}`" in shown()


def test_one_that_found_nothing_leaves_the_kept_one(
    entry: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["planted"])
    before = kept.read(entry)
    assert command.main(["planted", "--", "--points", "0"]) == 69
    assert "planted: its command found nothing (exit code 69)" in capsys.readouterr().err
    assert kept.read(entry) == before


def test_an_older_result_is_shown_until_the_command_has_run_in_full(entry: Entry) -> None:
    older = kept.FOLDER / "planted.md"
    older.write_text("Printed long ago.\n")
    command.main(["--page"])
    assert "Result: not run again." in shown() and "Printed long ago." in shown()
    command.main(["planted", "--", "--points", "5"])
    assert "holds, with other arguments" in shown() and "Printed long ago." in shown()
    command.main(["planted"])
    assert "Printed long ago." not in shown() and not older.exists()


def test_what_measures_others_does_not_hold_or_fail(entry: Entry) -> None:
    command.main(["planted"])
    body: dict[str, Any] | None = kept.read(entry)
    assert page.outcome(replace(entry, compares=True), body) == "measured"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plantd"], "result 'plantd': unknown; did you mean planted? known are planted"),
        (["--", "--points", "3"], "-- --points: arguments need exactly one NAME before them"),
    ],
)
def test_a_mistake_is_a_sentence(
    entry: Entry, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(argv) == 64
    assert capsys.readouterr().err.strip() == said


def test_a_page_out_of_date_is_named_with_the_remedy(
    entry: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    page.PAGE.write_text("# Another\n")
    assert command.main(["--check"]) == 1
    assert "docs/results.md: is out of date; run make tables" in capsys.readouterr().err
