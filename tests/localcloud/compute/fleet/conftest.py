"""The world that most tests of the fleet begin with."""

import pytest

from tests.localcloud.compute.fleet.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.template("t1", provisioningModel="SPOT")
    return world
