"""What every test of VM guests needs."""

import pytest

from outlast.cli import guest_image
from outlast.cli.parts import SetupError


@pytest.fixture(autouse=True)
def images() -> dict[str, str]:
    """The guest images by family. Skips the test where they were not made."""
    try:
        found = guest_image.families()
    except SetupError as error:
        pytest.skip(str(error))
    return {family: str(folder) for family, folder in found.items()}
