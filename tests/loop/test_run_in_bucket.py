"""``outlast.train`` without a VM, its run in a bucket: the machine may be lost, disk and all."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.bucket.fetch import place_of
from outlast.bucket.head import HeadLost, read_head
from outlast.bucket.store import GcsStore
from outlast.loop import local
from tests.loop import programs
from tests.loop.test_local import PROGRAM
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture


class Walk:
    """The program of test_local.py, its run at a ``gs://`` path."""

    def __init__(self, folder: Path, store: GcsStore, name: str) -> None:
        self.folder, self.store = folder, store
        self.url = f"gs://{BUCKET}/experiments/{name}/first"
        (folder / "walk.py").write_text(PROGRAM)

    def argv(self, run_dir: str, speed: str = "1.0") -> list[str]:
        return [sys.executable, str(self.folder / "walk.py"), run_dir, speed]

    def newest(self) -> int:
        try:
            chain = read_head(self.store, place_of(self.url)[1]).head.chain
        except HeadLost:
            return 0
        return chain[-1].step if chain else 0


@pytest.fixture
def walk(
    tmp_path: Path,
    storage_api: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Walk]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore(BUCKET)
    yield Walk(tmp_path, store, request.node.name.replace("_", "-"))
    store.close()


def test_a_lost_machine_costs_only_what_was_not_committed(walk: Walk) -> None:
    baseline = programs.run(walk.folder, walk.argv(str(walk.folder / "baseline")))
    assert baseline.returncode == 0, baseline.stderr
    with programs.started(walk.folder, walk.argv(walk.url), PACE="0.1") as process:
        programs.wait_for(lambda: walk.newest() > 0, process)
        for pid in (*programs.supervisors(walk.folder), process.pid):
            os.kill(pid, signal.SIGKILL)
    done = programs.run(walk.folder, walk.argv(walk.url))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 5, "it begins after the checkpoint"
    assert f"its result is in {walk.url}/t000002/result" in done.stderr
    found = local.finished_result(walk.url)
    result = {path.name: path.read_bytes() for path in found.iterdir() if path.name[0] != "R"}
    expected = programs.result_of(walk.folder / "baseline")
    assert result == {name: data for name, data in expected.items() if name[0] != "R"}
    again = programs.run(walk.folder, walk.argv(walk.url))
    assert again.returncode == 0 and "this run is done" in again.stderr
    other = programs.run(walk.folder, walk.argv(walk.url, "2.0"))
    assert other.returncode == 64
    assert f"run folder {walk.url}: belongs to another run (other flags" in other.stderr


def test_the_first_of_two_machines_is_fenced(walk: Walk) -> None:
    # So slow that the second one starts before this one is done, on a busy machine too.
    with programs.started(walk.folder, walk.argv(walk.url), PACE="2") as first:
        programs.wait_for(lambda: walk.newest() > 0, first)
        # Slow too: a run that had ended meanwhile would end the first otherwise.
        with programs.started(walk.folder, walk.argv(walk.url), PACE="0.3") as second:
            _, printed = first.communicate(timeout=programs.WAIT_SEC)
            _, said = second.communicate(timeout=programs.WAIT_SEC)
    assert first.returncode != 0
    assert "fenced: term 1: term 2 holds the run now" in printed
    assert second.returncode == 0, said


@pytest.mark.parametrize("url", [f"gs://{BUCKET}", f"gs://{BUCKET}/", f"gs://{BUCKET}/a//b"])
def test_an_invalid_run_path_is_refused(walk: Walk, url: str) -> None:
    refused = programs.run(walk.folder, walk.argv(url))
    assert refused.returncode == 64
    last = refused.stderr.strip().splitlines()[-1]
    assert last.endswith("must be a run's folder or gs://BUCKET/experiments/NAME/RUN"), last
