"""Names that a program binds again after it has changed the state in place: a killed run is refused
by name, or ends as an undisturbed one. Other uses of a name pass without complaint."""

import sys
from pathlib import Path

import pytest

from tests.loop import programs

FRAME = """
import collections, copy, dataclasses, os, sys
import numpy as np
import outlast

LAST, KILL, constant = 14, int(sys.argv[1]), sys.argv[2:]
box = {"n": 0}

def main():
%(before)s
    with outlast.train(%(state)s, LAST, run_dir="run", name="x", arguments={},
                       checkpoint_every="1", constant=constant) as run:
        for step in run.steps():
%(body)s
            assert run._side.session.wait_committed(60)
            if step == KILL:
                os._exit(9)
%(after)s
        run.result("out").write_text(repr(%(out)s))

main()
"""


def write(folder: Path, case: str) -> None:
    """``before -- state -- body -- out [-- after the loop]``."""
    before, state, body, out, *after = [part.strip("\n") for part in case.split("--\n")]

    def indented(text: str, by: int) -> str:
        return "\n".join(" " * by + line for line in text.splitlines())

    (folder / "walk.py").write_text(
        FRAME
        % {
            "before": indented(before, 4),
            "state": state,
            "body": indented(body, 12),
            "after": indented(after[0] if after else "", 8),
            "out": out,
        }
    )


def attempt(folder: Path, kill: int, *constant: str) -> tuple[int, str]:
    done = programs.run(folder, [sys.executable, "walk.py", str(kill), *constant])
    programs.wait_until_alone(folder)
    return done.returncode, done.stderr


