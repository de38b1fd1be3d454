"""Plain attributes of modules and optimisers: saved and restored, or refused by their name."""

import collections
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import StateError
from tests.loop import programs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks
nn = torch.nn


class Average:
    """A moving average of one's own, without state_dict()."""

    def __init__(self) -> None:
        self.shadow = {"w": torch.zeros(2)}
        self.updates = 0


class Counted(torch.optim.SGD):
    """An optimiser that keeps a number beside its state."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        return super().step(closure)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.inner = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.place = "cpu"
        self.steps = 0
        self.mean = torch.zeros(2)
        self.window = self.mean[:1]
        self.table = np.zeros(3)
        self.losses: list[Any] = []
        self.counts = collections.Counter()
        self.random = random.Random(1)
        self.generator = torch.Generator().manual_seed(1)
        self.numbers = np.random.default_rng(1)
        self.hidden = None
        self.last = None
        self.extra = [nn.Linear(2, 2)]
        self.all = [self.fc, self.inner]
        self.optimizer = torch.optim.SGD(self.fc.parameters(), lr=0.1, momentum=0.9)
        self.settings = SimpleNamespace(width=2)
        self.average = Average()
        self.gone = 1


def saved(folder: Path, mine: Any, begun: Any) -> Any:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(mine, begun)))
    return snapshot.read(folder)


def through(folder: Path, mine: Any, theirs: Any, begun: Any) -> None:
    found = saved(folder, mine, begun)
    state.restore_all(theirs, found.nodes, found.blobs)
    verify.check(theirs, found)


def train(net: Any) -> None:
    """Values that a step may leave in attributes."""
    net.steps += 1
    out = net.fc(torch.ones(2))
    net.hidden = out * 2  # the result of a computation, kept for the next step
    net.last = out
    net.losses.append(out.sum())
    net.counts["a"] += 1
    net.mean = net.mean.mul_(0.9).add_(1)
    net.table[1] += 3
    net.cache = torch.arange(4.0)
    net.random.random(), net.numbers.random(), torch.rand(1, generator=net.generator)
    net.inner[0].p = 0.25
    out.sum().backward()
    net.optimizer.step()
    with torch.no_grad():
        net.extra[0].weight += 1


def test_all_attributes_of_a_module_are_restored(tmp_path: Path) -> None:
    mine, theirs = {"m": Net()}, {"m": Net()}
    begun = state.survey(mine)
    train(mine["m"])
    mine["m"].later = {"a": [1, torch.ones(1)]}
    del mine["m"].gone
    held = theirs["m"].mean, theirs["m"].optimizer, theirs["m"].extra[0]
    theirs["m"].place = "another machine's"
    through(tmp_path / "s", mine, theirs, begun)
    one, two = mine["m"], theirs["m"]
    assert (two.steps, two.counts, two.inner[0].p) == (1, {"a": 1}, 0.25)
    assert torch.equal(two.hidden, one.hidden) and not two.hidden.requires_grad
    assert torch.equal(two.losses[0], one.losses[0].detach())
    assert two.mean is held[0] and torch.equal(two.window, one.mean[:1])
    two.mean += 1
    assert two.window.item() == two.mean[0].item(), "a view is no longer one"
    assert two.table.tolist() == [0, 3, 0] and two.cache.tolist() == [0, 1, 2, 3]
    assert two.random.random() == one.random.random()
    assert two.numbers.random() == one.numbers.random()
    assert torch.equal(
        torch.rand(3, generator=two.generator), torch.rand(3, generator=one.generator)
    )
    assert two.optimizer is held[1] and two.extra[0] is held[2]
    assert torch.equal(two.extra[0].weight, one.extra[0].weight)
    assert two.later == one.later and not hasattr(two, "gone")
    assert two.place == "another machine's", "what has not changed is the program's"


def test_one_object_in_the_module_and_in_the_state(tmp_path: Path) -> None:
    def start() -> dict[str, Any]:
        net = Net()
        return {"m": net, "optimizer": net.optimizer, "average": net.average.shadow}

    mine, theirs = start(), start()
    begun = state.survey(mine)
    train(mine["m"])
    mine["average"]["w"] += 1
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["m"].optimizer is theirs["optimizer"]
    assert theirs["m"].average.shadow["w"].tolist() == [1, 1]
    buffers = [
        each["optimizer"].state[each["m"].fc.weight]["momentum_buffer"] for each in (mine, theirs)
    ]
    assert torch.equal(*buffers)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda net: net.average.shadow["w"].add_(1), r"\.average\.shadow\['w'\]"),
        (lambda net: setattr(net.average, "updates", 1), r"\.average\.updates"),
        (lambda net: net.average.shadow.update(v=torch.ones(1)), r"\.average\.shadow"),
        (lambda net: net.all.append(3), r"\.all"),
    ],
)
def test_a_changing_value_that_cannot_be_saved_is_refused(change: Any, place: str) -> None:
    mine = {"m": Net()}
    begun = state.survey(mine)
    state.capture_all(mine, begun)
    change(mine["m"])
    with pytest.raises(StateError, match=rf"state\['m'\]{place}.* changes during training"):
        state.capture_all(mine, begun)


def test_an_optimizer_that_counts(tmp_path: Path) -> None:
    def start() -> dict[str, Any]:
        model = nn.Linear(1, 1)
        return {"model": model, "optimizer": Counted(model.parameters())}

    mine, theirs = start(), start()
    begun = state.survey(mine)
    mine["model"](torch.ones(1)).sum().backward()
    mine["optimizer"].step()
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["optimizer"].calls == 1


class Late(torch.optim.SGD):
    """Has an attribute once it has made a step, and another one no longer."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.calls = getattr(self, "calls", 0) + 1
        vars(self).pop("fresh", None)


