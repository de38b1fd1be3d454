"""What a program of PyTorch, Keras or scikit-learn holds and changes beside its state: named, or
saved and passed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.loop.fake_supervisor import FakeSupervisor
from tests.loop.test_unsaved import check_refused, train

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.frameworks


class Parts:
    """A small training of PyTorch."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, step: int) -> None:
        x = torch.arange(12.0).reshape(4, 3) / step
        self.model(x).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()


def named(parts: Parts, *left_out: str) -> dict[str, Any]:
    return {name: item for name, item in vars(parts).items() if name not in left_out}


@pytest.mark.parametrize("left_out", ["model", "optimizer", "scheduler"])
def test_a_part_that_is_left_out_of_the_state_is_named(
    supervisor: FakeSupervisor, left_out: str
) -> None:
    parts = Parts()
    check_refused(supervisor, f"parts.{left_out}", parts.step, **named(parts, left_out))


@pytest.mark.parametrize("make", [
    lambda model: copy.deepcopy(model),
    lambda model: torch.optim.swa_utils.AveragedModel(model),
])  # fmt: skip
def test_an_average_of_weights_is_named_and_passes_in_the_state(
    supervisor: FakeSupervisor, make: Callable[[Any], Any]
) -> None:
    parts = Parts()
    ema = make(parts.model)

    def work(step: int) -> None:
        parts.step(step)
        if hasattr(ema, "update_parameters"):
            ema.update_parameters(parts.model)
        else:
            with torch.no_grad():
                for mine, theirs in zip(ema.parameters(), parts.model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)

    check_refused(supervisor, "ema", work, **named(parts))
    supervisor.restore, supervisor.step = None, 0
    assert train(supervisor, {**named(parts), "ema": ema}, work) == []


def test_the_generator_of_a_loader_is_named(supervisor: FakeSupervisor) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, shuffle=True, generator=torch.Generator())
    check_refused(supervisor, "loader.generator", lambda step: next(iter(loader)))


class Trainer:
    """Saves its parts by their own state_dict()."""

    def __init__(self) -> None:
        self.parts = Parts()
        self.scaler = torch.amp.GradScaler("cpu")
        self.epoch = 0

    def step(self, step: int) -> None:
        self.parts.step(step)
        self.epoch = step // 2

    def state_dict(self) -> dict[str, Any]:
        found = {name: item.state_dict() for name, item in vars(self.parts).items()}
        return {**found, "scaler": self.scaler.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        for name, item in vars(self.parts).items():
            item.load_state_dict(values[name])
        self.scaler.load_state_dict(values["scaler"])
        self.epoch = values["epoch"]


def test_a_trainer_that_saves_its_parts_by_itself_passes(supervisor: FakeSupervisor) -> None:
    first, again = Trainer(), Trainer()
    assert train(supervisor, {"trainer": first}, first.step) == []
    supervisor.resume_from(2)
    assert train(supervisor, {"trainer": again}, again.step, last=6) == []


class Own(torch.optim.lr_scheduler.LRScheduler):
    """A program's own schedule."""

    def get_lr(self) -> list[float]:
        return [0.1 / (1 + self.last_epoch) for _ in self.optimizer.param_groups]


@pytest.mark.parametrize("kind", [
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=90),
    lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.StepLR(optimizer, 2),
        ],
        [2],
    ),
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.1),
    lambda optimizer: Own(optimizer),
])  # fmt: skip
def test_schedules_in_the_state_pass(supervisor: FakeSupervisor, kind: Callable[..., Any]) -> None:
    def make() -> Parts:
        parts = Parts()
        parts.optimizer = torch.optim.SGD(parts.model.parameters(), 0.1)
        parts.scheduler = kind(parts.optimizer)
        return parts

    first, again = make(), make()
    assert train(supervisor, named(first), first.step) == []
    supervisor.resume_from(2)
    assert train(supervisor, named(again), again.step, last=6) == []


def test_an_object_that_only_observes_passes(supervisor: FakeSupervisor) -> None:
    parts, teacher, loss = Parts(), Parts(7).model.eval(), torch.nn.MSELoss()
    for item in teacher.parameters():
        item.requires_grad_(False)
    metrics = pytest.importorskip("torchmetrics")
    metric = metrics.MeanMetric()
    wrapped = torch.nn.DataParallel(parts.model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(parts.optimizer, patience=1)

    def work(step: int) -> None:
        parts.step(step)
        loss(teacher(torch.ones(2, 3)), torch.ones(2, 3))
        plateau.step(1.0)
        metric.update(step)
        metric.compute()
        metric.reset()
        teacher.train(step % 2 == 0)
        teacher.eval()
        assert wrapped.module is parts.model

    assert train(supervisor, {**named(parts), "plateau": plateau}, work, last=8) == []


class Watcher:
    """A callback as a library has it: numbers, and no state_dict()."""

    __module__ = "a_library.callbacks"

    def __init__(self) -> None:
        self.wait, self.best = 0, 9.0


class Watched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.watcher = Watcher()


def test_numbers_of_a_librarys_object_in_a_module_are_named(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    library = types.ModuleType("a_library.callbacks")
    library.__file__ = "/usr/lib/python3/dist-packages/a_library/callbacks.py"
    monkeypatch.setitem(sys.modules, "a_library.callbacks", library)
    model = Watched()

    def work(step: int) -> None:
        with torch.no_grad():
            model.linear.weight += 1
        model.watcher.wait += 1

    check_refused(supervisor, "model.watcher.wait", work, model=model)


def test_a_fitted_scaler_of_scikit_learn_is_named(supervisor: FakeSupervisor) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    scaler = preprocessing.StandardScaler()
    scaler.partial_fit([[0.0]])
    check_refused(supervisor, "scaler", lambda step: scaler.partial_fit([[float(step)]]))
