"""The supervisor's packages on a stock image: taken from the index once, from the bucket after."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from outlast.bucket.store import Store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Project, Watch
from tests.engine.test_boot import STOCK_IMAGE
from tests.engine.test_boot import stack as stack  # fixtures
from tests.engine.test_boot import store as store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

LIMIT_SEC = 600
"""Two installations by pip on a busy machine."""


@pytest.fixture
def offline(parts: engines.Parts, tmp_path: Path) -> Iterator[clouds.LocalCloud]:
    """A local cloud whose VMs know one index, a link that a test may take away."""
    index = tmp_path / "index"
    index.symlink_to(parts.wheels)
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    started = clouds.start(tmp_path / "cloud", parts, guest_env=env, dies_with_us=True)
    yield started
    started.stop()


def boot(stack: Project, store: Store) -> tuple[str, float]:
    """What the VM of the stack's next run says, and how long its interpreter took, in seconds."""
    stack.up()
    run = Watch(stack, store)
    run.wait_until_gone(limit_sec=LIMIT_SEC)
    run.done()
    (log,) = (stack.cloud.state / "serial").glob(f"{run.outputs['group']}-*.log")
    text = log.read_text()
    begin, end = (
        datetime.fromisoformat(line.split()[0])
        for line in text.splitlines()
        if " make-interpreter start" in line or " make-interpreter end" in line
    )
    return text, (end - begin).total_seconds()


def test_the_second_boot_of_an_experiment_asks_no_index(
    stack: Project, store: Store, tmp_path: Path
):
    stack.set("outlast:image", STOCK_IMAGE)
    first, first_sec = boot(stack, store)
    assert "the packages are in the bucket already" not in first
    (kept,) = [i.path for i in store.list("experiments/dev/environments/")]
    assert kept.startswith("experiments/dev/environments/vm-")

    # Another machine of the same experiment; the index has gone meanwhile.
    stack.set("outlast:rerun", "1")
    (tmp_path / "index").unlink()
    second, second_sec = boot(stack, store)
    assert "the packages are in the bucket already" in second
    print(f"interpreter: {first_sec} s from the index, {second_sec} s from the bucket")
