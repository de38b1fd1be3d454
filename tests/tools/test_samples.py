"""What the pages show as printed is what the commands print: promises, names, tables, words."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from outlast.base.exits import Reason
from outlast.base.folders import PACKAGE
from outlast.cli.rehearsal import scenario
from outlast.cli.rehearsal.guarantees import GUARANTEES, all_happened, ends_as_expected
from outlast.cli.show.attempts import attempts_table
from outlast.localcloud.scenarios import scenario as cloud_side
from tests.tools.test_docs import FENCE, PAGES

ROOT = PACKAGE.parent

EVENT = re.compile(r"^ *\d+\.\d s  (.*)$")
VERDICT = re.compile(r"^(?:held|broken|not exercised) {2,}(.*)$")
PRINTED = (
    "starts from scratch",
    "resumes from step ",
    "destroying ",
    "scenario ",
    "must end as ",
    "pulumi up: ",
    "beside it ",
    "all guarantees held",
    "Attempts of run ",
    "goodput  ",
    " of the time from first boot to end",
    " undisturbed)",
    "starts from scratch",
    "it has no checkpoint yet",
    "an hour, while its VM runs",
    "at most, to its limit",
    "its whole limit",
    "no rule is broken",
    "its group cannot create a VM: ",
    "take its place",
    "Attempts (UTC):",
)
"""Words that the commands print, as their source has them and the pages show them."""


@cache
def source() -> str:
    """The code that prints: its texts, broken over lines as they may be, are joined."""
    folders = ("outlast/cli", "outlast/dynamic", "outlast/base", "outlast/bucket")
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return re.sub(r'"\s+f?"', "", "".join(file.read_text() for file in files))


def lines(page: Path) -> Iterator[str]:
    for block in FENCE.findall(page.read_text()):
        yield from block.splitlines()


def shown() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in lines(page):
            yield page.name, line


@pytest.mark.parametrize("words", PRINTED)
def test_the_words_of_the_samples_are_printed(words: str) -> None:
    assert words in source(), f"nothing prints {words!r} any more: correct the pages that show it"
    assert any(words in line for _, line in shown()), f"no page shows {words!r}"


def test_a_verdict_in_a_sample_is_of_a_promise_that_is_judged() -> None:
    judged = [*GUARANTEES.values(), all_happened, ends_as_expected]
    promises = {" ".join((one.__doc__ or "").split()) for one in judged}
    found = [(page, match[1]) for page, line in shown() if (match := VERDICT.match(line))]
    assert len(found) > 15
    for page, text in found:
        assert any(text.startswith(f"{one}: ") for one in promises), f"{page}: {text}"


def test_a_line_of_a_rehearsal_says_what_one_says() -> None:
    known = ("attempt ", ": run ", "destroying ", "scenario ", "must end as ", "pulumi up: ")
    actions = {action for one in cloud_side.Do.model_fields for action in (one.replace("_", "-"),)}
    found = [(page, match[1]) for page, line in shown() if (match := EVENT.match(line))]
    assert len(found) > 15
    for page, text in found:
        rest = text.partition(": ")[2]
        known_action = rest.partition(":")[0] in actions
        assert known_action or any(word in text for word in known), f"{page}: {text}"
        if text.startswith("must end as "):
            for name in text.partition(", with ")[2].split(", "):
                assert name in GUARANTEES, f"{page}: {name}"


def test_the_first_sample_is_of_the_first_scenario() -> None:
    played = cloud_side.read(scenario.FOLDER / "storm.yaml")
    names = scenario.of(played.document()).guarantees
    about = " ".join(played.about.split())
    text = (ROOT / "docs/start.md").read_text()
    assert f"scenario storm: {about}" in text
    assert f"must end as done (done), with {', '.join(names)}" in text


def test_a_table_of_attempts_has_the_columns_of_today() -> None:
    columns = [str(column.header) for column in attempts_table(()).columns]
    heads = [(page, line) for page, line in shown() if re.match(r"attempt {2,}start", line)]
    assert len(heads) > 3
    for page, line in heads:
        assert re.split(r" {2,}", line.strip()) == columns, page


def test_each_message_of_the_troubleshooting_page_is_one_of_the_code() -> None:
    """What stands between the dots is in a text that the code prints."""
    printed = re.sub(r'[`"]', "", every_text())
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    messages = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 30
    for message in messages:
        for piece in re.split(r"…", message):
            words = re.sub(r"^(warning: |outlast:)", "", piece.strip(" ;:,.'"))
            assert words in printed, f"{message}: nothing prints {words!r}"


@cache
def every_text() -> str:
    folders = ("outlast", "components", "trainers")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "startup").glob("*.sh")
    text = "".join(file.read_text() for file in sorted(files))
    return re.sub(r'"\s+(?:f?"|\\\n\s+")', "", text)


def test_every_reason_that_is_recorded_is_explained() -> None:
    files = [file for file in (ROOT / "outlast").rglob("*.py") if file.name != "exits.py"]
    code = "".join(file.read_text() for file in files)
    code += "".join(file.read_text() for file in (ROOT / "startup").glob("*.sh"))
    shown = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs/troubleshooting.md").read_text()))
    recorded = [one for one in Reason if f"Reason.{one.name}" in code or f" {one.value} " in code]
    assert len(recorded) > 20
    for reason in recorded:
        assert reason.value in shown, f"docs/troubleshooting.md does not explain {reason}"


def test_every_row_of_a_table_of_attempts_has_a_reason_of_today() -> None:
    rows = [
        (page, re.split(r" {2,}", line.strip()))
        for page, line in shown()
        if re.match(r"\d+ +\d\d:\d\d:\d\d {2}", line)
    ]
    assert len(rows) > 8
    for page, row in rows:
        assert {"running", *Reason} & {*row}, f"{page}: {row}"
