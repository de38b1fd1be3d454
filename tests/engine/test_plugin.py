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
for walks in (test_foundation, test_machines, test_program, test_shared_bucket):
    globals().update({name: it for name, it in vars(walks).items() if name.startswith("test_")})
