"""What the local cloud offers: the images and machines that the guides name among it."""

import re
from pathlib import Path

import pytest

from outlast.localcloud.compute.catalogue import Catalogue, machine_type

ROOT = Path(__file__).parents[3]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IMAGE = re.compile(r"outlast:image:? (projects/[\w/.-]+)")
MACHINE = re.compile(r"outlast:machineType:? ([a-z0-9-]+)")


def named(pattern: re.Pattern[str]) -> set[str]:
    return {found for guide in GUIDES for found in pattern.findall(guide.read_text())}


def test_the_guides_images_exist() -> None:
    catalogue = Catalogue("outlast-rehearsal", {"outlast-rehearsal/outlast": ROOT})
    references = {one for one in named(IMAGE) if "my-project" not in one}
    assert any("deeplearning-platform-release" in one for one in references)
    for reference in references:
        assert catalogue.image(reference), reference


def test_the_guides_machine_types_exist() -> None:
    names = named(MACHINE)
    assert len(names) > 3
    for name in names:
        assert machine_type(name), name


@pytest.mark.parametrize("name", ["n1-standard-3", "e2-standard-5", "g2-standard-1", "x9-mega-2"])
def test_an_unknown_machine_type_does_not_exist(name: str) -> None:
    assert machine_type(name) is None