REFUSED = {
    "changed and bound again in each step": (
        "w",
        """w = np.zeros(1)
--
{"w": w}
--
w -= step
w = w / 2
--
w.tolist()
""",
    ),
    "changed and bound again, in a dict that the program keeps": (
        "w",
        """w = np.zeros(1)
state = {"w": w, "box": box}
--
state
--
w -= step
w = w / 2
--
w.tolist()
""",
    ),
    "bound again once, at step 5": (
        "w",
        """w = np.zeros(1)
--
{"w": w}
--
w -= step
if step == 5:
    w = w.clip(-10, 10)
--
w.tolist()
""",
    ),
    "a dict of an attribute": (
        "m",
        """class Trainer:
    def __init__(self):
        self.m = {"a": 0, "n": 0}
t = Trainer()
--
{"m": t.m}
--
t.m["n"] += 1
t.m = {**t.m, "a": t.m["a"] + step}
--
t.m
""",
    ),
    "a dict that counts": (
        "counts",
        """counts = {"n": 0}
--
{"counts": counts}
--
counts["n"] += 1
counts = {**counts}
--
counts
""",
    ),
    "a list": (
        "history",
        """history = []
--
{"history": history, "box": box}
--
box["n"] += 1
history = history + [step]
--
history
""",
    ),
    "a set": (
        "seen",
        """seen = {0}
--
{"seen": seen, "box": box}
--
box["n"] += 1
seen = seen | {step}
--
sorted(seen)
""",
    ),
    "a dict of texts": (
        "words",
        """words = {"first": "a"}
--
{"words": words, "box": box}
--
box["n"] += 1
words = {**words, str(step): "b"}
--
words
""",
    ),
    "a best one that begins with None": (
        "best",
        """w = np.zeros(1)
best = {"w": None}
--
{"w": w, "best": best}
--
w += 1
if step < 6:
    best = {"w": w.copy()}
--
best
""",
    ),
    "a text": (
        "meta",
        """phase = "warm"
meta = {"phase": phase}
--
{"meta": meta, "box": box}
--
box["n"] += 1
phase = f"p{step // 4}"
--
phase
""",
    ),
    "a flag": (
        "meta",
        """warm = True
meta = {"warm": warm}
--
{"meta": meta, "box": box}
--
box["n"] += 1
warm = warm and step < 4
--
warm
""",
    ),
    "an attribute with another name": (
        "weights",
        """class Trainer:
    def __init__(self):
        self.theta = np.zeros(1)
    def step(self, by):
        self.theta -= by
        self.theta = self.theta / 2
t = Trainer()
--
{"weights": t.theta}
--
t.step(step)
--
t.theta.tolist()
""",
    ),
    "a variable of a closure": (
        "w",
        """def make():
    w = np.zeros(1)
    def update(by):
        nonlocal w
        w -= by
        w = w / 2
        return w
    return w, update
w, update = make()
--
{"w": w}
--
out = update(step)
--
out.tolist()
""",
    ),
    "a global": (
        "w",
        """global weights
weights = np.zeros(1)
--
{"w": weights, "box": box}
--
weights -= step
weights = weights / 2
--
weights.tolist()
""",
    ),
    "an item of a list": (
        "w",
        """layers = [np.zeros(1), np.zeros(1)]
--
{"w": layers[0], "v": layers[1]}
--
layers[1][:] += 1
layers[0][:] -= step
layers[0] = layers[0] / 2
--
repr(layers)
""",
    ),
    "a field of a dataclass": (
        "counts",
        """@dataclasses.dataclass
class Held:
    counts: dict
held = Held({"n": 0})
--
{"counts": held.counts}
--
held.counts["n"] += 1
held = dataclasses.replace(held, counts=dict(held.counts))
--
held.counts
""",
    ),
    "a dataclass": (
        "progress",
        """@dataclasses.dataclass
class Progress:
    n: int = 0
progress = Progress()
--
{"progress": progress, "box": box}
--
box["n"] += 1
progress = dataclasses.replace(progress, n=progress.n + 1)
--
progress.n
""",
    ),
    "an array of no dimension that becomes a number": (
        "w",
        """w = np.zeros(())
--
{"w": w}
--
if step < 3:
    w -= step
else:
    w = w - step
--
float(w)
""",
    ),
    "the start kept by another name": (
        "w",
        """w = np.zeros(2)
start = w
--
{"w": w}
--
if step == 1:
    w += 1
w = w - step
--
(w - start).tolist()
""",
    ),
    "an array inside of a dict": (
        "hist",
        """w = np.zeros(1)
hist = {"w": w, "n": 0}
--
{"hist": hist}
--
hist["n"] += 1
w -= step
w = w / 2
--
w.tolist()
""",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rebound_name_is_refused_by_name(tmp_path: Path, name: str) -> None:
    entry, case = REFUSED[name]
    write(tmp_path, case)
    code, said = attempt(tmp_path, 9)
    assert code == 9 and f"warning: state['{entry}']" in said, said
    code, said = attempt(tmp_path, 99)
    assert code == 1 and f"state['{entry}']" in said and "before this checkpoint" in said, said
    assert "Traceback" not in said
    head = programs.head(tmp_path / "run")
    assert head["state"] != "done" and head["chain"]


def test_a_run_with_declared_constants_resumes(tmp_path: Path) -> None:
    write(tmp_path, REFUSED["bound again once, at step 5"][1])
    assert attempt(tmp_path, 9)[0] == 9
    code, said = attempt(tmp_path, 99, "w")
    assert code == 0 and "resumes at step 8" in said, said


ELSEWHERE = {
    "an array that another name keeps": """w = np.zeros(2)
start = w
--
{"w": w}
--
if step == 5:
    w = w.clip(-10, 10)
w -= step
--
w.tolist()
""",
    "a dict that a list keeps": """counts = {"n": 0}
all_of_them = [counts]
--
{"counts": counts, "box": box}
--
box["n"] += 1
counts["n"] += 1
if step == 5:
    counts = {"n": counts["n"] * 10}
--
counts
""",
}


@pytest.mark.parametrize("how", ["kill", "best", "stop"])
@pytest.mark.parametrize("kill", [5, 6, 7, 8])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_run_killed_after_a_name_is_rebound_is_equal_or_refused(
    tmp_path: Path, name: str, kill: int, how: str
) -> None:
    """Other references hold the state's object, so only the next step shows that it is unused."""
    case = ELSEWHERE[name]
    if how == "best":  # a snapshot that cannot wait
        before, state, body, out = ELSEWHERE[name].split("--\n")
        case = "--\n".join([before, state, f"{body}run.eval(loss=-step, best='min')\n", out])
    if how == "stop":
        before, state, body, out = case.split("--\n")
        body += f"if step == {kill} and KILL == 98:\n    os.kill(os.getpid(), 15)\n"
        case = "--\n".join([before, state, body, out])
    (tmp_path / "baseline").mkdir()
    (tmp_path / "killed").mkdir()
    write(tmp_path / "baseline", case)
    assert attempt(tmp_path / "baseline", 99)[0] == 0
    write(tmp_path / "killed", case)
    code, said = attempt(tmp_path / "killed", 98 if how == "stop" else kill)
    assert code == (75 if how == "stop" else 9), said
    code, said = attempt(tmp_path / "killed", 99)
    if code == 0:
        results = [
            next((tmp_path / each).glob("run/t*/result/out")).read_text()
            for each in ("baseline", "killed")
        ]
        assert results[0] == results[1], said
    else:
        assert code == 1 and "before this checkpoint" in said and "Traceback" not in said, said


EQUAL = {
    "a copy for the eye by the name of the entry": """class Trainer:
    def __init__(self):
        self.w = np.ones(2)
    def step(self, by):
        self.w -= by
t = Trainer()
w = t.w
--
{"w": w}
--
t.step(step)
w = t.w / np.abs(t.w).sum()
--
t.w.tolist()
""",
    "a name for an item in turn": """params = {"a": np.zeros(2), "b": np.zeros(3)}
for p in params.values():
    print(p.shape)
--
{**params, "box": box}
--
for p in params.values():
    p += step
p = np.ones(3)
--
repr(params)
""",
    "a name that is used for a batch": """w, v = np.zeros(2), np.zeros(2)
x = v
--
{"w": w, "v": v}
--
w += 1
v += w
x = np.ones(5)
v += x.sum()
--
v.tolist()
""",
    "new values that are copied back": """w = np.zeros(2)
held = w
--
{"w": held}
--
w = w / 2 - step
held[:] = w
--
w.tolist()
""",
    "new objects in the state itself": """w, best = np.zeros(2), {"loss": 99}
state = {"w": w, "best": best}
--
state
--
w = state["w"]
state["w"] = w / 2 - step
if step == 3:
    state["best"] = {"loss": 3}
--
(state["w"].tolist(), state["best"])
""",
    "an attribute of an object in the state": """class Trainer:
    def __init__(self):
        self.w = np.zeros(2)
    def state_dict(self):
        return {"w": self.w}
    def load_state_dict(self, d):
        self.w = d["w"]
t = Trainer()
--
{"t": t, "box": box}
--
t.w -= step
t.w = t.w / 2
--
t.w.tolist()
""",
    "a name for one of two buffers": """both = [np.zeros(2), np.zeros(2)]
current = both[0]
--
{"both": both}
--
current = both[step % 2]
current += step
--
repr(both)
""",
    "names that mean something else after the loop": """w, rows = np.zeros(2), []
--
{"w": w, "rows": rows}
--
w += step
rows.append(step)
if step == 12:
    run.finish("enough")
--
w.tolist()
--
w = w / 2
rows = [str(row) for row in rows]
""",
    "a best copy": """w = np.zeros(2)
best = {"w": w.copy(), "loss": 0.0}
--
{"w": w, "best": best}
--
w -= step
if step % 5 == 1:
    best.update(w=w.copy(), loss=float(w[0]))
copied = {**best}
--
best["w"].tolist()
""",
}


@pytest.mark.parametrize("name", EQUAL)
def test_another_use_of_a_name_passes(tmp_path: Path, name: str) -> None:
    results = []
    for kills in ([99], [6, 10, 99]):
        folder = tmp_path / str(len(kills))
        folder.mkdir()
        write(folder, EQUAL[name])
        for kill in kills:
            code, said = attempt(folder, kill)
            assert code == (0 if kill == 99 else 9) and "warning" not in said, said
        results.append(max(folder.glob("run/t*/result/out")).read_text())
    assert results[0] == results[1]
