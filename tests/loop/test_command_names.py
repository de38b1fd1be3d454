"""Names that a command may give in CHECKPOINT_DIR, and paths that it writes into its files: killed
and resumed, all is there again."""

import json
import sys
from pathlib import Path

import pytest

from tests.loop import programs

PROGRAM = """
import json, os, sys, time
kind, top = sys.argv[1], os.environ["CHECKPOINT_DIR"]
NAMES = {
    "newline": ["a\\nb.bin"],
    "long": ["a" * 240, "\u00fc" * 120],
    "signs": ["a b#c?/\u00fc/%2f.bin", "[x]*.bin", "'\\"$(id)", "-rf"],
    "ours": ["MANIFEST.json", "d/RESULT.json", "HEAD", "state.json", "d/MANIFEST.json"],
    "fifo": [],
    "links": ["target \u00fc"],
    "path": ["best/model.bin"],
}[kind] + ["model.bin"]

def seen():
    found = {}
    for folder, _, files in os.walk(top):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[os.path.relpath(path, top)] = "-> " + os.readlink(path)
            elif os.path.isfile(path):
                found[os.path.relpath(path, top)] = open(path).read()
    return found

if not os.listdir(top):
    for name in NAMES:
        os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
        with open(os.path.join(top, name), "w") as file:
            file.write(f"content of {name}")
    if kind == "links":
        os.symlink("target \u00fc", os.path.join(top, "link #?"))
        os.symlink("gone\\nfor good", os.path.join(top, "dangling"))
    if kind == "path":  # as best_model_checkpoint of a Trainer
        with open(os.path.join(top, "trainer_state.json"), "w") as file:
            json.dump({"best": os.path.join(top, "best", "model.bin")}, file)
    before = seen()
    with open("before.json", "w") as file:
        json.dump(before, file)
    if kind == "fifo":
        os.mkfifo(os.path.join(top, "pipe"))
    os.system("outlast mark")
    time.sleep(600)
if kind == "path":
    with open(os.path.join(top, "trainer_state.json")) as file:
        best = json.load(file)["best"]
    with open(best) as file:
        assert file.read() == "content of best/model.bin"
with open(os.path.join(os.environ["RESULT_DIR"], "after.json"), "w") as file:
    json.dump(seen(), file)
"""


@pytest.mark.parametrize("kind", ["newline", "long", "signs", "ours", "fifo", "links", "path"])
def test_odd_names_and_paths_survive_a_resume(tmp_path: Path, kind: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, "-m", "outlast.loop.command", "--run-dir", "run", "--"]
    argv += [sys.executable, "program.py", kind]
    with programs.started(tmp_path, argv) as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") > 0, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    again = programs.run(tmp_path, argv)
    assert again.returncode == 0, again.stderr
    before = json.loads((tmp_path / "before.json").read_text())
    after = json.loads(programs.result_of(tmp_path / "run")["after.json"])
    assert after == before and after["model.bin"] == "content of model.bin"
