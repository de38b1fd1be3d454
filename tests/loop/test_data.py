"""``outlast.data`` and ``init`` if no supervisor is: on a laptop, with real processes."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.base.exits import Reason, State
from outlast.base.retry import BRIEF
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import GcsStore
from outlast.loop import DataError, LoopError, data, local
from outlast.protocol import SOCKET_VARIABLE, Error, Fetched
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture

PROGRAM = """
import os, sys
import outlast

total = int(outlast.data(sys.argv[1]).read_text())
names = os.environ.get("NAMES", "x y").split()
state = {name: {"sum": 0} for name in names}
only = os.environ.get("ONLY")
with outlast.train(
    state=state, total=total, run_dir=os.environ["RUN_DIR"], arguments={}, checkpoint_every="2",
    init=os.environ.get("INIT"), init_only=only.split() if only else None,
    model_output_path=os.environ.get("OUT"),
) as run:
    print("begins", state, flush=True)
    for path in sys.argv[2:]:
        print(run.data(path).read_text(), flush=True)
    for step in run.steps():
        if str(step) == os.environ.get("LEAVE_AT"):
            sys.exit(9)
        for part in state.values():
            part["sum"] += step
        print("made", step, flush=True)
    run.result("sums.json").write_text(repr(state))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(data, "_found", {})
    monkeypatch.setattr(data, "_untold", {})
    (tmp_path / "sums.py").write_text(PROGRAM)
    (tmp_path / "total").write_text("6")
    return tmp_path


