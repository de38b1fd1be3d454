"""Scripts in the shape of public ones, unmodified, each killed ten times: their results are those
of an undisturbed run, or the test says what the script itself does not restore."""

import importlib.util
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.loop import programs

KILLS = int(os.environ.get("KILLS", "10"))
PACE = "1.6"
QUIET_SEC = "0.3"
FOR_ONE = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}
FOR_ONE |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
SCRIPTS = Path(__file__).parent / "command_scripts"

pytestmark = pytest.mark.timeout(7200)  # each wait has its own limit, WAIT_SEC
frameworks = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "WAIT_SEC", 300.0)


class Case:
    """One script as a command, in folders of the test's."""

    def __init__(self, folder: Path, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        runs = (
            [str(SCRIPTS / name)] if name.endswith(".sh") else [sys.executable, str(SCRIPTS / name)]
        )
        self._command = [*options, "--checkpoint-quiet-sec", QUIET_SEC, "--", *runs, *words]
        self.begins: list[str] = []
        """What each attempt said that it begins after."""

    def argv(self, run_dir: Path) -> list[str]:
        runner = [sys.executable, "-m", "outlast.loop.command", "--run-dir", str(run_dir)]
        return [*runner, *self._command]

    def undisturbed(self) -> dict[str, bytes]:
        place = self.folder / "baseline"
        place.mkdir()
        done = programs.run(place, self.argv(self.folder / "undisturbed"), **FOR_ONE)
        assert done.returncode == 0, done.stderr
        return programs.result_of(self.folder / "undisturbed")

    def killed(self, *, pace: str = PACE, commits: int = 1) -> dict[str, bytes]:
        """Ten times: after some commits, or right at the start; by SIGKILL, once by Ctrl-C."""
        chance = random.Random(self.folder.name)
        for number in range(KILLS):
            self._killed_once(number, chance, pace, commits)
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            code = subprocess.run(
                self.argv(self.run_dir),
                cwd=self.cwd,
                env=programs.environment(self.folder, **FOR_ONE),
                stdout=out,
                stderr=err,
                timeout=programs.WAIT_SEC,
            ).returncode
        assert code == 0, (self.folder / "err").read_text()
        self._note()
        return programs.result_of(self.run_dir)

    def _killed_once(self, number: int, chance: random.Random, pace: str, commits: int) -> None:
        before = programs.newest(self.run_dir)
        env = programs.environment(self.folder, PACE=pace, **FOR_ONE)
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            process = subprocess.Popen(
                self.argv(self.run_dir),
                cwd=self.cwd,
                env=env,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            until = time.monotonic() + programs.WAIT_SEC
            while not self._is_time(before + commits if commits and number % 3 != 2 else None):
                said = (self.folder / "err").read_text()
                assert process.poll() is None, f"kill {number}: it ended before: {said}"
                assert time.monotonic() < until, said
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, float(pace)))
            if number == 4:
                os.killpg(process.pid, signal.SIGINT)
                assert process.wait(programs.WAIT_SEC) == 75
        finally:
            process.kill()
            process.wait()
        programs.wait_until_alone(self.folder)
        self._note()

    def _is_time(self, step: int | None) -> bool:
        if step is not None:
            return programs.newest(self.run_dir) >= step
        return "begins after" in (self.folder / "out").read_text()

    def _note(self) -> None:
        for line in (self.folder / "out").read_text().splitlines():
            if line.startswith("begins after "):
                self.begins.append(line.removeprefix("begins after "))


