"""Estimators whose parameters training changes, that learn text labels, or that appear later."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import DoesNotFit, StateError


class Own(SGDClassifier):
    """An estimator of the trainer's own."""


def fed(model: Any, seed: int = 0) -> Any:
    rows = np.random.default_rng(seed).normal(size=(20, 4))
    labels = np.array(["no", "yes"], object)[(rows.sum(axis=1) > 0).astype(int)]
    return model.partial_fit(rows, labels, classes=np.array(["no", "yes"], object))


def classifier(eta0: float = 0.02) -> Any:
    return SGDClassifier(learning_rate="constant", eta0=eta0, random_state=1)


def through(folder: Path, mine: Any, theirs: Any, begun: Any) -> None:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(mine, begun)))
    found = snapshot.read(folder)
    state.restore_all(theirs, found.nodes, found.blobs)
    verify.check(theirs, found)


def test_a_learning_rate_set_while_training_is_restored(tmp_path: Path) -> None:
    mine, theirs = {"clf": classifier()}, {"clf": classifier()}
    begun = state.survey(mine)
    fed(mine["clf"]).set_params(eta0=0.005)
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["clf"].eta0 == 0.005
    for each in (mine, theirs):
        fed(each["clf"], 1)
    assert (mine["clf"].coef_ == theirs["clf"].coef_).all()
    assert theirs["clf"].classes_.tolist() == ["no", "yes"]


def test_a_program_with_another_learning_rate_does_not_fit(tmp_path: Path) -> None:
    mine = {"clf": classifier()}
    begun = state.survey(mine)
    fed(mine["clf"]).set_params(eta0=0.005)
    with pytest.raises(DoesNotFit) as caught:
        through(tmp_path / "s", mine, {"clf": classifier(0.1)}, begun)
    assert str(caught.value) == (
        "state['clf'] has eta0=0.1: the checkpoint's is 0.005 and began as 0.02; "
        "a changed model is a new run"
    )


def test_a_copy_of_the_best_model_appears_later(tmp_path: Path) -> None:
    def start() -> dict[str, Any]:
        return {"clf": classifier(), "best": {"clf": None, "score": 0.0}}

    mine, theirs = start(), start()
    begun = state.survey(mine)
    mine["best"]["clf"] = copy.deepcopy(fed(mine["clf"]))
    fed(mine["clf"], 1)
    through(tmp_path / "s", mine, theirs, begun)
    rows = np.eye(4)
    for name in ("coef_", "classes_"):
        ours, others = mine["best"]["clf"], theirs["best"]["clf"]
        assert (getattr(ours, name) == getattr(others, name)).all()
    assert (mine["clf"].predict(rows) == theirs["clf"].predict(rows)).all()


def test_an_unfitted_best_model_is_fitted_later(tmp_path: Path) -> None:
    mine, theirs = ({"best": {"clf": Own(random_state=1)}} for _ in range(2))
    begun = state.survey(mine)
    mine["best"]["clf"] = fed(Own(random_state=1))
    through(tmp_path / "s", mine, theirs, begun)
    assert (theirs["best"]["clf"].coef_ == mine["best"]["clf"].coef_).all()


def test_an_own_estimator_that_appears_later_is_refused() -> None:
    mine: dict[str, Any] = {"best": {}}
    begun = state.survey(mine)
    mine["best"]["clf"] = Own()
    with pytest.raises(StateError, match=r"state\['best'\]\['clf'\] is .*Own, which did not exist"):
        state.capture_all(mine, begun)


@pytest.mark.parametrize(
    "name", ["sklearn.externals.array_api_compat.numpy.memmap", "gzip.GzipFile", "sklearn.os.Pipe"]
)
def test_a_checkpoint_builds_estimators_and_nothing_else(name: str) -> None:
    for kind, rest in (("object", {"args": ["f"]}), ("estimator", {"params": {}, "state": {}})):
        node = {"a": {"$object": f"sklearn.{kind}", "class": name, **rest}}
        with pytest.raises(DoesNotFit, match="cannot be rebuilt"):
            state.restore_all({"box": {}}, {"box": node}, state.Blobs([]))


@pytest.mark.frameworks
def test_fitted_on_a_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame(np.random.default_rng(1).normal(size=(20, 2)), columns=["a", "b"])
    labels = pandas.Series(["x", "y"] * 10)
    mine, theirs = {"clf": classifier()}, {"clf": classifier()}
    begun = state.survey(mine)
    mine["clf"].partial_fit(rows, labels, classes=labels.unique())
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["clf"].feature_names_in_.tolist() == ["a", "b"]
    assert (theirs["clf"].predict(rows) == mine["clf"].predict(rows)).all()
