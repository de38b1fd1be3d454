"""What the pages say is there: links, settings, commands with their options, targets of make."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from outlast.base.folders import PACKAGE
from outlast.cli.app import cli
from outlast.loop.command.__main__ import parser
from tests.cli.called import command_of

ROOT = PACKAGE.parent

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")


def prose(page: Path) -> str:
    """The text without what is code."""
    return CODE.sub("", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """As the host of a repository makes them of the headings."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def links(page: Path) -> Iterator[str]:
    # The text of a link may be code; its target is not.
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if "://" not in target and re.search(rf"\]\({re.escape(target)}\)", prose(page)):
            yield target


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `outlast …` in code, without comments."""
    for block in (*FENCE.findall(page.read_text()), *CODE.findall(page.read_text())):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:.*[`(;&] *|\$ |\s*)outlast ([a-z].*)", line.split(" #")[0])
            if found:
                yield re.split(r"[\s`)\"]+", found[1].split(" -- ")[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(page: Path):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


def test_every_setting_that_a_page_names_is_one():
    known = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    for page in PAGES:
        for key in re.findall(r"\boutlast:([a-z][A-Za-z]+)\b(?!:)", page.read_text()):
            assert key in known, f"{page.name}: outlast:{key}"


def test_every_command_that_a_page_names_is_there_with_its_options():
    seen = set()
    # `outlast train` parses its words itself.
    own = {option for action in parser()._actions for option in action.option_strings}
    for page in PAGES:
        for words in commands(page):
            command = command_of(words)
            assert command is not cli, f"{page.name}: outlast {' '.join(words)}"
            seen.add(command.name)
            offered = {option for one in command.params for option in one.opts} or own
            for word in words:
                if word.startswith("--"):
                    option = word.partition("=")[0]
                    assert option in offered, f"{page.name}: outlast {command.name} {word}"
    assert {"up", "status", "rehearse", "resume", "stop", "preview", "checkpoints"} <= seen


def test_every_target_that_a_page_names_is_one_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)(?:`|\s*$)", page.read_text(), re.M):
            assert target in targets, f"{page.name}: make {target}"


def test_every_path_of_the_project_that_a_page_names_exists():
    folders = "outlast|components|startup|trainers|tests|tools|bench|policy|examples|requirements"
    for page in PAGES:
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
            made_by_reader = "NAME" in path
            assert made_by_reader or (ROOT / path).exists(), f"{page.name}: {path}"


GENERATED = (
    *("assumptions.md", "complaints.md", "components.md", "configuration.md", "machine-types.md"),
    *("guarantees.md", "json.md", "organization-policies.md", "results.md"),
)
DOCS = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_first_sentence_of_a_page_says_who_it_is_for(page: Path):
    title, _, text = re.sub(r"<!--.*?-->", "", page.read_text()).partition("\n")
    assert title.startswith("# ") and text.lstrip().startswith("For "), page.name


def test_the_pages_stay_short():
    def words(*pages: Path) -> int:
        return sum(len(page.read_text().split()) for page in pages)

    assert words(ROOT / "README.md") <= 700
    assert words(ROOT / "docs" / "design.md") <= 2500
    guides = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    assert words(*guides) <= 25_000


def test_every_page_that_the_code_names_exists():
    folders = ("outlast", "components", "startup", "policy", "tools", "bench", "examples", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.[psy]*")]
    named = {
        (file.name, page)
        for file in [*files, ROOT / "Makefile", ROOT / "Pulumi.yaml", ROOT / "__main__.py"]
        if file.suffix in (".py", ".sh", ".yaml", "")
        for page in re.findall(r"\bdocs/[a-z][\w/-]*\.md\b", file.read_text())
    }
    assert len(named) > 10
    for file, page in named:
        assert (ROOT / page).exists() or file == "test_project.py", f"{file}: {page}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_row_of_a_table_has_its_columns(page: Path):
    columns, before = 0, ""
    for line in FENCE.sub("", page.read_text()).splitlines():
        row = line.strip().replace("\\|", "")
        if not row.startswith("|"):
            columns = 0
        elif columns:
            assert row.count("|") == columns, f"{page.name}: {line}"
        else:
            if re.fullmatch(r"[|:\- ]+", row):
                columns = row.count("|")
                assert before.count("|") == columns, f"{page.name}: {before}"
            else:
                assert not before.startswith("|"), f"{page.name}: {line}"
        before = row


def test_every_decision_is_listed_under_its_number_and_title():
    folder = ROOT / "docs" / "decisions"
    listed = dict(
        re.findall(r"^\| \[\d+\]\((\S+)\) \| (.*?) \|$", (folder / "README.md").read_text(), re.M)
    )
    for page in folder.glob("[0-9]*.md"):
        number, _, title = page.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        assert listed[page.name] == title and int(page.name[:4]) == int(number)
