"""Texts that are no UTF-8, as the names of old photographs are: in data, rows and errors."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.loop import programs

PROGRAM = """
import os, sys
import outlast

odd = os.fsdecode(b"caf\\xe9.jpg")
data = outlast.data("photos") if sys.argv[1] == "data" else None
state = {"n": {"v": 0}}
with outlast.train(state, 3, run_dir="run", checkpoint_every="1") as run:
    for step in run.steps():
        state["n"]["v"] += 1
        if sys.argv[1] == "row":
            run.log(file=odd)
        if sys.argv[1] == "error" and step == 2:
            raise ValueError(f"bad image {odd}")
    run.result("out").write_text(str(sorted(os.listdir(data))[0] == odd if data else True))
"""


def train(folder: Path, what: str) -> tuple[int, str, dict]:
    (folder / "p.py").write_text(PROGRAM)
    done = programs.run(folder, [sys.executable, "p.py", what])
    end = json.loads((folder / "run/attempts/000001/end.json").read_text())
    return done.returncode, done.stderr, end


@pytest.mark.parametrize("what", ["data", "row"])
def test_a_run_with_odd_text_is_done(tmp_path: Path, what: str) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / os.fsdecode(b"caf\xe9.jpg")).write_text("y")
    code, said, end = train(tmp_path, what)
    assert code == 0 and end["reason"] == "done", said
    assert programs.result_of(tmp_path / "run")["out"] == b"True"


def test_an_error_with_odd_text_is_shown_and_recorded(tmp_path: Path) -> None:
    code, said, end = train(tmp_path, "error")
    assert code == 1 and "ValueError: bad image caf" in said
    assert end["reason"] == "user-failed" and end["message"].startswith("bad image caf")
