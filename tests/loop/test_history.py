"""Evaluations of any names, and what counts as a new best."""

import errno
import json
import math
import shutil
from pathlib import Path

import pytest

from outlast.loop import history as history_module
from outlast.loop.errors import DoesNotFit, LoopError
from outlast.loop.history import History, judged_name
from outlast.spec import metrics


def test_evaluations_may_have_different_names() -> None:
    history = History()
    history.add(10, {"loss": 0.5})
    history.add(20, {"loss": 0.25, "val/accuracy": 0.9})
    history.add(20, {"epoch": 2})
    table = metrics.read_table(history.metrics_json())
    assert table == {
        "step": [10, 20],
        "loss": [0.5, 0.25],
        "val/accuracy": [None, 0.9],
        "epoch": [None, 2],
    }


def test_numbers_that_are_not_finite_are_kept_and_come_back(tmp_path: Path) -> None:
    history = History()
    history.add(1, {"loss": math.nan, "worst": math.inf})
    assert not history.judge("loss", 1, math.nan, "min")
    assert history.judge("worst", 1, math.inf, "min")
    history.write(tmp_path)
    again = History()
    again.read(tmp_path, json.loads(json.dumps(history.summary(), allow_nan=False)))
    (row,) = again.evals()
    assert math.isnan(row["loss"]) and row["worst"] == math.inf
    assert again.judge("worst", 2, 3.0, "min") and not again.judge("worst", 3, 4.0, "min")
    assert again.metrics_json() == history.metrics_json()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 30])
def test_a_snapshots_files_restore_all_rows_and_full_files_stay(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "FILE_BYTES", 60)
    undisturbed, resumed = History(), History()
    before: dict[str, bytes] = {}
    for step in range(1, count + 1):
        for history in (undisturbed, resumed):
            history.add(step, {"loss": 1 / step})
            history.add(step, {"worst": math.inf})
        folder, again = tmp_path / f"{step}", tmp_path / f"{step}-again"
        folder.mkdir()
        again.mkdir()
        undisturbed.write(folder)
        resumed.write(again)
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        assert files == {file.name: file.read_bytes() for file in sorted(again.iterdir())}
        full = list(before)[:-1]
        assert {name: files[name] for name in full} == {name: before[name] for name in full}
        before = files
        resumed = History()
        resumed.read(folder, json.loads(json.dumps(undisturbed.summary())))
        # The last one may get another value after a resume too.
        for history in (undisturbed, resumed):
            history.add(step, {"late": step})
    assert resumed.rows == undisturbed.rows
    assert resumed.metrics_json() == undisturbed.metrics_json()
    assert count < 8 or len(before) > 2


def test_a_full_file_is_written_once_and_is_in_every_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "FILE_BYTES", 60)
    history, kept = History(), tmp_path / "full"
    for step in range(1, 31):
        history.add(step, {"loss": 1 / step})
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
        history.write(folder, kept)
    *full, last = sorted(path.name for path in folders[0].iterdir())
    assert len(full) > 3
    for name in full:
        assert len({(folder / name).stat().st_ino for folder in (*folders, kept)}) == 1
    assert not (kept / last).exists()
    # A snapshot that is deleted takes nothing from the next one.
    shutil.rmtree(folders[0])
    resumed = History()
    resumed.read(folders[1], history.summary())
    assert resumed.rows == history.rows


def test_a_full_file_cut_by_a_full_disk_is_in_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "FILE_BYTES", 60)
    history, kept, folder = History(), tmp_path / "full", tmp_path / "snapshot"
    for step in range(1, 11):
        history.add(step, {"loss": 1 / step})
    written = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        written(path, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    folder.mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_bytes", full)
        history.write(folder, kept)
    shutil.rmtree(folder)
    folder.mkdir()
    history.write(folder, kept)
    resumed = History()
    resumed.read(folder, history.summary())
    assert resumed.rows == history.rows


@pytest.mark.parametrize("harm", ["gone", "cut", "longer", "no JSON"])
def test_files_with_other_content_are_refused(harm: str, tmp_path: Path) -> None:
    history = History()
    for step in (1, 2, 3):
        history.add(step, {"loss": 1 / step})
    history.write(tmp_path)
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    if harm == "gone":
        file.unlink()
    else:
        contents = {"cut": lines[:2], "longer": [*lines, lines[0]], "no JSON": [b"x\n"]}
        file.write_bytes(b"".join(contents[harm]))
    with pytest.raises(DoesNotFit, match=r"evaluations-00000\d\.jsonl: (cannot be read|ends with)"):
        History().read(tmp_path, history.summary())


def test_a_value_given_twice_in_a_step_is_refused() -> None:
    history = History()
    history.add(3, {"loss": 0.5})
    with pytest.raises(LoopError, match=r"eval loss: step 3 already has a value of this name"):
        history.add(3, {"loss": 0.4})
    assert history.evals() == [{"step": 3, "loss": 0.5}]


@pytest.mark.parametrize(
    ("best", "of", "names", "said"),
    [
        ("most", None, ["a"], "eval best 'most': must be max or min"),
        ("max", None, [], "give the value to judge by"),
        ("max", None, ["loss", "f1"], "loss, f1; say which one decides, such as of='loss'"),
        (
            "max",
            "acc",
            ["loss", "f1"],
            "eval of='acc': must be one of the values .* loss, f1",
        ),
    ],
)
def test_an_unclear_metric_for_best_is_refused(
    best: str, of: str, names: list[str], said: str
) -> None:
    with pytest.raises(LoopError, match=said):
        judged_name(best, of, names)


def test_the_only_or_the_named_metric_decides_the_best() -> None:
    assert judged_name("max", None, ["accuracy"]) == "accuracy"
    assert judged_name("min", "loss", ["accuracy", "loss"]) == "loss"