class LateModule(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        vars(self).pop("fresh", None)
        return super().forward(x)


@pytest.mark.parametrize("fresh", [False, True])
def test_attributes_are_restored_into_objects_without_attributes(
    tmp_path: Path, fresh: bool
) -> None:
    """Attributes that the checkpoint lacks are removed."""

    def start() -> dict[str, Any]:
        module = LateModule(1, 1)
        optimizer = Late([nn.Parameter(torch.ones(1))], lr=0.1)
        for each in (module, optimizer) if fresh else ():
            each.fresh = True
        return {"module": module, "optimizer": optimizer}

    def step(state: dict[str, Any], number: int) -> None:
        state["module"](torch.ones(1))
        state["optimizer"].step()
        if fresh and number == 1:
            del state["module"].calls, state["optimizer"].calls

    mine, theirs = start(), start()
    begun = state.survey(mine)
    for number in (0, 1) if fresh else (0,):
        step(mine, number)
    through(tmp_path / "s", mine, theirs, begun)
    for each in (theirs["module"], theirs["optimizer"]):
        assert getattr(each, "calls", 0) == (0 if fresh else 1) and not hasattr(each, "fresh")


def test_modules_of_torch_pass(tmp_path: Path) -> None:
    """Their own attributes: references, lists of weights, functions."""

    def start() -> dict[str, Any]:
        torch.manual_seed(0)
        weighted = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        layers = [nn.LSTM(2, 2), nn.TransformerEncoderLayer(4, 2, 8), nn.MultiheadAttention(4, 2)]
        layers += [weighted, nn.BatchNorm1d(3), nn.Embedding(3, 2), nn.Softmax(dim=0)]
        return {"m": nn.ModuleList(layers)}

    mine, theirs = start(), start()
    begun = state.survey(mine)
    mine["m"][0](torch.ones(1, 2))
    mine["m"][3](torch.ones(2)).sum().backward()
    mine["m"].eval()
    mine["m"][1](torch.ones(3, 4))
    through(tmp_path / "s", mine, theirs, begun)


PROGRAM = """
import os, sys, time, torch, outlast

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 1)
        self.average = torch.zeros(3)  # no buffer
        self.scale, self.seen = 1.0, []

    def forward(self, x):
        return self.fc(x * self.scale + 0.1 * self.average)

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
with outlast.train({"net": net, "optimizer": optimizer}, 12, run_dir=sys.argv[1],
                   checkpoint_every="1") as run:
    for step in run.steps():
        loss = net(torch.full((3,), step / 12.0)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        net.average = 0.9 * net.average + 0.1 * net.fc.weight.detach()[0]
        net.scale *= 0.9
        net.seen.append(loss.item())
        run.log(loss=loss.item())
        time.sleep(float(os.environ["PAUSE"]))
    run.result("out.txt").write_text(repr([net.seen, net.scale, net.average.tolist()]))
"""


@pytest.mark.timeout(300)
def test_a_killed_training_restores_its_modules_extra_state(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    baseline, killed = tmp_path / "baseline", tmp_path / "killed"
    command = [sys.executable, "p.py", str(killed)]
    done = programs.run(tmp_path, [*command[:2], str(baseline)], PAUSE="0")
    assert done.returncode == 0, done.stderr
    for step in (2, 7):
        with programs.started(tmp_path, command, PAUSE="0.5") as process:
            programs.wait_for(lambda step=step: programs.newest(killed) >= step, process)
            process.kill()
        programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, command, PAUSE="0")
    assert done.returncode == 0, done.stderr
    assert programs.head(killed)["term"] == 3
    assert programs.result_of(killed) == programs.result_of(baseline)
