"""Changes of everything that is read from outside; `make fuzz` makes more.

The fuzzer itself is tried first: it finds a reader that fails in each way that it looks for.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import mutate, run

CHANGES = 20_000

PLANTED = """
import sys
from pathlib import Path
from collections import Counter
from tests.fuzz import run, targets
from tests.fuzz.targets import Target

def read(folder):
    text = (folder / "x.json").read_bytes()
    if text != b'{"a":[1,2]}':
        %s
    return text

planted = Target("planted", {"x.json": b'{"a":[1,2]}'}, read, (ValueError,))
targets.targets = lambda work: iter([planted])
report = run.work(1, iter(range(8)), Path(sys.argv[1]) / "note", float("inf"))
print(report.text(0.0))
sys.exit(1 if report.failures else 0)
"""


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raise KeyError('a')", "KeyError"),
        ("raise ValueError('without a place')", "an error without a place"),
        ("bytes(1 << 40)", "MemoryError"),
        ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
        ("open('/tmp/outlast-planted', 'w')", "outside: open '/tmp/outlast-planted' to write"),
        ("Path('../home/.bashrc').unlink()", "outside: os.remove"),
        ("import tests.checkout", "outside: import tests.checkout"),
        ("__import__('os').system('true')", "outside: os.system"),
        ("return None", "None"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, does: str, said: str) -> None:
    argv = [sys.executable, "-c", PLANTED % does, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"failure: {said}" in done.stdout


def test_a_change_is_the_same_each_time_and_changes_something() -> None:
    text = b'{"a":[1,{"b":"c"}],"d":null,"e":{"f":[2.5,"g",{"h":true}]},"i":"j","k":[[],{}]}\n'
    made = [mutate.mutated(text, [seed]) for seed in range(200)]
    assert made == [mutate.mutated(text, [seed]) for seed in range(200)]
    assert len(set(made)) > 150


@pytest.mark.timeout(600)  # 45 s of one core by itself; other tests run beside it
def test_what_is_changed_is_read_or_refused_and_nothing_around_it_is_touched() -> None:
    report = run.fuzz(seed=1, changes=CHANGES, sec=0.0, processes=min(2, os.cpu_count() or 1))
    print(report.text(0.0))
    assert not report.failures, report.text(0.0)
    assert report.changes == CHANGES
