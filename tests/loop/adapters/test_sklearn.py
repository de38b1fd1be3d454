"""Every estimator with partial_fit resumes to the same bits, or is refused by name."""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.utils import all_estimators

from outlast.loop.errors import StateError
from tests.loop.adapters.through import load, same, save

REFUSED = {
    "Birch": r"state\['m'\].root_ is sklearn.cluster._birch._CFNode",
}
INNER = {
    "MultiOutputClassifier": SGDClassifier,
    "MultiOutputRegressor": SGDRegressor,
    "OneVsOneClassifier": SGDClassifier,
    "OneVsRestClassifier": SGDClassifier,
    "SelectFromModel": SGDClassifier,
}
NAMES = [name for name, cls in all_estimators() if hasattr(cls, "partial_fit")]


def make(name: str) -> Any:
    cls = dict(all_estimators())[name]
    model = cls(INNER[name](random_state=1)) if name in INNER else cls()
    params = model.get_params()
    if "random_state" in params:
        model.set_params(random_state=np.random.RandomState(1))
    if "n_components" in params:
        model.set_params(n_components=2)
    return model


def feed(name: str, model: Any, first: int, last: int) -> Any:
    for number in range(first, last):
        rng = np.random.default_rng(number)
        rows = np.abs(rng.normal(size=(30, 4)))
        labels = (rows.sum(axis=1) > 3).astype(int)
        more: dict[str, Any] = {}
        if name == "CategoricalNB":
            rows = rng.integers(0, 3, size=(30, 4))
            rows[:3] = np.arange(3)[:, None]
        if name.startswith("MultiOutput"):
            labels = np.column_stack([labels, 1 - labels])
            more = {"classes": [[0, 1], [0, 1]]} if name == "MultiOutputClassifier" else {}
        elif name == "SelectFromModel" or "classes" in signature(model.partial_fit).parameters:
            more = {"classes": [0, 1]}
        model.partial_fit(["a b"] if name == "HashingVectorizer" else rows, labels, **more)
    return model


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("target_steps", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_partial_fit_resumes_or_is_refused(tmp_path: Path, name: str, target_steps: int) -> None:
    mine = feed(name, make(name), 0, 3)
    if name in REFUSED:
        with pytest.raises(StateError, match=REFUSED[name]):
            save(tmp_path / "s", {"m": mine})
        return
    theirs = feed(name, make(name), 10, 10 + target_steps)
    load(save(tmp_path / "s", {"m": mine}), {"m": theirs})
    for each in (mine, theirs):
        feed(name, each, 3, 6)
    assert same({"m": mine}, {"m": theirs}) is None


def test_the_list_of_refusals_is_true() -> None:
    assert set(REFUSED) <= set(NAMES) and len(NAMES) > 20
