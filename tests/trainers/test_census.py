"""The census trainer: its data in every form, and a search that resumes by the fold."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest

from outlast.base import exits
from outlast.trainers import __main__ as command
from outlast.trainers import census, training
from outlast.trainers.flags import UsageError
from tests.loop.fake_supervisor import FakeSupervisor
from tests.trainers.killed import CENSUS

SAMPLE_VARIABLE = "OUTLAST_CENSUS_DATA"
"""A larger part of UCI's adult.data, for the accuracy that its users expect."""


def load(*argv: str) -> "tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]":
    return census._load(census.Config.of(census.parser().parse_args(argv)))


def test_one_file_holds_every_fifth_row_out() -> None:
    train, test = load("--census-data-path", str(CENSUS))
    assert (train[0].shape, test[0].shape) == ((480, 13), (120, 13))
    again = load("--data", str(CENSUS), "--seed", "7")
    assert np.array_equal(again[1][0], test[0], equal_nan=True), "the split is not matter of seeds"


def test_values_are_numbers_and_places_in_the_lists(tmp_path: Path) -> None:
    values, labels = census.read(CENSUS, 60)
    row = dict(zip(census.COLUMNS, CENSUS.read_text().splitlines()[0].split(", "), strict=True))
    first = dict(zip(census.FEATURES, values[0].tolist(), strict=True))
    assert first["age"] == float(row["age"])
    assert first["education"] == census.CATEGORIES["education"].index(row["education"])
    assert labels[0] == census.LABELS[row["income"]] and "fnlwgt" not in first
    assert len(labels) == 60
    text = CENSUS.read_text().splitlines()
    text[0] = text[0].replace(row["workclass"], "?")
    (tmp_path / "a").write_text("\n".join(text))
    assert np.isnan(census.read(tmp_path / "a")[0][0][census.FEATURES.index("workclass")])


def test_a_folder_trains_on_one_file_and_evaluates_on_the_other(tmp_path: Path) -> None:
    lines = CENSUS.read_text().splitlines()
    (tmp_path / "adult.data").write_text("\n".join(lines[:400]) + "\n\n")
    comment = "|1x3 Cross validator"
    (tmp_path / "adult.test").write_text(
        "\n".join([comment, *(f"{line}." for line in lines[400:])]) + "\n\n"
    )
    train, test = load("--data", str(tmp_path))
    whole = census.read(CENSUS)
    assert np.array_equal(train[0], whole[0][:400], equal_nan=True)
    assert np.array_equal(test[0], whole[0][400:], equal_nan=True)
    assert np.array_equal(test[1], whole[1][400:])
    only = load("--data", str(tmp_path / "adult.data"), "--eval-data", str(tmp_path / "adult.test"))
    assert (len(only[0][1]), len(only[1][1])) == (400, 200)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1, 2, 3", "line 2: 3 columns, must be the 15 of UCI's Adult"),
        ("x" + "{rest}", "line 2: age 'x"),
        ("{row}!", "line 2: income "),
        ("{private}", "line 2: workclass 'Privat': must be one of ?, Private, Self-emp-not-inc"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    lines = CENSUS.read_text().splitlines()[:100]
    private = next(row for row in lines if ", Private," in row)
    misspelt = private.replace("Private", "Privat")
    lines[1] = line.format(rest=lines[1], row=lines[1], private=misspelt)
    (tmp_path / "a").write_text("\n".join(lines))
    with pytest.raises(UsageError) as caught:
        census.read(tmp_path / "a")
    assert says in str(caught.value)


def test_too_little_and_no_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not given; name UCI's adult.data"):
        load()
    with pytest.raises(UsageError, match="has no adult.data in it"):
        load("--data", str(tmp_path))
    with pytest.raises(UsageError, match="10 rows used; 50 or more are needed"):
        load("--data", str(CENSUS), "--limit-rows", "10")


@pytest.mark.frameworks
def test_a_finished_fold_is_state(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xgboost")
    monkeypatch.setattr(training, "data", Path)  # the fake one fetches nothing
    argv = ["census", "--data", str(CENSUS), "--cv-iterations", "2", "--epochs", "25"]
    assert command.main([*argv, "--threads", "1"]) == exits.DONE
    # A step that ends while the checkpoint before it is in flight has none.
    steps = [message.step for message, _ in supervisor.committed]
    last = 2 * census.FOLDS + 3
    assert steps[-1] == last and max(steps[:-1]) > census.FOLDS, "each fold and segment is one"
    assert supervisor.result is not None
    baseline = {path.name: path.read_bytes() for path in supervisor.result.iterdir()}
    search = json.loads(baseline["search.json"])
    assert [len(entry["fold_accuracy"]) for entry in search["candidates"]] == [5, 5]

    middle = len(steps) // 2
    supervisor.resume_from(middle)
    supervisor.committed.clear()
    assert command.main([*argv, "--threads", "1"]) == exits.DONE
    resumed = [message.step for message, _ in supervisor.committed]
    assert resumed[-1] == last and steps[middle] < resumed[0], "no finished fold is judged again"
    assert {path.name: path.read_bytes() for path in supervisor.result.iterdir()} == baseline


@pytest.mark.frameworks
@pytest.mark.timeout(400)
def test_the_search_finds_a_good_model(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.environ.get(SAMPLE_VARIABLE)
    if path is None or importlib.util.find_spec("xgboost") is None:
        pytest.skip(f"{SAMPLE_VARIABLE} names no file of UCI's adult.data")
    monkeypatch.setattr(training, "data", Path)
    assert command.main(["census", "--data", path, "--cv-iterations", "3"]) == exits.DONE
    assert supervisor.result is not None
    search = json.loads((supervisor.result / "search.json").read_bytes())
    assert search["candidates"][search["best"]]["mean_accuracy"] >= 0.85
