"""CONTRIBUTING.md's table names files, tests and targets that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def rows() -> list[list[str]]:
    table = PAGE.partition("## To change something")[2]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_each_row_names_what_to_edit_and_what_to_run() -> None:
    found = rows()
    assert len(found) >= 12
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for what, edit, run, _ in found:
        edited, ran = re.findall(r"`([^`]+)`", edit), re.findall(r"`([^`]+)`", run)
        assert edited and ran, what
        for path in edited:
            assert (ROOT / path).exists(), f"{what}: {path}"
        for text in ran:
            command, _, target = text.partition(" ")
            known = target in targets if command == "make" else (ROOT / text).exists()
            assert known, f"{what}: {text}"


def test_twelve_typical_changes_have_a_number_of_files() -> None:
    counts = [files for *_, files in rows() if files]
    assert len(counts) == 12
    assert all(re.fullmatch(r"\d(, \d tests?)(, \d page)?", files) for files in counts), counts


def test_the_commands_to_set_up_are_targets() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = set(re.findall(r"(?m)^make ([a-z-]+)", PAGE))
    assert named and named <= targets
