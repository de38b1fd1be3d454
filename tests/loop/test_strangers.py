"""Trainers as others write them: each undisturbed, and killed and resumed in another process. The
second ends with the result of the first, or is refused by the name of what it does not save."""

import sys
from pathlib import Path

import pytest

from tests.loop import programs

FRAME = """
import collections, copy, dataclasses, itertools, os, random, sys, typing
import numpy as np
import outlast

LAST, KILL = 14, int(sys.argv[1])
box = {"n": 0, "out": 0.0}
%(before)s
state = {"box": box, **%(state)s}
with outlast.train(state, LAST, run_dir="run", name="x", arguments={}, checkpoint_every="1") as run:
    for step in run.steps():
%(body)s
        box["n"] += 1
        assert run._side.session.wait_committed(60)
        if step == KILL:
            os._exit(9)
    run.result("out").write_text(repr((box, %(out)s)))
"""
EQUAL = {
    "a cache that forgets its oldest (OrderedDict)": """cache = collections.OrderedDict()
--
{'cache': cache}
--
cache[step % 5] = step
cache.move_to_end(step % 5)
if len(cache) > 3:
    cache.popitem(last=False)
box['out'] += next(iter(cache))
--
list(cache.items())
""",
    "counts of words and lists by key": """words = collections.Counter()
lists = collections.defaultdict(list)
--
{'words': words, 'lists': lists}
--
words.update('abc'[step % 3])
lists[step % 4].append(words.most_common(1)[0][1])
--
dict(words), dict(lists)
""",
    "a replay buffer of namedtuples": """class Move(typing.NamedTuple):
    seen: typing.Any
    reward: float
memory, rng = collections.deque(maxlen=4), random.Random(1)
--
{'memory': memory, 'rng': rng}
--
memory.append(Move(np.full(2, step), rng.random()))
box['out'] += rng.choice(list(memory)).reward
--
[(m.seen.tolist(), m.reward) for m in memory]
""",
    "a config that is frozen, and what it is part of": """@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
@dataclasses.dataclass
class Run:
    config: Config
    w: typing.Any
    best: float = 9.0
training = Run(Config(0.1), np.zeros(2))
--
{'training': training}
--
training.w += training.config.rate * step
if step % 4 == 0:
    training.best = float(training.w[0])
    training.config = Config(training.config.rate / 2)
--
training.config.rate, training.w.tolist(), training.best
""",
    "a sampler that is iterated by itself": """sampler = outlast.BatchSampler(10, 3, seed=2)
batches = iter(sampler)
--
{'sampler': sampler}
--
box['out'] += sum(next(batches)) * step
--
sampler.position
""",
    "a best copy in a dict, and a count for early stopping": """w = np.zeros(3)
rng = np.random.default_rng(0)
best = {'loss': np.inf, 'w': None, 'waited': 0}
--
{'w': w, 'rng': rng, 'best': best}
--
w[:] = rng.normal(size=3)
loss = float(abs(w).sum())
if loss < best['loss']:
    best.update(loss=loss, w=w.copy(), waited=0)
else:
    best['waited'] += 1
--
best['loss'], best['w'].tolist(), best['waited']
""",
    "subclasses of dict and list": """class History(list):
    def last(self):
        return self[-1]
class Table(dict):
    def __missing__(self, key):
        return 0
history, table = History([0]), Table()
--
{'history': history, 'table': table}
--
table[step % 3] = table[step % 3] + history.last()
history.append(step)
--
list(history), dict(table)
""",
    "a trainer that saves all, in its own words": """class Trainer:
    def __init__(self):
        self._w, self._m, self.epochs = np.zeros(2), np.zeros(2), 0
    def step(self, n):
        self._m = 0.9 * self._m + n
        self._w -= self._m
        self.epochs = n // 3
    def state_dict(self):
        return {'weights': self._w.tolist(), 'momentum': self._m, 'e': self.epochs}
    def load_state_dict(self, d):
        self._w, self._m, self.epochs = np.array(d['weights']), d['momentum'], d['e']
trainer = Trainer()
--
{'trainer': trainer}
--
trainer.step(step)
--
trainer._w.tolist(), trainer._m.tolist(), trainer.epochs
""",
    "random numbers that each step makes of its number": """pass
--
{}
--
box['out'] += np.random.default_rng(step).random() + random.Random(step).random()
--
0
""",
}
REFUSED = {
    "a momentum that state_dict forgets": (
        "changed trainer.m, ",
        """class Trainer:
    def __init__(self):
        self.w, self.m = np.zeros(2), np.zeros(2)
    def step(self, n):
        self.m *= 0.9
        self.m += n
        self.w -= self.m
    def state_dict(self):
        return {'w': self.w}
    def load_state_dict(self, d):
        self.w[:] = d['w']
trainer = Trainer()
--
{'trainer': trainer}
--
trainer.step(step)
--
trainer.w.tolist()
""",
    ),
    "a count for early stopping that load_state_dict forgets": (
        "state['stopper']|changed stopper.waited, ",
        """class Stopper:
    def __init__(self):
        self.best, self.waited = 9.0, 0
    def step(self, n):
        self.waited += 1
    def state_dict(self):
        return {'best': self.best, 'patience': self.waited}
    def load_state_dict(self, d):
        self.best = d['best']
stopper = Stopper()
--
{'stopper': stopper}
--
stopper.step(step)
--
stopper.waited
""",
    ),
    "data that shuffles with its own generator": (
        "changed data.rng, a numpy.random",
        """class Data:
    def __init__(self):
        self.rng = np.random.default_rng(1)
    def batch(self):
        return self.rng.integers(0, 9, 3).sum()
data = Data()
--
{}
--
box['out'] += int(data.batch())
--
0
""",
    ),
    "batches of a function with a generator in it": (
        "changed found.rng, a random.Random",
        """def batches():
    rng = random.Random(3)
    while True:
        yield rng.random()
found = batches()
--
{}
--
box['out'] += next(found)
--
0
""",
    ),
    "an augmentation in a closure": (
        "changed augment.rng, a numpy.random",
        """def make():
    rng = np.random.RandomState(4)
    return lambda x: x + rng.rand()
augment = make()
--
{}
--
box['out'] += augment(step)
--
0
""",
    ),
    "an order that the global generator shuffles": (
        "drew from numpy.random",
        """np.random.seed(1)
--
{}
--
box['out'] += float(np.random.permutation(9)[0])
--
0
""",
    ),
    "weights that are bound again": (
        "state['w'] did not change",
        """w = np.zeros(2)
--
{'w': w}
--
w = w + step
--
w.tolist()
""",
    ),
    "an average that the state does not name": (
        "changed average, a __main__.Average",
        """class Average:
    def __init__(self):
        self.value = 0.0
    def update(self, x):
        self.value = 0.9 * self.value + x
    def state_dict(self):
        return {'value': self.value}
    def load_state_dict(self, d):
        self.value = d['value']
w, average = np.zeros(2), Average()
--
{'w': w}
--
w += step
average.update(float(w[0]))
--
average.value
""",
    ),
    "an estimator that the state does not name": (
        "changed scaler, a sklearn.preprocessing",
        """from sklearn.preprocessing import StandardScaler
scaler = StandardScaler()
scaler.partial_fit([[0.0]])
--
{}
--
scaler.partial_fit([[float(step)]])
box['out'] += float(scaler.transform([[1.0]])[0, 0])
--
0
""",
    ),
}