def needs(package: str) -> None:
    """Skip without it; the test's own process does not import it."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


def differences(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def test_a_bash_pipeline(tmp_path: Path) -> None:
    case = Case(tmp_path, "pipeline.sh", "{checkpoint}", "{result}", "40")
    killed = case.killed()
    assert killed == case.undisturbed() and int(case.begins[-1]) > 5


@frameworks
def test_pytorch_examples_mnist_without_a_checkpoint(tmp_path: Path) -> None:
    """It starts from scratch each time, and its model beside the script is the result."""
    needs("torch")
    case = Case(tmp_path, "mnist.py", "--save-model")
    killed = case.killed(pace="0.5", commits=0)
    assert killed == case.undisturbed() and set(killed) == {"mnist_cnn.pt", "RESULT.json"}


@frameworks
def test_nanogpt_ends_as_if_resumed_by_hand(tmp_path: Path) -> None:
    """It does not restore its random generator, so an interruption at a step changes the result;
    the result is that of the same interruptions without Outlast."""
    needs("torch")
    words = ["{resume:--init_from=resume}", "--out_dir={checkpoint}", "--max_iters=200"]
    case = Case(tmp_path, "nanogpt.py", *words)
    killed = case.killed()
    assert "checkpoint/ckpt.pt" in differences(killed, case.undisturbed())
    plain = [sys.executable, str(SCRIPTS / "nanogpt.py"), f"--out_dir={tmp_path / 'by hand'}"]
    steps = sorted({int(number) for number in case.begins} - {0})
    for number, step in enumerate([*steps, 200]):
        words = [f"--max_iters={step}", *(["--init_from=resume"] if number else [])]
        done = programs.run(tmp_path, [*plain, *words], **FOR_ONE)
        assert done.returncode == 0, done.stderr
    assert killed["checkpoint/ckpt.pt"] == (tmp_path / "by hand/ckpt.pt").read_bytes()


@frameworks
def test_transformers_trainer(tmp_path: Path) -> None:
    """training_args.bin names the folder, which is another one in the undisturbed run."""
    needs("transformers")
    case = Case(
        tmp_path, "hf_trainer.py", "--output_dir", "{checkpoint}", "--model_dir", "{result}"
    )
    killed, undisturbed = case.killed(), case.undisturbed()
    assert set(differences(killed, undisturbed)) <= {"training_args.bin", "RESULT.json"}, (
        case.begins
    )
    assert "model.safetensors" in killed and int(case.begins[-1]) > 0


@frameworks
def test_lightning(tmp_path: Path) -> None:
    needs("lightning")
    words = ["--default_root_dir", "{checkpoint}", "--model", "{result}/model.pt"]
    case = Case(tmp_path, "lightning_fit.py", *words)
    killed = case.killed()
    assert killed == case.undisturbed() and case.begins[-1].endswith("last.ckpt")


@frameworks
def test_keras_backup_and_restore(tmp_path: Path) -> None:
    needs("keras")
    case = Case(
        tmp_path, "keras_fit.py", "--dir", "{checkpoint}", "--model", "{result}/w.weights.h5"
    )
    killed = case.killed()
    assert case.begins[-1] != "[]"
    assert _arrays(killed, tmp_path / "a.h5") == _arrays(case.undisturbed(), tmp_path / "b.h5")


def _arrays(result: Mapping[str, bytes], file: Path) -> dict[str, bytes]:
    """A file of weights notes when it was made."""
    h5py = pytest.importorskip("h5py")
    found: dict[str, bytes] = {}
    file.write_bytes(result["w.weights.h5"])
    with h5py.File(file) as weights:
        weights.visititems(
            lambda name, item: (
                found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


@frameworks
def test_optuna_keeps_each_saved_trial(tmp_path: Path) -> None:
    """Its sampler begins with its seed in each attempt, so the parameters differ; no trial is lost
    or counted twice, and each value follows from its parameters."""
    needs("optuna")
    words = ["--storage", "sqlite:///{checkpoint}/study.db", "--trials", "60"]
    case = Case(tmp_path, "optuna_search.py", *words)
    killed = case.killed(pace="0.8", commits=6)
    (tmp_path / "study.db").write_bytes(killed["checkpoint/study.db"])
    with sqlite3.connect(tmp_path / "study.db") as study:
        query = "select count(*) from trials where state = 'COMPLETE'"
        assert study.execute(query).fetchone() == (60,)
        rows = study.execute(
            "select value, x.param_value, rate.param_value from trial_values v "
            "join trial_params x on x.trial_id = v.trial_id and x.param_name = 'x' "
            "join trial_params rate on rate.trial_id = v.trial_id and rate.param_name = 'rate'"
        ).fetchall()
    study.close()
    assert len(rows) == 60
    assert all(value == pytest.approx((x - 2) ** 2 + rate) for value, x, rate in rows)
    assert [int(count) for count in case.begins] == sorted(map(int, case.begins))
    assert int(case.begins[-1]) > 0


@frameworks
def test_files_as_ultralytics_writes_them(tmp_path: Path) -> None:
    needs("torch")
    words = ["--project", "{checkpoint}", "--resume", "{latest:last.pt}", "--epochs", "20"]
    case = Case(tmp_path, "ultralytics_like.py", *words)
    killed, undisturbed = case.killed(), case.undisturbed()
    csv = {"checkpoint/results.csv", "RESULT.json"}
    assert set(differences(killed, undisturbed)) <= csv, case.begins
    assert int(case.begins[-1]) > 0
    # A line of the CSV comes before the model that it belongs to: it is there twice after a kill.
    rows = set(killed["checkpoint/results.csv"].splitlines())
    assert rows == set(undisturbed["checkpoint/results.csv"].splitlines())


@frameworks
def test_jax_with_optax_and_orbax(tmp_path: Path) -> None:
    needs("orbax")
    case = Case(tmp_path, "orbax_fit.py", "--dir", "{checkpoint}", "--model", "{result}/model.npz")
    killed = case.killed()
    assert killed == case.undisturbed() and int(case.begins[-1]) > 0
