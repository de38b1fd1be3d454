"""Names that frameworks give their files: which of them make a checkpoint where a user has set
nothing. Those of the installed packages come from a real training, the others from the source."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.loop.command.listing import look
from outlast.spec.file_kinds import DEFAULT, Kind
from tests.loop import layouts, programs

SCRIPTS = Path(__file__).parent / "command_scripts"
TENSORBOARD = "events.out.tfevents.1718000000.host.4242.0"

Names = dict[Kind, set[str]]

READ = {
    # karpathy/nanoGPT at e2221318e607, train.py
    "nanogpt": {Kind.CHECKPOINT: {"ckpt.pt"}},
    # ultralytics/ultralytics at 00016300105e, ultralytics/engine/trainer.py
    "ultralytics": {
        Kind.CHECKPOINT: {"weights/last.pt", "weights/best.pt", "weights/epoch10.pt"},
        Kind.LOG: {"results.csv", TENSORBOARD},
        Kind.BY_PRODUCT: {
            *("args.yaml", "labels.jpg", "train_batch0.jpg", "results.png"),
            *("val_batch0_labels.jpg", "confusion_matrix.png"),
        },
    },
    # facebookresearch/detectron2 at 084acd0f781f, detectron2/engine/defaults.py, and
    # facebookresearch/fvcore at 002706f799d8, fvcore/common/checkpoint.py
    "detectron2": {
        Kind.CHECKPOINT: {"model_0004999.pth", "model_final.pth", "last_checkpoint"},
        Kind.LOG: {"metrics.json", "log.txt", "log.txt.rank1", TENSORBOARD},
        Kind.BY_PRODUCT: {"config.yaml"},
    },
}


def kinds_of(names: set[str]) -> Names:
    found: Names = {}
    for name in names:
        found.setdefault(DEFAULT.of(name), set()).add(name)
    return found


@pytest.mark.parametrize("framework", READ)
def test_names_from_the_source(tmp_path: Path, framework: str) -> None:
    names = {name for group in READ[framework].values() for name in group}
    assert kinds_of(names) == READ[framework]
    for name in names - READ[framework][Kind.CHECKPOINT]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert not look(tmp_path).chosen().state, "logs and by-products alone are no checkpoint"


TRAINER = {f"checkpoint-N/{name}" for name in layouts.TRAINER}

WRITTEN = {
    "transformers": (
        ("hf_trainer.py", "--output_dir", "{}", "--model_dir", "{}-model"),
        ("--num_train_epochs", "4"),
        {
            Kind.CHECKPOINT: TRAINER - {"checkpoint-N/config.json"},
            Kind.BY_PRODUCT: {"checkpoint-N/config.json"},
        },
    ),
    "lightning": (
        ("lightning_fit.py", "--default_root_dir", "{}", "--model", "{}-model"),
        ("--max_epochs", "4"),
        {
            Kind.CHECKPOINT: {"checkpoints/last.ckpt", "checkpoints/epoch=N-step=N.ckpt"},
            Kind.LOG: {"logs/version_N/metrics.csv"},
        },
    ),
    "keras": (
        ("keras_fit.py", "--dir", "{}", "--model", "{}.weights.h5"),
        ("--epochs", "4"),
        {
            Kind.CHECKPOINT: {
                *(f"backup/{name}" for name in ("latest.weights.h5", "training_metadata.json")),
                "best.keras",
            },
            Kind.LOG: {"history.log"},
        },
    ),
    "optuna": (
        ("optuna_search.py", "--storage", "sqlite:///{}/study.db"),
        ("--trials", "4"),
        {Kind.CHECKPOINT: {"study.db"}},
    ),
}


@pytest.mark.frameworks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", WRITTEN)
def test_names_of_a_real_training(tmp_path: Path, framework: str) -> None:
    """Names that were there for a moment only, such as SQLite's journal, may be missed or seen."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    (script, *words), more, expected = WRITTEN[framework]
    folder = tmp_path / "files"
    folder.mkdir()
    argv = [str(SCRIPTS / script), *(word.replace("{}", str(folder)) for word in words), *more]
    seen: set[str] = set()
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, *argv],
            env=programs.environment(
                tmp_path, PACE="0.5", KERAS_BACKEND="torch", OMP_NUM_THREADS="1"
            ),
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
        while process.poll() is None:
            seen |= set(look(folder).files)
            time.sleep(0.05)
    assert process.returncode == 0, (tmp_path / "err").read_text()
    names = {re.sub(r"(?<=[-=_])\d+", "N", name) for name in seen if not name.endswith("-journal")}
    found = kinds_of(names)
    found.pop(Kind.TEMPORARY, None)
    assert found == expected
