"""Data of another bucket, another run's checkpoint, and a copy of the result, on real boots."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from outlast.spec.pin import Pin
from tests.engine.conftest import Project, Watch, checkout_on

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BUCKET = "outlast-rehearsal-outlast"


@pytest.fixture
def stack(cloud: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Project:
    made = checkout_on(cloud, parts, tmp_path)
    made.set("outlast:args.epochs", "2")
    return made


@pytest.fixture
def lent(cloud: clouds.LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Another team's bucket with rows of digits."""
    datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}  # conditions need it
    body = {"name": "lent-data", "iamConfiguration": uniform}
    cloud.call("POST", "/storage/v1/b?project=outlast-rehearsal", body)
    pixels, digits = datasets.load_digits(return_X_y=True)
    rows = (
        ",".join(f"{value:g}" for value in (*scan, digit))
        for scan, digit in zip(pixels, digits, strict=True)
    )
    store = open_store("gs://lent-data")
    store.put("digits/rows.csv", "\n".join(rows).encode())
    return store


def test_lent_data_another_runs_checkpoint_and_a_copy_of_the_result(
    stack: Project, lent: Store
) -> None:
    stack.set("outlast:args.data", "gs://lent-data/digits/rows.csv")
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "the VM may not read it" in said and "outlast:dataPaths" in said
    assert "Traceback" not in said

    stack.set("outlast:dataPaths[0]", "gs://lent-data/digits")
    out = "experiments/dev/models/first/"
    stack.set("outlast:args.model-output-path", f"gs://{BUCKET}/{out}")
    stack.up()
    store = open_store(f"gs://{BUCKET}")
    first = Watch(stack, store)
    first.wait_until_gone()
    layout, head = first.layout, first.done()
    assert head.end is not None and head.end.result is not None
    (found,) = list(head.data or ())
    there = lent.stat("digits/rows.csv")
    assert (found.size, found.crc32c) == (there.size, there.crc32c)
    result = head.end.result.path
    copies = {item.path.removeprefix(out): item.crc32c for item in store.list(out)}
    assert copies == {item.path.removeprefix(result): item.crc32c for item in store.list(result)}
    assert "model.json" in copies

    evaluated = subprocess.run(
        [sys.executable, "-m", "outlast.trainers", "digits", "--mode", "eval"]
        + ["--run-dir", f"gs://{BUCKET}/{layout.root}"],
        cwd=engines.project(),
        env={**os.environ, "OUTLAST_CACHE": str(stack.folder / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["epoch"] == 2 and "recorded" not in evaluated.stderr

    last = head.chain[-1]
    pin = Pin(f"gs://{BUCKET}/{layout.root}", last.path.removeprefix(layout.root), last.blake3)
    stack.set("outlast:init", str(pin))
    stack.up()
    second = Watch(stack, store)
    second.wait_until_gone()
    second.done()
    other = second.layout
    assert other.run != layout.run
    start = AttemptStart.from_json(store.get(other.attempt_start(1))[0])
    assert start.restored is not None and start.restored.startswith(f"{other.root}t000001/s0000000")
    assert start.step == 0
    stack.destroy()
