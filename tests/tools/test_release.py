"""What a release needs beside the code: CHANGELOG.md in the form of Keep a Changelog
(keepachangelog.com/en/1.1.0), with an entry for what `outlast --version` says, and the licence."""

import re
import tomllib
from itertools import pairwise

import pytest
from click.testing import CliRunner

from outlast.base.folders import PACKAGE
from outlast.cli.app import cli
from outlast.cli.parts import parse_version

UNRELEASED = "Unreleased"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
RELEASE = re.compile(r"\[?(?P<version>[0-9]+\.[0-9]+\.[0-9]+)\]? - [0-9]{4}-[0-9]{2}-[0-9]{2}")


def mistakes(text: str, version: str) -> list[str]:
    """What is wrong with a changelog beside this version of Outlast."""
    title, *sections = re.split(r"^## ", text, flags=re.M)
    found = [] if title.startswith("# Changelog\n") else ["the title is not Changelog"]
    names = [one.partition("\n")[0].strip("[] ") for one in sections]
    releases: list[str] = []
    for name, section in zip(names, sections, strict=True):
        release = RELEASE.fullmatch(section.partition("\n")[0])
        if release:
            releases.append(release["version"])
        elif name != UNRELEASED:
            found.append(f"{name}: is neither {UNRELEASED} nor VERSION - YYYY-MM-DD")
        kinds = re.findall(r"^### (.*)$", section, flags=re.M)
        found += [f"{name}: {kind}: is not a kind of change" for kind in kinds if kind not in KINDS]
        if not kinds or not re.search(r"^- \S", section, flags=re.M):
            found.append(f"{name}: has no changes")
    if UNRELEASED in names[1:]:
        found.append(f"{UNRELEASED} is not first")
    ordered = [parse_version(one) for one in releases]
    if any(newer <= older for newer, older in pairwise(ordered)):
        found.append("the newest version is not first, or one is there twice")
    if version not in releases and UNRELEASED not in names:
        found.append(f"neither {version} nor {UNRELEASED} is there")
    return found


def test_the_changelog_has_what_this_version_changes() -> None:
    said = CliRunner().invoke(cli, ["--version"]).output
    version = said.removeprefix("outlast ").split()[0]
    assert mistakes((PACKAGE.parent / "CHANGELOG.md").read_text(), version) == []


def test_the_licence_is_the_one_that_the_wheel_names() -> None:
    root = PACKAGE.parent
    named = tomllib.loads((root / "pyproject.toml").read_text())["project"]["license"]
    text = (root / "LICENSE").read_text()
    title, version = (line.strip() for line in text.strip().splitlines()[:2])
    assert f"{title}, {version}".startswith("Apache License, Version 2.0,")
    assert named == "Apache-2.0"


GOOD = """# Changelog

## [0.2.0] - 2026-12-01

### Fixed

- x

## [0.1.0] - 2026-11-01

### Added

- y
"""


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        ("", "", ""),
        ("## [0.2.0] - 2026-12-01", "## Unreleased", ""),
        ("# Changelog", "# News", "title"),
        ("[0.2.0] - 2026-12-01", "0.2.0, in December", "neither Unreleased nor VERSION"),
        ("### Fixed", "### Repaired", "Repaired: is not a kind"),
        ("- x", "", "has no changes"),
        ("[0.1.0] - 2026-11-01", "Unreleased", "is not first"),
        ("[0.1.0]", "[0.10.0]", "the newest version is not first"),
        ("[0.1.0]", "[0.2.0]", "twice"),
        ("[0.2.0]", "[0.3.0]", "neither 0.2.0 nor Unreleased"),
    ],
)
def test_a_changelog_of_another_form_is_found(before: str, after: str, mistake: str) -> None:
    found = mistakes(GOOD.replace(before, after, 1) if before else GOOD, "0.2.0")
    assert bool(found) == bool(mistake) and mistake in " ".join(found)
