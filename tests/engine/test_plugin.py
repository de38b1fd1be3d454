"""The walks of all components with Google's provider plugin in place of the stand-in, where the
plugin is installed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from outlast.cli.errors import NoPlugin
from tests.engine import test_foundation, test_machines, test_program, test_shared_bucket

try:
    found, why_not = engines.find_plugin(os.environ["PATH"]), ""
except NoPlugin as error:
    found, why_not = None, str(error)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(found is None, reason=why_not),
]


@pytest.fixture
def plugin() -> Path | None:
    return found


@pytest.fixture(scope="module")
def cloud(
    parts: engines.Parts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[clouds.LocalCloud]:
    """A cloud in which the walks with the stand-in have left nothing."""
    started = clouds.start(tmp_path_factory.mktemp("cloud"), parts, dies_with_us=True)
    yield started
    started.stop()


stack, stacks = test_program.stack, test_shared_bucket.stacks
test_foundation_and_experiment = test_foundation.test_an_experiment_on_a_foundation
test_buckets = test_foundation.test_a_bucket_is_made_kept_adopted_or_somebody_elses
test_machines_of_a_stack = test_machines.test_a_stack_over_its_machines
test_life_of_a_stack = test_program.test_the_life_of_a_stack
test_shared_bucket_of_two = test_shared_bucket.test_a_second_stack_leaves_a_shared_bucket_as_it_is
