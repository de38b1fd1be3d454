"""Every Python block of the pages runs, within the few lines that their page has before them, and
so does each whole file to copy: as it is, and killed."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.loop import programs
from tests.tools.test_docs import PAGES

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
OTHER = re.compile(r"^( *)```(sh|yaml)\n(.*?)^ *```$", re.M | re.S)
LOOP = re.compile(r"^( +)(for [^\n]* in (?:zip\()?run\.steps\(\)[^\n]*:)$", re.M)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu"}

TORCH = """
import os, time, torch, outlast
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
train = test = TensorDataset(torch.ones(640, 4), torch.zeros(640, dtype=torch.int64))
class args:
    seed, epochs = 0, 1
def train_step(model, optimizer, scheduler, x, y):
    return 0.5
def accuracy(model, test):
    return 0.5
"""
NUMPY = """
import numpy as np, outlast
model, rng, rows, w = {"w": 1}, np.random.default_rng(0), np.ones(3), np.zeros(3)
optimizer, steps, position, loss, a, accuracy = {"n": 0}, 3, {"n": 0}, 0.5, 0.5, 0.5
evals_without_improvement = 5
"""
BODY = """
    for step in run.steps():
        run.log(loss=0.5)
"""
FINISHED = """
import outlast, sys
with outlast.train({"x": {"n": 0}}, 3, run_dir="first", arguments={}) as run:
    for step in run.steps():
        run.eval(test_accuracy=0.5, best="max", of="test_accuracy", train_loss=1, test_loss=2)
    from outlast.loop import snapshot
    from sklearn.neural_network import MLPClassifier
    model = MLPClassifier((4,)).partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])
    snapshot.write_values(run.result("model.json"), {"model": model})
    run.result("model.onnx").write_bytes(b"x")
    run.result("search.json").write_text('{"best": 0, "candidates": [{}]}')
