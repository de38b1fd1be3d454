"""docs/complaints.md claims only what a test shows, and each complaint and fault is on it."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.base.folders import PACKAGE
from tools import complaints_page
from tools.complaints_page import COMPLAINTS, FAULTS, Sections, Table

ROOT = PACKAGE.parent


@pytest.fixture(scope="module")
def read() -> tuple[Sections, Sections]:
    return COMPLAINTS.read(), FAULTS.read()


@pytest.fixture
def sections(read: tuple[Sections, Sections]) -> Sections:
    """The complaints, for a test to change."""
    return copy.deepcopy(read[0])


@pytest.fixture
def faults(read: tuple[Sections, Sections]) -> Sections:
    """The faults, for a test to change."""
    return copy.deepcopy(read[1])


@pytest.mark.parametrize("table", [COMPLAINTS, FAULTS], ids=["complaints", "faults"])
def test_every_row_is_there_once_and_every_test_that_it_names_exists(table: Table):
    assert complaints_page.problems(table, table.read()) == []


def test_the_page_is_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "complaints_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_has_each_number_and_each_test(sections: Sections, faults: Sections):
    text = (ROOT / "docs" / "complaints.md").read_text()
    for row in complaints_page.rows([*sections, *faults]):
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
    found = complaints_page.problems(COMPLAINTS, sections)
    assert len(found) == len(said)
    assert all(
        one.startswith(begin) for one, begin in zip(sorted(found), sorted(said), strict=True)
    )


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda row: changes(row, number="L2"), ["L1: is missing", "L2: is there 2 times"]),
        (lambda row: changes(row, number="L20"), ["L1: is missing", "L20: is not a number of"]),
        (lambda row: changes(row, threads=["a/b#1"]), ["L1: has here, tests, threads instead of"]),
        (lambda row: loses(row, "was"), ["L1: was: must be a sentence"]),
        (
            lambda row: row["tests"].append("tests/loop/test_state.py::test_not_there"),
            ["L1: tests/loop/test_state.py::test_not_there: there is no such test"],
        ),
    ],
)
def test_a_fault_is_checked_as_a_complaint_is(
    faults: Sections, plant: Callable[[dict[str, Any]], object], said: list[str]
):
    row = faults[0]["rows"][0]
    assert row["number"] == "L1"
    plant(row)
    found = complaints_page.problems(FAULTS, faults)
    assert len(found) == len(said)
    assert all(
        one.startswith(begin) for one, begin in zip(sorted(found), sorted(said), strict=True)
    )


@pytest.mark.parametrize(
    ("table", "headings"),
    [(COMPLAINTS, ("\n# ", "\n## Not shown yet\n")), (FAULTS, ("\n## Faults ", "\n### Not s"))],
    ids=["complaints", "faults"],
)
def test_what_is_not_shown_yet_is_under_its_heading_and_claims_nothing(
    sections: Sections, faults: Sections, table: Table, headings: tuple[str, str]
):
    row, other = (sections if table is COMPLAINTS else faults)[0]["rows"][:2]
    for one in (row, other):
        loses(one, "here", "tests")
    row["not_shown_yet"] = "No test deletes a template."
    other["does_not_apply"] = "Nothing is named."
    for one, its in ((COMPLAINTS, sections), (FAULTS, faults)):
        assert complaints_page.problems(one, its) == []
    text = "\n" + complaints_page.page(sections, faults)
    shown, heading, missing = text.partition(headings[0])[2].partition(headings[1])
    assert heading
    begins = f"\n| {row['number']} |"
    assert begins not in shown and begins in missing
    assert "| No test deletes a template. |\n" in missing
    assert "| Does not apply: Nothing is named. |  |\n" in shown
    assert f"\n| {other['number']} |" not in missing


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
            whole.setattr(complaints_page, "problems", lambda table, sections: [])
            assert complaints_page.main(["--check"]) == 1
        assert "docs/complaints.md: is out of date; run make tables" in capsys.readouterr().err
