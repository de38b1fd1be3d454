"""Modules and tensors that appear, change their shape or share memory after training began."""

import copy
from pathlib import Path
from typing import Any

import pytest

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import StateError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks


def through(folder: Path, mine: Any, theirs: Any, begun: Any) -> None:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(mine, begun)))
    found = snapshot.read(folder)
    state.restore_all(theirs, found.nodes, found.blobs)
    verify.check(theirs, found)


def start() -> dict[str, Any]:
    return {"best": {"weights": None}, "m": torch.nn.Linear(2, 2)}


@pytest.mark.parametrize("copied", [True, False])
def test_the_weights_of_the_best_model(tmp_path: Path, copied: bool) -> None:
    mine, theirs = start(), start()
    begun = state.survey(mine)
    weights = mine["m"].state_dict()
    mine["best"]["weights"] = copy.deepcopy(weights) if copied else weights
    with torch.no_grad():
        mine["m"].weight += 1
    through(tmp_path / "s", mine, theirs, begun)
    best = theirs["best"]["weights"]
    assert torch.equal(theirs["m"].weight, mine["m"].weight)
    assert torch.equal(best["weight"], mine["best"]["weights"]["weight"])
    assert best._metadata == weights._metadata
    shared = best["weight"].data_ptr() == theirs["m"].weight.data_ptr()
    assert shared is not copied and not best["weight"].requires_grad


def test_a_module_that_appears_is_refused_unless_it_is_one_of_the_start(tmp_path: Path) -> None:
    mine, theirs = start(), start()
    begun = state.survey(mine)
    mine["best"]["weights"] = mine["m"]
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["best"]["weights"] is theirs["m"]
    mine["best"]["weights"] = copy.deepcopy(mine["m"])
    with pytest.raises(StateError, match=r"state\['best'\]\['weights'\] is torch.*did not exist"):
        state.capture_all(mine, begun)


def test_an_array_that_changes_its_shape_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    mine = {"o": torch.optim.SGD([model.weight], 0.1)}
    begun = state.survey(mine)
    mine["o"].add_param_group({"params": [model.bias]})
    with pytest.raises(StateError, match="groups of 1, 1 parameters, and was .* groups of 1 para"):
        state.capture_all(mine, begun)


class Metric(torch.nn.Module):
    """As torchmetrics: state in attributes, none of it in state_dict()."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(1)


def test_a_module_without_state_is_refused() -> None:
    with pytest.raises(StateError, match=r"state\['m'\] is .*whose state_dict\(\) is empty"):
        state.survey({"m": torch.nn.ReLU()})


def test_a_metric_that_is_only_its_attributes(tmp_path: Path) -> None:
    mine, theirs = {"m": Metric()}, {"m": Metric()}
    begun = state.survey(mine)
    mine["m"].total = mine["m"].total + 5
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["m"].total.item() == 5


def test_a_disabled_scaler_has_nothing_to_save(tmp_path: Path) -> None:
    mine, theirs = ({"s": torch.amp.GradScaler("cpu", enabled=False)} for _ in range(2))
    through(tmp_path / "s", mine, theirs, state.survey(mine))


def test_a_replay_buffer_of_tensors(tmp_path: Path) -> None:
    from tests.loop.test_kinds_of_state import Move

    mine: dict[str, Any] = {"box": {"moves": []}}
    theirs: dict[str, Any] = {"box": {"moves": []}}
    begun = state.survey(mine)
    mine["box"]["moves"].append(Move(torch.ones(2), 1.0))
    through(tmp_path / "s", mine, theirs, begun)
    (move,) = theirs["box"]["moves"]
    assert type(move) is Move and move.seen.tolist() == [1, 1]
