"""A stack of the commit in `previous` is upgraded to the working tree while its run is open."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.checkout import copy_checkout, copy_commit, replace_checkout
from tests.engine.conftest import Project, Watch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PREVIOUS = Path(__file__).with_name("previous").read_text().strip()
STEPS = 20_000
PAUSE_MS = 25
TRAINER = f"""
import argparse
import sys
import time

import numpy as np

import outlast


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause-ms", type=int, default=0)
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    w = np.zeros(5)
    with outlast.train({{"w": w, "rng": rng}}, total={STEPS}) as run:
        pause = 0 if run.step else args.pause_ms / 1000  # only the first attempt is slow
        for step in run.steps():
            w += rng.normal(size=5) / (step + 1)
            time.sleep(pause)
        np.save(run.result("w.npy"), w)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
"""A user's: it does not change with Outlast. It ends only after it has resumed."""

UPGRADED = {
    "bundle-object": "replace",
    "trainer-template": "replace",
    "trainer-group": "update",
}
"""What docs/upgrade.md says of a new bundle, by the resource's logical name."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Project]:
    """The previous commit's program, on a cloud of this test only."""
    previous = tmp_path / "previous"
    if not copy_commit(PREVIOUS, previous):
        pytest.skip(f"commit {PREVIOUS} is not in this clone; get it with git fetch --unshallow")
    parts = engines.find_parts()
    cloud = clouds.start(tmp_path / "cloud", parts, dies_with_us=True)
    try:
        variables = cloud.variables(parts, tmp_path / "pulumi", "/usr/bin:/bin")
        folder = tmp_path / "checkout"
        folder.mkdir()
        copy_checkout(folder, previous)
        made = Project(folder, {**engines.scrubbed(), **variables}, cloud)
        made.pulumi("stack", "init", "dev", "--no-select")
        yield made
    finally:
        cloud.stop()


@pytest.fixture
def store(stack: Project, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    return open_store(f"gs://{clouds.PROJECT}-outlast")


def upgrade(folder: Path) -> None:
    """Puts the working tree's code there, which differs in all that reaches a VM even if nothing
    has changed since the previous commit."""
    replace_checkout(folder)
    for name in ("outlast/supervisor/__init__.py", "startup/boot.sh"):
        with (folder / name).open("a") as file:
            file.write("# A newer version.\n")


def undisturbed(trainer: Path, folder: Path) -> bytes:
    """The result of the same trainer that nothing interrupts."""
    folder.mkdir()
    command = [sys.executable, str(trainer)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (result,) = folder.rglob("w.npy")
    return result.read_bytes()


def test_an_open_run_lives_through_the_upgrade(stack: Project, store: Store, tmp_path: Path):
    (stack.folder / "mine").mkdir()
    trainer = stack.folder / "mine" / "upgraded.py"
    trainer.write_text(TRAINER)
    args = {"pause-ms": PAUSE_MS}
    stack.configure(source="mine", trainer="upgraded", args=args, checkpointEvery="1s")
    stack.up()
    run = Watch(stack, store)
    before = run.wait(lambda head: head.chain, "no checkpoint of the previous version")
    (vm,) = stack.cloud.vms()

    upgrade(stack.folder)
    assert {name: op for name, (op, _) in stack.steps().items()} == UPGRADED
    review = json.loads(stack.outlast("preview", "dev", "--json"))
    (line,) = review["runs"]
    assert line["then"] == "stays untouched"
    applies = re.search(r"new template \((.*)\) applies when the VM is next recreated", line["why"])
    assert applies and {"code", "startup script"} <= set(applies[1].split(", "))
    stack.up()
    assert stack.steps() == {}
    changed = {name for name, value in stack.outputs().items() if value != run.outputs[name]}
    assert changed == {"bundle", "bundleSha256", "template"}

    # The VM of the previous version keeps running, and the new command reads its run.
    (still,) = stack.cloud.vms()
    assert (still["id"], still["boots"]) == (vm["id"], vm["boots"])
    moved = run.wait(lambda head: head.step > before.step, "no checkpoint after the upgrade")
    assert moved.term == before.term
    status = json.loads(stack.outlast("status", "dev", "--json"))
    assert status["state"] == "running"

    # The next VM has the new code, resumes from that checkpoint, and ends with the same bytes.
    stack.cloud.act(vm["name"], "preempt")
    done = run.done()
    start = AttemptStart.from_json(store.get(run.layout.attempt_start(done.term))[0])
    assert done.term == before.term + 1 and start.step >= moved.step
    assert done.end and done.end.result
    result = store.get(done.end.result.path + "w.npy")[0]
    assert result == undisturbed(trainer, tmp_path / "undisturbed")