@pytest.fixture
def bucket(
    storage_api: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[GcsStore]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore(BUCKET)
    yield store
    store.close()


def train(folder: Path, *paths: str, code: int = 0, **environment: str) -> tuple[str, str]:
    """The program's output, on both streams."""
    done = programs.run(folder, [sys.executable, "sums.py", *paths], **environment)
    assert done.returncode == code, done.stderr
    programs.wait_until_alone(folder)
    return done.stdout, done.stderr


def pins(run_dir: Path) -> dict[int, str]:
    """The output of ``outlast checkpoints`` for a run's folder: name by step."""
    done = programs.run(
        run_dir.parent,
        [sys.executable, "-m", "outlast.cli.app", "checkpoints", str(run_dir), "--json"],
    )
    assert done.returncode == 0, done.stderr
    return {row["step"]: row["init"] for row in json.loads(done.stdout)}


def test_changed_local_data_ends_the_attempt_but_moved_data_does_not(folder: Path) -> None:
    train(folder, "total", LEAVE_AT="5", code=9)
    (entry,) = programs.head(folder / "run")["data"]
    assert (entry["name"], entry["generation"], entry["size"]) == ("total", 0, 1)
    (folder / "total").write_text("7")
    said, errors = train(folder, "total", code=64)
    assert "the run started with 1 bytes with CRC32C" in errors and "made" not in said
    end = json.loads((folder / "run/attempts/000002/end.json").read_bytes())
    assert (end["reason"], end["state"]) == ("data-changed", "open")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/total").write_text("6")
    said, _ = train(folder, "elsewhere/total")
    assert "made 5" in said and "made 1" not in said


def test_data_of_a_bucket_is_fetched_once(folder: Path, bucket: GcsStore) -> None:
    bucket.put("data/total", b"6")
    BRIEF(lambda: bucket.put("data/more", b"more of it"))  # one write a second a name
    urls = [f"gs://{BUCKET}/data/{name}" for name in ("total", "more")]
    said, _ = train(folder, *urls, LEAVE_AT="5", code=9)
    assert "more of it" in said
    BRIEF(lambda: bucket.put("data/more", b"more of it"))  # one write a second a name
    said, _ = train(folder, *urls)
    assert "made 5" in said and "made 1" not in said
    assert [entry["name"] for entry in programs.head(folder / "run")["data"]] == urls


@pytest.mark.parametrize(
    ("path", "says"),
    [("none", "data none: no such file or folder"), ("s3://b/x", "or gs://BUCKET/PATH")],
)
def test_invalid_data_gives_one_sentence(folder: Path, path: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        outlast.data(path)


def test_data_that_can_be_read_only_once_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(DataError, match="is neither a file nor a folder"):
        outlast.data(folder / "pipe")


def test_a_supervisor_fetches_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = FakeSupervisor(folder / "fake")
    monkeypatch.setenv(SOCKET_VARIABLE, str(supervisor.socket))
    supervisor.on_fetch = lambda asked: Fetched(str(folder / "total"))
    assert outlast.data("gs://b/x") == folder / "total" == outlast.data("gs://b/x")
    assert [asked.url for asked in supervisor.fetched] == ["gs://b/x"]
    supervisor.on_fetch = lambda asked: Error("data gs://b/y: no", "usage")
    with pytest.raises(DataError, match="data gs://b/y: no"):
        outlast.data("gs://b/y")
    supervisor.on_fetch = lambda asked: Error("the store is gone", "supervisor")
    with pytest.raises(LoopError, match="the store is gone") as caught:
        outlast.data("gs://b/y")
    assert not isinstance(caught.value, DataError)
    supervisor.close()


# -- another run's state ---------------------------------------------------------------------------


def test_a_run_begins_with_a_checkpoint_of_another(folder: Path) -> None:
    train(folder, "total")
    step, pin = max(pins(folder / "run").items())
    begun = step * (step + 1) // 2
    more: Any = {"INIT": pin, "RUN_DIR": str(folder / "next"), "ONLY": "x"}
    said, _ = train(folder, "total", code=9, LEAVE_AT="2", **more)
    assert f"begins {{'x': {{'sum': {begun}}}, 'y': {{'sum': 0}}}}" in said and "made 1" in said
    # Nothing was committed yet: it begins with the same again, from its own copy.
    (folder / "run").rename(folder / "gone")
    said, _ = train(folder, "total", **more)
    assert f"begins {{'x': {{'sum': {begun}}}, 'y': {{'sum': 0}}}}" in said and "made 1" in said
    assert local.finished_result(folder / "next").joinpath("sums.json").read_text() == (
        f"{{'x': {{'sum': {begun + 21}}}, 'y': {{'sum': 21}}}}"
    )
    metrics = json.loads((local.finished_result(folder / "next") / "metrics.json").read_bytes())
    assert all(column == [] for column in metrics.values())


def test_every_rank_begins_with_the_given_checkpoint(folder: Path) -> None:
    train(folder, "total")
    step, pin = max(pins(folder / "run").items())
    ranks = [
        {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29501"}
        for rank in range(2)
    ]
    common = {"INIT": pin, "ONLY": "x", "RUN_DIR": str(folder / "next")}
    argv = [sys.executable, "sums.py", "total"]
    with (
        programs.started(folder, argv, **common, **ranks[0]) as first,
        programs.started(folder, argv, **common, **ranks[1]) as second,
    ):
        for process in (first, second):
            said, errors = process.communicate(timeout=programs.WAIT_SEC)
            assert process.returncode == 0, errors
            begun = f"{{'x': {{'sum': {step * (step + 1) // 2}}}, 'y': {{'sum': 0}}}}"
            assert f"begins {begun}\nmade 1\n" in said
    programs.wait_until_alone(folder)


def test_an_invalid_initial_checkpoint_gives_one_sentence(folder: Path) -> None:
    train(folder, "total")
    _, pin = max(pins(folder / "run").items())
    for spoiled, says in (
        (pin[:-64] + 64 * "0", "BLAKE3 of its manifest is"),
        (pin.replace("/run/", "/none/"), "holds no run"),
        (pin.replace("t000001", "t000009"), "is no longer a checkpoint"),
        ("model.bin", "must name a checkpoint with its digest"),
    ):
        next_dir = str(folder / f"next-{says[:3]}")
        said, errors = train(folder, "total", code=1, INIT=spoiled, RUN_DIR=next_dir)
        assert says in errors and "made" not in said
    next_dir = str(folder / "next")
    said, errors = train(folder, "total", code=1, INIT=pin, NAMES="x z", RUN_DIR=next_dir)
    assert "state: the program has z, which the checkpoint does not hold; it holds x, y" in errors
    assert "made" not in said


def test_the_same_command_with_another_init_is_another_run() -> None:
    pin = f"/r/t000001/s000000000004-0a/#{64 * 'a'}"
    names = {local.run_name("t", {}, None, init) for init in (None, pin, pin[:-1] + "b")}
    assert len(names) == 3


def test_data_that_contains_the_runs_folder_is_refused_at_once(folder: Path) -> None:
    """And not at the second attempt, whose own checkpoints would be its other data."""
    (folder / "all").mkdir()
    (folder / "all/total").write_text("6")
    run_dir = folder / "all/run"
    program = f"import outlast; outlast.data('{folder}/all')\n" + (folder / "sums.py").read_text()
    (folder / "sums.py").write_text(program)
    said, errors = train(folder, "total", code=64, RUN_DIR=str(run_dir))
    assert "made" not in said
    assert f"data {folder}/all: holds the run's own folder {run_dir}, and would be" in errors


# -- results ---------------------------------------------------------------------------------------


def test_the_result_is_copied_to_the_named_folder(folder: Path) -> None:
    out = folder / "models"
    train(folder, "total", OUT=str(out))
    result = local.finished_result(folder / "run")
    assert (out / "sums.json").read_bytes() == (result / "sums.json").read_bytes()
    (out / "sums.json").write_text("mine")
    (out / "metrics.json").unlink()
    _, errors = train(folder, "total", code=1, OUT=str(out))
    assert f"model-output-path {out}: holds other bytes in sums.json" in errors
    assert (out / "sums.json").read_text() == "mine" and not (out / "metrics.json").exists()


def test_a_failed_copy_exits_with_an_error_and_the_run_stays_done(folder: Path) -> None:
    """A process that continues the copy must find one; the same command tries again."""
    out = folder / "models"
    out.write_text("here first")
    said, errors = train(folder, "total", code=1, OUT=str(out))
    assert "made 6" in said and programs.head(folder / "run")["state"] == "done"
    assert f"model-output-path {out}: could not be written" in errors
    assert "the training is complete, but its result was not kept" in errors
    again, errors = train(folder, "total", code=1, OUT=str(out))
    assert "made" not in again and "Traceback" not in errors
    assert "outlast: this run is done, at step 6; its result is in" in errors.splitlines()[-1]
    out.unlink()
    train(folder, "total", OUT=str(out))
    assert (out / "sums.json").exists()


def test_a_result_in_a_bucket_is_fetched_and_verified(folder: Path, bucket: GcsStore) -> None:
    layout = Layout("experiments/fetched", "0123456789")
    head_file = HeadFile(bucket, layout)
    deadline = datetime(2099, 1, 1, tzinfo=UTC)
    head_file.take_term(Claim("o/p/s", 0, 0, deadline))
    url = f"gs://{BUCKET}/{layout.root}"
    with pytest.raises(DataError, match="is open and has no result"):
        local.finished_result(url)
    (folder / "made").mkdir()
    (folder / "made/model.bin").write_bytes(b"model")
    committer = Committer(head_file)
    committer.restore(folder / "none")
    committer.finish(State.DONE, Reason.DONE, exit=0, step=6, result=folder / "made")
    found = local.finished_result(url)
    assert (found / "model.bin").read_bytes() == b"model" and found.is_relative_to(folder)
    path = f"{layout.result(1)}model.bin"
    generation = bucket.stat(path).generation
    BRIEF(lambda: bucket.put(path, b"other", if_generation_match=generation))
    assert local.finished_result(url) == found, "what was verified is kept under its digest"
    (found / "model.bin").write_bytes(b"spoilt")
    with pytest.raises(LoopError, match="sha256 is"):
        local.finished_result(url)
    with pytest.raises(DataError, match="holds no run"):
        local.finished_result(f"gs://{BUCKET}/experiments/none/0123456789")


def test_a_copy_of_a_result_in_a_bucket_is_as_good_as_its_run(
    folder: Path, bucket: GcsStore
) -> None:
    train(folder, "total", OUT=f"gs://{BUCKET}/models/sums")
    result = local.finished_result(folder / "run")
    found = local.finished_result(f"gs://{BUCKET}/models/sums")
    assert found != result
    assert (found / "sums.json").read_bytes() == (result / "sums.json").read_bytes()
    generation = bucket.stat("models/sums/sums.json").generation
    BRIEF(lambda: bucket.put("models/sums/sums.json", b"mine", if_generation_match=generation))
    with pytest.raises(DataError, match="sums.json: has other bytes than the run gave it"):
        local.finished_result(f"gs://{BUCKET}/models/sums")
