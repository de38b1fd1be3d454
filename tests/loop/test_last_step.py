"""A training that ends with an error has told the step that it had come to."""

import sys
from pathlib import Path

import pytest

from outlast.cli import runs, status
from tests.loop import programs

PROGRAM = """
import sys

import numpy as np
import outlast

state = {"x": np.zeros(3)}
with outlast.train(state=state, total=900, run_dir="run", arguments={}) as run:
    for step in run.steps():
        if step == 701:
            raise ValueError("boom")
        state["x"] += 1
        run.log(loss=1 / step)
        if step == int(sys.argv[1]):
            raise ValueError("boom")
"""


@pytest.mark.parametrize("last", [700, 701])
def test_the_last_step_before_an_error_is_recorded(tmp_path: Path, last: int) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    done = programs.run(tmp_path, [sys.executable, "walk.py", str(last)])
    assert done.returncode == 1, done.stderr
    programs.wait_until_alone(tmp_path)
    told = status.read(runs.find(tmp_path / "run")).as_json()
    assert (told["step"], told["metric_steps"]) == (700, {"loss": 700})
