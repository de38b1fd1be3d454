"""XGBoost: Boosters and scikit-learn wrappers resume to the same bytes; sampling is refused."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.loop.errors import DoesNotFit, StateError
from tests.loop.adapters.through import load, save

xgboost = pytest.importorskip("xgboost")
pytestmark = pytest.mark.frameworks

PARAMS = {"max_depth": 3, "nthread": 1, "objective": "binary:logistic", "eta": 0.2}


def rows() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(200, 5))
    return x, (x.sum(axis=1) > 0).astype(int)


@functools.cache
def matrix() -> Any:
    return xgboost.DMatrix(*rows())


def new(**more: Any) -> Any:
    return xgboost.Booster({**PARAMS, **more}, [matrix()])


def boosted(booster: Any, first: int, last: int) -> Any:
    for number in range(first, last):
        booster.update(matrix(), number)
    return booster


@pytest.mark.parametrize("more", [{}, {"tree_method": "approx"}, {"booster": "dart"}])
@pytest.mark.parametrize("target_rounds", [0, 2])
def test_boosting_resumes_to_the_same_bytes(
    tmp_path: Path, more: dict[str, Any], target_rounds: int
) -> None:
    mine, theirs = new(**more), new(**more)
    boosted(mine, 0, 4)
    mine.set_attr(note="kept")
    save(tmp_path / "s", {"b": mine})
    load(tmp_path / "s", {"b": boosted(theirs, 0, target_rounds)})
    assert theirs.attr("note") == "kept"
    one, two = (boosted(each, 4, 8) for each in (mine, theirs))
    assert one.save_raw("ubj") == two.save_raw("ubj")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"subsample": 0.7}, "subsample=0.7"),
        ({"colsample_bylevel": 0.5}, "colsample_bylevel=0.5"),
        ({"booster": "dart", "rate_drop": 0.1}, "rate_drop=0.1"),
        ({"booster": "gblinear"}, "is a gblinear Booster"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_booster_that_cannot_resume_is_refused(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    booster = boosted(new(**more), 0, 2)
    with pytest.raises(StateError) as caught:
        save(tmp_path / "s", {"b": booster})
    assert "state['b'] " in str(caught.value) and says in str(caught.value)


def test_a_booster_without_data_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"^state\['b'\] is a Booster that has seen no data yet"):
        save(tmp_path / "s", {"b": xgboost.Booster(PARAMS)})
    load(save(tmp_path / "s", {"b": new()}), {"b": new()})


def test_segments_of_a_booster_that_samples_resume(tmp_path: Path) -> None:
    """The remedy that the refusal names."""

    def segment(box: dict[str, bytes], number: int) -> None:
        params = {**PARAMS, "subsample": 0.5, "seed": number}
        before = bytearray(box["raw"]) if box["raw"] else None
        booster = xgboost.Booster(params, [matrix()], model_file=before)
        for _ in range(2):
            booster.update(matrix(), booster.num_boosted_rounds())
        box["raw"] = bytes(booster.save_raw("ubj"))

    mine, theirs = {"raw": b""}, {"raw": b""}
    for number in range(5):
        if number == 2:
            load(save(tmp_path / "s", {"box": mine}), {"box": theirs})
        segment(mine, number)
    for number in range(2, 5):
        segment(theirs, number)
    assert mine == theirs and len(mine["raw"]) > 1000


@pytest.mark.parametrize("name", ["XGBClassifier", "XGBRegressor", "XGBRanker"])
def test_wrappers_resume_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    x, y = rows()

    def build() -> Any:
        return getattr(xgboost, name)(n_estimators=3, n_jobs=1, random_state=1)

    more = {"qid": np.zeros(len(y), int)} if name == "XGBRanker" else {}
    mine, theirs = build().fit(x, y, **more), build()
    load(save(tmp_path / "s", {"m": mine}), {"m": theirs})
    assert (mine.predict(x) == theirs.predict(x)).all()
    for each in (mine, theirs):
        each.fit(x, y, xgb_model=each.get_booster(), **more)
    one, two = (each.get_booster().save_raw("ubj") for each in (mine, theirs))
    assert one == two


def test_a_mismatch_is_refused_by_name(tmp_path: Path) -> None:
    booster = boosted(new(), 0, 1)
    with pytest.raises(DoesNotFit, match="state\\['b'\\] is dict: the checkpoint holds an XGBoost"):
        load(save(tmp_path / "s", {"b": booster}), {"b": {}})
    model = xgboost.XGBClassifier(max_depth=2).fit(*rows())
    with pytest.raises(DoesNotFit, match="has max_depth=3: the checkpoint's is 2"):
        load(save(tmp_path / "m", {"m": model}), {"m": xgboost.XGBClassifier(max_depth=3)})
