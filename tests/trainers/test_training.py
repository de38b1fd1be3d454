"""What trainers share: order, evaluation, environment; and the trainer to copy."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from outlast.base import exits
from outlast.spec import metrics
from outlast.spec.result import RESULT_FILE, ResultFile, ResultManifest
from outlast.trainers import __main__ as command
from outlast.trainers import dummy, flags, training
from tests.loop.fake_supervisor import FakeSupervisor

QUICK = ["--epochs", "3", "--limit-rows", "100", "--eval-every", "2", "--step-ms", "0.01"]


@pytest.mark.parametrize("cut", range(9))
def test_an_order_resumes_from_two_numbers(cut: int) -> None:
    baseline = training.Order(10, 4, seed=3)
    batches = [baseline.next().tolist() for _ in range(9)]
    before = training.Order(10, 4, seed=3)
    for _ in range(cut):
        before.next()
    assert before.step == cut
    after = training.Order(10, 4, seed=3)
    after.load_state_dict(before.state_dict())
    assert [after.next().tolist() for _ in range(9 - cut)] == batches[cut:]
    assert [sorted(sum(batches[i : i + 3], [])) for i in (0, 3, 6)] == [list(range(10))] * 3
    assert batches[:3] != batches[3:6]


def test_what_is_evaluated_after() -> None:
    def found(epochs: list[int], every: int, last: int) -> list[int]:
        pairs = zip(epochs, epochs[1:], strict=False)
        return [b for a, b in pairs if training.due(a, b, every=every, last=last)]

    assert found([0, 0, 1, 1, 2, 3, 4, 5], every=2, last=5) == [2, 4, 5]
    assert found([0, 10, 20, 30, 37], every=25, last=37) == [30, 37]
    assert found([0, 1, 2], every=9, last=2) == [2]


def test_another_environment_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    needs = {"numpy": "numpy"}
    then, now = (training.Environment("dummy", needs, threads) for threads in (2, 4))
    now.load_state_dict(then.state_dict())
    said = capsys.readouterr().err
    assert "dummy: continues in another environment (threads 2 then and 4 now)" in said
    assert now.state_dict()["threads"] == "4"
    now.load_state_dict({**now.state_dict(), "processor": "abacus"})
    assert "processor abacus then and " in capsys.readouterr().err
    now.load_state_dict(now.state_dict())
    assert capsys.readouterr().err == ""


def test_threads_of_0_are_all_cores() -> None:
    config = dummy.Config.of(dummy.parser().parse_args(["--threads", "0"]))
    assert config.threads == 0 and config.thread_count >= 1


def train(supervisor: FakeSupervisor, *argv: str) -> Path:
    assert command.main(["dummy", *QUICK, *argv]) == exits.DONE
    assert supervisor.result is not None
    return supervisor.result


def test_the_dummys_result_has_model_metrics_and_flags(supervisor: FakeSupervisor) -> None:
    result = train(supervisor)
    assert sorted(path.name for path in result.iterdir()) == [
        "config.json", "metrics.json", "model.npy",
    ]  # fmt: skip
    table = metrics.read_table((result / "metrics.json").read_bytes())
    assert table["epoch"] == [2, 3] and table["step"] == [6, 9]
    found = json.loads((result / "config.json").read_bytes())
    assert found["trainer"] == "dummy" and found["flags"]["limit_rows"] == 100
    assert not {"mode", "run_dir", "model_output_path"} & set(found["flags"])


def evaluate(
    result: Path, monkeypatch: pytest.MonkeyPatch, *argv: str, trainer: str = "dummy"
) -> int:
    monkeypatch.setattr(training.local, "finished_result", lambda _: result)
    return command.main([trainer, "--mode", "eval", "--run-dir", "somewhere", *argv])


def measured(path: Path) -> tuple[int, str]:
    content = path.read_bytes()
    return len(content), hashlib.sha256(content).hexdigest()


def test_eval_takes_a_copy_of_the_result_and_the_model_in_it(
    supervisor: FakeSupervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(train(supervisor), copy)
    files = [ResultFile(path.name, *measured(path)) for path in copy.iterdir()]
    (copy / RESULT_FILE).write_bytes(ResultManifest.of(files).to_json())
    table = metrics.read_table((copy / "metrics.json").read_bytes())
    capsys.readouterr()
    for place in (copy, copy / "model.npy"):
        assert command.main(["dummy", "--mode", "eval", "--run-dir", str(place)]) == exits.DONE
        recorded = {name: column[-1] for name, column in table.items()}
        assert json.loads(capsys.readouterr().out) == recorded
    model = (copy / "model.npy").read_bytes()
    (copy / "model.npy").write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    assert command.main(["dummy", "--mode", "eval", "--run-dir", str(copy)]) == 1
    said = capsys.readouterr().err
    assert "its result is damaged: " in said and "model.npy: has other bytes than the run" in said
    assert command.main(["dummy", "--mode", "eval", "--run-dir", str(tmp_path)]) == exits.USAGE


def test_eval_needs_no_flags_and_gives_what_was_recorded(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(supervisor, "--seed", "5")
    capsys.readouterr()
    assert evaluate(result, monkeypatch) == exits.DONE
    out, err = capsys.readouterr()
    table = metrics.read_table((result / "metrics.json").read_bytes())
    assert json.loads(out) == {name: column[-1] for name, column in table.items()}
    assert err == ""


def test_eval_says_where_it_differs(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(supervisor)
    table = metrics.read_table((result / "metrics.json").read_bytes())
    was = table["test_loss"][-1]
    table["test_loss"][-1] = math.nextafter(was, 9)
    (result / "metrics.json").write_text(json.dumps(table))
    capsys.readouterr()
    assert evaluate(result, monkeypatch) == exits.DONE
    out, err = capsys.readouterr()
    assert json.loads(out)["test_loss"] == was
    assert f"the run recorded test_loss {table['test_loss'][-1]} and not {was};" in err


def test_eval_of_another_trainers_run_is_refused(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(supervisor)
    assert evaluate(result, monkeypatch, trainer="digits") == exits.USAGE
    assert (
        "holds a run of trainer dummy; run python -m outlast.trainers dummy"
        in capsys.readouterr().err
    )


def test_the_dummy_trains_on_one_file_and_evaluates_on_another(tmp_path: Path) -> None:
    points = np.random.default_rng(0).normal(size=(90, dummy.COLUMNS))
    rows = np.column_stack([points, points[:, 0] > 0])
    np.savetxt(tmp_path / "a.csv", rows[:60], delimiter=",")
    np.savetxt(tmp_path / "b.csv", rows[60:], delimiter=",")
    argv = ["--data", str(tmp_path / "a.csv"), "--eval-data", str(tmp_path / "b.csv")]
    args = dummy.parser().parse_args([*argv, "--epochs", "40", "--step-ms", "0.01"])
    state = dummy.build(dummy.Config.of(args))
    assert len(state.train[1]) == 60 and len(state.test[1]) == 30
    for _ in range(state.total):
        dummy.train_step(state, dummy.next_batch(state))
    assert state.epoch == 40 and dummy.evaluate(state)["test_accuracy"] > 0.85


def test_a_path_that_is_not_there_is_bad_usage() -> None:
    with pytest.raises(flags.UsageError, match="no/such"):
        training.data("no/such")


def test_ctrl_c_before_the_first_step_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While frameworks are imported and data is read, which takes a while."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dummy, "build", interrupted)
    assert command.main(["dummy"]) == exits.INTERRUPTED
    assert capsys.readouterr() == ("", "dummy: interrupted before the first step\n")
