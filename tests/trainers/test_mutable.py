"""What a trainer lists as mutable it really takes up in the middle of a run, and nothing more."""

import pytest

from outlast import trainers
from outlast.base import exits
from outlast.spec.changes import How
from outlast.trainers import __main__ as command
from tests.loop.fake_supervisor import FakeSupervisor, stopping_early

SMALL = {
    "dummy": ["--limit-rows", "100", "--step-ms", "0.01"],
    "digits": ["--limit-rows", "200", "--hidden", "4"],
}


def files_of(supervisor: FakeSupervisor) -> dict[str, bytes]:
    assert supervisor.result is not None
    return {path.name: path.read_bytes() for path in sorted(supervisor.result.iterdir())}


def train(supervisor: FakeSupervisor, *argv: str) -> dict[str, bytes]:
    supervisor.restore, supervisor.step, supervisor.result = None, 0, None
    supervisor.committed.clear()
    supervisor.on_snapshot = FakeSupervisor.commit
    assert command.main(list(argv)) == exits.DONE
    return files_of(supervisor)


def change(supervisor: FakeSupervisor, before: list[str], now: list[str]) -> dict[str, bytes]:
    """Stopped once its first checkpoint is made, resumed with other flags."""
    supervisor.restore, supervisor.step, supervisor.result = None, 0, None
    supervisor.committed.clear()
    with stopping_early(supervisor), pytest.raises(SystemExit) as ended:
        command.main(before)
    assert ended.value.code == exits.INTERRUPTED
    assert supervisor.gone.wait(60)
    supervisor.resume_from()
    assert supervisor.step == 2
    assert command.main(now) == exits.DONE
    return files_of(supervisor)


@pytest.mark.parametrize("name", SMALL)
def test_more_epochs_and_evaluations_give_the_run_that_had_them_from_its_start(
    supervisor: FakeSupervisor, name: str
) -> None:
    few = [name, *SMALL[name], "--epochs", "2", "--eval-every", "2"]
    more = [name, *SMALL[name], "--epochs", "4", "--eval-every", "1"]
    assert change(supervisor, few, more) == train(supervisor, *more)


def test_the_dummy_takes_up_another_learning_rate(supervisor: FakeSupervisor) -> None:
    def flags(rate: str) -> list[str]:
        return ["dummy", *SMALL["dummy"], "--epochs", "2", "--learning-rate", rate]

    changed = change(supervisor, flags("0.05"), flags("0.5"))
    slow, fast = (train(supervisor, *flags(rate))["model.npy"] for rate in ("0.05", "0.5"))
    assert changed["model.npy"] not in (slow, fast)


@pytest.mark.parametrize("name", trainers.names())
def test_what_is_listed_is_a_flag_of_the_trainer(name: str) -> None:
    listed = trainers.mutable(name)
    options = trainers.load(name).parser().format_help()
    assert all(f"--{flag} " in options and how in list(How) for flag, how in listed.items())
    assert not {"seed", "batch-size", "data", "hidden"} & listed.keys()


def test_a_trainer_that_lists_nothing_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trainers.load("dummy"), "MUTABLE")
    assert trainers.mutable("dummy") == {}
