"""What every test of VM guests needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.cli import guest_image
from outlast.cli.parts import SetupError
from tests.guest.guest_cloud import GuestCloud

SPOT_GRACE_SEC = 30.0


@pytest.fixture(autouse=True)
def images() -> dict[str, str]:
    """The guest images by family. Skips the test where they were not made."""
    try:
        found = guest_image.families()
    except SetupError as error:
        pytest.skip(str(error))
    return {family: str(folder) for family, folder in found.items()}


@pytest.fixture
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, images: dict[str, str]
) -> Iterator[GuestCloud]:
    """A local cloud of machines of QEMU, with the grace period of a Spot VM unless the test sets
    another; none of them is left at the end."""
    cloud = GuestCloud(tmp_path / "state", images, getattr(request, "param", SPOT_GRACE_SEC))
    yield cloud
    cloud.stop()
    cloud.http.close()
    assert not cloud.machines()
