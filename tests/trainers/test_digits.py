"""The digits trainer: resumed anywhere it ends with the same bytes, and it learns."""

import json
from pathlib import Path

import numpy as np
import pytest

from outlast.base import exits
from outlast.loop import snapshot, state, verify
from outlast.spec import metrics
from outlast.trainers import __main__ as command
from outlast.trainers import digits, flags
from tests.loop.fake_supervisor import FakeSupervisor, stopping_early

# 104 training rows in batches of 32: the last step of each of the 3 epochs has 8.
SMALL = [
    "--limit-rows", "130", "--epochs", "3", "--batch-size", "32", "--hidden", "16", "--eval-every",
    "2",
]  # fmt: skip
STEPS = 12


def small() -> digits.State:
    return digits.build(digits.Config.of(digits.parser().parse_args(SMALL)))


def make(training: digits.State, steps: int) -> digits.State:
    for _ in range(steps):
        digits.train_step(training, digits.next_batch(training))
    return training


def files_of(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--hidden", "999999999,999999999"], "must be at most 8 sizes of 1 to 4096"),
        (["--hidden", "64,4097"], "digits: --hidden: 64,4097: must be at most 8 sizes of 1 to"),
        (["--hidden", ",".join("1" * 9)], "must be at most 8 sizes"),
        (["--hidden", "9" * 5000], "must be whole numbers above 0"),
        (["--threads", "100000"], "digits: --threads: 100000: must be 0 to 1024"),
    ],
)
def test_what_no_machine_can_hold_is_refused(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        digits.parser().parse_args(argv)
    assert caught.value.code == exits.USAGE
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


def test_the_largest_network_and_most_threads_are_taken() -> None:
    sizes = (digits.LAYER_SIZE_MOST,) * digits.LAYERS_MOST
    argv = ["--hidden", ",".join(map(str, sizes)), "--threads", str(flags.THREADS_MOST)]
    config = digits.Config.of(digits.parser().parse_args(argv))
    assert (config.hidden, config.threads) == (sizes, flags.THREADS_MOST)


def test_the_last_step_of_an_epoch_has_what_is_left() -> None:
    training = small()
    assert training.order.steps_per_epoch == 4
    rows = [len(digits.next_batch(training)[1]) for _ in range(8)]
    assert rows == [32, 32, 32, 8] * 2
    assert training.order.state_dict() == {"epoch": 2, "row": 0}


def test_every_epoch_has_every_row_once_in_another_order() -> None:
    training = small()
    epochs = [
        np.concatenate([digits.next_batch(training)[1] for _ in range(4)]).tolist()
        for _ in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(training.train[1].tolist())
    assert epochs[0] != epochs[1]


def test_shifts_keep_the_scans_whole() -> None:
    training = small()
    pixels, _ = digits.next_batch(training)
    assert pixels.shape == (32, 64)
    originals = training.train[0]
    sums = pixels.sum(axis=1)
    assert all(sums <= originals.sum(axis=1).max()) and pixels.max() <= 1
    whole = small()
    whole.rng = np.random.default_rng(1)
    shifted, _ = digits.next_batch(whole)
    assert not np.array_equal(pixels, shifted), "the random numbers must matter"


@pytest.mark.parametrize("cut", range(STEPS + 1))
def test_a_snapshot_at_any_step_resumes_to_the_same_parameters(tmp_path: Path, cut: int) -> None:
    baseline = make(small(), STEPS)
    before = make(small(), cut)
    nodes, blobs = state.capture_all(digits.state_dict(before))
    snapshot.write(tmp_path / "s", snapshot.Saved(cut, {}, nodes, blobs))
    saved = snapshot.read(tmp_path / "s")
    after = small()
    state.restore_all(digits.state_dict(after), saved.nodes, saved.blobs)
    make(after, STEPS - cut)
    assert verify.difference(
        state.capture_all(digits.state_dict(baseline)), state.capture_all(digits.state_dict(after))
    ) is None  # fmt: skip
    one, two = digits.parameters(baseline), digits.parameters(after)
    assert list(one) == ["layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"]
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_preempted_three_times_the_result_is_the_same_bytes(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["digits", *SMALL]) == exits.DONE
    baseline = files_of(supervisor.result)
    reports = capsys.readouterr().out
    assert [json.loads(line)["epoch"] for line in reports.splitlines()] == [2, 3]
    assert list(baseline) == ["config.json", "metrics.json", "model.bin", "model.json"]
    table = metrics.read_table(baseline["metrics.json"])
    assert table["step"] == [8, 12] and table["epoch"] == [2, 3]

    supervisor.restore, supervisor.step, supervisor.result = None, 0, None
    supervisor.committed.clear()

    stops = []
    for _ in range(3):
        with stopping_early(supervisor), pytest.raises(SystemExit) as ended:
            command.main(["digits", *SMALL])
        assert ended.value.code == exits.INTERRUPTED
        assert supervisor.gone.wait(60)
        supervisor.resume_from()
        stops.append(supervisor.step)
    assert command.main(["digits", *SMALL]) == exits.DONE
    assert supervisor.result is not None
    assert stops == sorted(set(stops)) and stops[-1] < STEPS
    assert files_of(supervisor.result) == baseline


def test_the_result_has_no_clock_and_is_read_back(supervisor: FakeSupervisor) -> None:
    assert command.main(["digits", *SMALL]) == exits.DONE
    assert supervisor.result is not None
    training = small()
    digits.load_model(training, supervisor.result)
    table = metrics.read_table((supervisor.result / "metrics.json").read_bytes())
    assert digits.evaluate(training)["test_accuracy"] == table["test_accuracy"][-1]


def test_it_learns_to_read_digits(supervisor: FakeSupervisor) -> None:
    """A tenth of the default epochs is enough for 0.93."""
    supervisor.every = "auto"
    argv = ["digits", "--epochs", "15"]
    assert command.main(argv) == exits.DONE
    assert supervisor.result is not None
    table = metrics.read_table((supervisor.result / "metrics.json").read_bytes())
    assert table["test_accuracy"][-1] >= 0.93
    best = [message for message, _ in supervisor.committed if "best" in message.tags]
    assert best and max(table["test_accuracy"]) == table["test_accuracy"][
        table["step"].index(best[-1].step)
    ]  # fmt: skip


@pytest.mark.long
def test_the_defaults_read_digits_well(supervisor: FakeSupervisor) -> None:
    supervisor.every = "auto"
    assert command.main(["digits"]) == exits.DONE
    assert supervisor.result is not None
    table = metrics.read_table((supervisor.result / "metrics.json").read_bytes())
    assert table["epoch"][-1] == 150
    assert table["test_accuracy"][-1] >= 0.96


def test_rows_of_another_file_are_read(tmp_path: Path) -> None:
    training = small()
    pixels = np.concatenate([training.test[0], training.train[0]]) * 16
    labels = np.concatenate([training.test[1], training.train[1]])
    path = tmp_path / "digits.csv"
    np.savetxt(path, np.column_stack([pixels, labels]), delimiter=",", fmt="%g")
    args = digits.parser().parse_args([*SMALL, "--data", str(path)])
    again = digits.build(digits.Config.of(args))
    assert len(again.train[1]) == len(training.train[1])
    assert again.train[0].max() == 1
