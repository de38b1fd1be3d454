"""Tensors that a program binds to another name after it has changed them in place."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.loop import DoesNotFit, unchanged

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks


def _each_time(holder: Any, step: int) -> None:
    holder.theta -= 0.1
    holder.theta = holder.theta / 2


def _once(holder: Any, step: int) -> None:
    if step == 4:
        holder.theta = holder.theta.clamp(-0.2, 0.2)
    holder.theta -= 0.1


def _watched(values: dict[str, object]) -> unchanged.Watch:
    watch = unchanged.Watch(values, inline=True)
    watch.begin(0)
    watch.first_step()
    return watch


@pytest.mark.parametrize("work", [_each_time, _once])
def test_a_rebound_tensor_is_refused_by_name(
    work: Callable[[Any, int], None],
) -> None:
    holder = SimpleNamespace(theta=torch.zeros(2))
    values: dict[str, object] = {"w": holder.theta}
    watch = _watched(values)
    said = []
    for step in range(1, 6):
        work(holder, step)
        said += watch.look(step)
    assert len(said) == 1 and said[0].startswith("state['w'] no longer changes, and your program")
    again = unchanged.Watch(values)
    with pytest.raises(DoesNotFit, match=r"state\['w'\] no longer changed before this checkpoint"):
        again.begin(5, watch.note())


def test_a_usual_training_passes() -> None:
    model, frozen = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    best = {"loss": 9.0, "w": model.weight.detach().clone()}
    w = model.weight
    values = {"model": model, "frozen": frozen, "optimizer": optimizer, "best": best}
    watch = _watched(values)
    for step in range(1, 8):
        optimizer.zero_grad()
        model(frozen.weight * w.detach()).square().sum().backward()
        optimizer.step()
        w = torch.ones(1, 2)
        if step % 3 == 0:
            best.update(loss=1 / step, w=model.weight.detach().clone())
        assert watch.look(step) == []
    assert watch.note()["rebound"] == {}