"""

PROGRAM = ("start.md", 0)
"""A program of a stack, which tests/program/test_experiment.py runs."""

CONTEXT: dict[tuple[str, int], tuple[str, str, str]] = {
    ("your-trainer.md", 0): ("torch", TORCH, ""),
    ("your-trainer.md", 1): (
        "",
        NUMPY + "with outlast.train({'box': {'n': 0}}, 9) as run:\n  for step in run.steps():\n",
        "assert run.step == 1",
    ),
    ("your-trainer.md", 2): (
        "",
        NUMPY + "def train_step(model, fold, step):\n    model['w'] += fold + 1\n    return 0.5\n"
        "def accuracy(model, fold):\n    return float(model['w'][0])\n",
        "assert scores == [3.0, 6.0, 9.0, 12.0, 15.0]",
    ),
    ("your-trainer.md", 3): (
        "torch",
        TORCH + "steps, loss = 3, 0.5\nrng = torch.random\nposition = {'n': 0}\n",
        "",
    ),
    ("your-trainer.md", 4): ("", NUMPY, BODY),
    ("your-trainer.md", 5): ("", NUMPY, BODY),
    ("your-trainer.md", 6): (
        "xgboost",
        "import numpy as np, xgboost\nparams, rounds, step = {'subsample': 0.5}, 2, 1\n"
        "rows = xgboost.DMatrix(np.ones((9, 2)), np.ones(9))\n",
        "assert box['raw']",
    ),
    ("README.md", 0): ("", NUMPY, ""),
    ("operating.md", 0): (
        "tensorboard",
        "import os\nfrom torch.utils.tensorboard import SummaryWriter\n"
        "os.environ['LOG_DIR'] = 'x'\n",
        "writer.close()",
    ),
    ("operating.md", 1): ("pandas", FINISHED, ""),
}
"""By page and number: the framework it needs, and what stands before and after the block."""
OTHER_NAMES = {
    "gs://…/t000001/s000000000400-0a1b/#5f…": "{init}",
    "gs://my-project-outlast/experiments/census": "first",
    "my-experiment": "first",
}


def blocks() -> dict[tuple[str, int], str]:
    return {
        (page.name, number): code
        for page in PAGES
        for number, code in enumerate(BLOCK.findall(page.read_text()))
    }


FILES = sorted((programs.ROOT / "examples/frameworks").glob("*_loop.py"))


def needs(file: Path) -> str:
    text = file.read_text()
    found = [name for name in ("torch", "keras", "jax", "sklearn") if f"import {name}" in text]
    return found[0] if found else ""


def test_every_block_is_run_by_one_of_these_tests() -> None:
    assert set(blocks()) == {*CONTEXT, PROGRAM}
    assert len(FILES) == 5


def run(folder: Path, code: str) -> None:
    (folder / "mine.py").write_text(code)
    more = {**ENVIRONMENT, "OUTLAST_CACHE": str(folder / "cache")}
    done = programs.run(folder, [sys.executable, "mine.py"], **more)
    assert done.returncode == 0, done.stderr


def test_every_block_of_shell_is_shell_and_sets_what_a_setting_takes() -> None:
    known = yaml.safe_load((programs.ROOT / "Pulumi.yaml").read_text())["config"]
    seen = 0
    for page in PAGES:
        for _, kind, code in OTHER.findall(page.read_text()):
            if kind != "sh":
                continue
            done = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True)
            assert done.returncode == 0, f"{page.name}: {code}{done.stderr}"
            for line in code.splitlines():
                found = re.match(r" *pulumi config set outlast:(\w+) ([^#\s]+)", line)
                if found:
                    declared = known[found[1]].get("type", "string")
                    kind_of = {"integer": int, "number": int | float, "boolean": bool}.get(declared)
                    value = yaml.safe_load(found[2]) if kind_of else None
                    assert not kind_of or isinstance(value, kind_of), f"{page.name}: {line}"
                    seen += 1
    assert seen > 10


def test_every_block_of_yaml_has_values_that_its_settings_take() -> None:
    known = yaml.safe_load((programs.ROOT / "Pulumi.yaml").read_text())["config"]
    kinds = {"integer": int, "number": int | float, "boolean": bool, "array": list, "string": str}
    seen = 0
    for page in PAGES:
        for _, kind, code in OTHER.findall(page.read_text()):
            body = yaml.safe_load(textwrap.dedent(code)) if kind == "yaml" else {}
            for key, value in {**body, **(body.get("config") or {})}.items():
                if str(key).startswith("outlast:"):
                    declared = known[key.removeprefix("outlast:")].get("type")
                    assert isinstance(value, kinds.get(declared, object)), f"{page.name}: {key}"
                    seen += 1
    assert seen > 10


def imported(name: str) -> None:
    if name == "keras":
        os.environ.setdefault("KERAS_BACKEND", "torch")
    if name:
        pytest.importorskip(name)


def marked(frameworks: dict[Any, str]) -> list[object]:
    own = ("", "sklearn")
    return [
        pytest.param(key, marks=() if needed in own else pytest.mark.frameworks, id=f"{key}")
        for key, needed in frameworks.items()
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", marked({file.name: needs(file) for file in FILES}))
def test_a_whole_file_killed_ends_with_the_same_bytes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)
    file = programs.ROOT / "examples/frameworks" / name
    imported(needs(file))
    slowed, count = LOOP.subn(
        r"\1\2\n\1    import os, time; time.sleep(float(os.environ['PAUSE']))", file.read_text()
    )
    assert count == 1
    for folder in (tmp_path / "baseline", tmp_path / "killed"):
        folder.mkdir()
        (folder / "mine.py").write_text(slowed)
    command = [sys.executable, "mine.py", "--steps", "40"]
    done = programs.run(tmp_path / "baseline", command, PAUSE="0", **ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    killed = tmp_path / "killed"
    with programs.started(killed, command, PAUSE="0.3", **ENVIRONMENT) as process:
        programs.wait_for(lambda: any(killed.glob("runs/*/HEAD")), process)
        (folder,) = (path.parent for path in killed.glob("runs/*/HEAD"))
        programs.wait_for(lambda: programs.newest(folder) > 0, process)
        process.kill()
    programs.wait_until_alone(killed)
    done = programs.run(killed, command, PAUSE="0", **ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    (baseline,) = (tmp_path / "baseline").glob("runs/*")
    assert programs.head(folder)["term"] == 2
    assert programs.result_of(folder) == programs.result_of(baseline)


@pytest.mark.parametrize("key", marked({key: CONTEXT[key][0] for key in CONTEXT}))
def test_a_part_runs_where_its_page_has_it(tmp_path: Path, key: tuple[str, int]) -> None:
    framework, before, after = CONTEXT[key]
    imported(framework)
    code = blocks()[key]
    for name, other in OTHER_NAMES.items():
        code = code.replace(name, other)
    if "{init}" in code:
        made = tmp_path / "other"
        made.mkdir()
        run(
            made,
            NUMPY + "with outlast.train(state={'model': model, 'optimizer': optimizer}, "
            "total=3, run_dir='run', checkpoint_every='1') as run:" + BODY,
        )
        chain = programs.head(made / "run")["chain"][-1]
        code = code.replace("{init}", f"{made}/run/{chain['path']}#{chain['blake3']}")
    if before.rstrip().endswith(":"):
        code = textwrap.indent(code, "    ")
    run(tmp_path, before + code.rstrip() + "\n" + after)