def program(tmp_path: Path, parts: str) -> None:
    """Write what stands before the training, in its state, in its steps and in its result."""
    before, state, body, out = parts.split("\n--\n")
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    text = FRAME % {"before": before, "state": state, "body": indented, "out": out.strip()}
    (tmp_path / "train.py").write_text(text)


def attempt(tmp_path: Path, kill: int) -> tuple[int, str]:
    done = programs.run(tmp_path, [sys.executable, "train.py", str(kill)])
    programs.wait_until_alone(tmp_path)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", EQUAL)
def test_a_killed_trainer_ends_as_the_undisturbed_one(tmp_path: Path, name: str) -> None:
    folders = [tmp_path / each for each in ("baseline", "killed")]
    for folder, kills in zip(folders, ((0,), (4, 9, 0)), strict=True):
        folder.mkdir()
        program(folder, EQUAL[name])
        for kill in kills:
            code, said = attempt(folder, kill)
            assert code == (9 if kill else 0), said
            assert "warning" not in said
    one, two = (programs.result_of(folder / "run")["out"] for folder in folders)
    assert one == two and one


@pytest.mark.parametrize("name", REFUSED)
def test_a_trainer_that_would_end_otherwise_is_refused_by_name(tmp_path: Path, name: str) -> None:
    places, parts = REFUSED[name]
    program(tmp_path, parts)
    code, said = attempt(tmp_path, 7)
    if code == 9:
        assert "outlast: warning: " in said
        code, said = attempt(tmp_path, 0)
    assert code == 1, said
    assert any(each in said for each in places.split("|")), said
    head = programs.head(tmp_path / "run")
    assert head["state"] != "done"
