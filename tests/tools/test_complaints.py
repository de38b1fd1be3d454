"""docs/complaints.md claims only what a test shows, and each complaint of the survey is on it."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.base.folders import PACKAGE
from tools import complaints_page

ROOT = PACKAGE.parent

Sections = list[dict[str, Any]]


@pytest.fixture(scope="module")
def read() -> Sections:
    return complaints_page.table()


@pytest.fixture
def sections(read: Sections) -> Sections:
    """The table, for a test to change."""
    return copy.deepcopy(read)


def test_every_complaint_is_there_once_and_every_test_that_it_names_exists(sections: Sections):
    assert complaints_page.problems(sections) == []


def test_the_page_is_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "complaints_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_has_each_number_and_each_test(sections: Sections):
    text = (ROOT / "docs" / "complaints.md").read_text()
    for row in complaints_page.rows(sections):
        assert text.count(f"\n| {row['number']} |") == 1
        assert all(f"`{test}`" in text for test in row.get("tests", ()))


def changes(row: dict[str, Any], **given: Any) -> None:
    row |= given


def loses(row: dict[str, Any], *names: str) -> None:
    for name in names:
        del row[name]


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda row: changes(row, number=2), ["1: is missing", "2: is there 2 times"]),
        (lambda row: changes(row, number=8), ["1: is missing", "8: is not a number of"]),
        (
            lambda row: row["tests"].append("tests/bucket/test_head.py::test_not_there"),
            ["1: tests/bucket/test_head.py::test_not_there: there is no such test"],
        ),
        (
            lambda row: row["tests"].append("tests/test_gone.py::test_x"),
            ["1: tests/test_gone.py::test_x: there is no such test"],
        ),
        # A function, but not a test; a test's beginning; a file of tests without a test.
        (
            lambda row: changes(
                row,
                tests=[
                    "tests/bucket/test_head.py::decision",
                    "tests/bucket/test_head.py::test_done_leaves",
                    "tests/bucket/test_head.py",
                    "tests/startup/leave.bats::no such title",
                ],
            ),
            [
                "1: tests/bucket/test_head.py::decision: there is no such test",
                "1: tests/bucket/test_head.py::test_done_leaves: there is no such test",
                "1: tests/bucket/test_head.py: there is no such test",
                "1: tests/startup/leave.bats::no such title: there is no such test",
            ],
        ),
        (lambda row: changes(row, tests=[]), ["1: names no test"]),
        (lambda row: loses(row, "tests"), ["1: has here instead of one of its three kinds"]),
        (lambda row: loses(row, "tests", "here"), ["1: has nothing instead of"]),
        (
            lambda row: changes(row, not_shown_yet="No test shows it."),
            ["1: has here, not_shown_yet, tests instead of"],
        ),
        (lambda row: changes(row, here=""), ["1: here: must be a sentence"]),
        (lambda row: changes(row, threads=[]), ["1: names no thread"]),
        (lambda row: changes(row, threads=["a thread"]), ["1: a thread: must be OWNER/REPOSITORY"]),
    ],
)
def test_a_row_that_claims_what_nothing_shows_is_refused(
    sections: Sections, plant: Callable[[dict[str, Any]], object], said: list[str]
):
    row = sections[0]["rows"][0]
    assert row["number"] == 1
    plant(row)
    found = complaints_page.problems(sections)
    assert len(found) == len(said)
    assert all(
        one.startswith(begin) for one, begin in zip(sorted(found), sorted(said), strict=True)
    )


def test_what_is_not_shown_yet_is_under_its_heading_and_claims_nothing(sections: Sections):
    row = sections[0]["rows"][0]
    loses(row, "here", "tests")
    row["not_shown_yet"] = "No test deletes a template."
    other = sections[0]["rows"][1]
    loses(other, "here", "tests")
    other["does_not_apply"] = "Nothing is named."
    assert complaints_page.problems(sections) == []
    shown, heading, missing = complaints_page.page(sections).partition("\n## Not shown yet\n")
    assert heading
    assert "\n| 1 |" not in shown and "| No test deletes a template. |\n" in missing
    assert "| Does not apply: Nothing is named. |  |\n" in shown and "\n| 2 |" not in missing


def test_an_outdated_page_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "complaints.md"
    monkeypatch.setattr(complaints_page, "PAGE", page)
    monkeypatch.setattr(complaints_page, "ROOT", tmp_path)
    for text in (None, "# Another\n"):
        if text is not None:
            page.write_text(text)
        with monkeypatch.context() as whole:
            whole.setattr(complaints_page, "problems", lambda sections: [])
            assert complaints_page.main(["--check"]) == 1
        assert "docs/complaints.md: is out of date; run make tables" in capsys.readouterr().err
