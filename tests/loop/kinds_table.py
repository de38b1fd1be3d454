"""A table of kinds of state: what a checkpoint of each gives, restored into fresh objects, into the
same object and in another process.

``python -m tests.loop.kinds_table`` prints it, with the kinds of the frameworks that are installed.
"""

import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import LoopError

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("fresh objects", "same object", "another process")
PLAIN, FRAMEWORKS = "tests.loop.test_kinds_of_state", "tests.loop.framework_kinds"
Kinds = Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]]
"""By name: what a program starts with, and what training has made of it."""


def kinds(home: str) -> Kinds:
    """The kinds of one module of the tests."""
    return importlib.import_module(home).kinds()


def is_installed(home: str, name: str) -> bool:
    """Whether a kind can be made here: a framework's begins with its name."""
    if home != FRAMEWORKS:
        return True
    framework = name.partition(":")[0]
    needed = {"jax": ("jax", "flax", "optax"), "keras": ("keras", "torch")}
    more = ("pandas",) if "DataFrame" in name else ()
    return all(map(importlib.util.find_spec, (*needed.get(framework, (framework,)), *more)))


def outcome(call: Callable[[], None]) -> str:
    """``equal``, or what was refused or differs."""
    try:
        call()
    except LoopError as error:
        return f"refused: {error}"
    except AssertionError as error:
        return f"differs: {error}"
    return "equal"


def save(folder: Path, new: Any, begun: Any) -> None:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all({"s": new}, begun)))


def check_equal(target: Any, expected: Any) -> None:
    captured = state.capture_all({"s": expected}), state.capture_all({"s": target})
    found = verify.difference(*captured)
    assert found is None, found
    assert type(target) is type(expected), type(target)


def restore(folder: Path, target: Any, expected: Any) -> None:
    found = snapshot.read(folder)
    state.restore_all({"s": target}, found.nodes, found.blobs)
    check_equal(target, expected)


def table(home: str, names: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """By kind and way: what came of it."""
    found: dict[str, dict[str, str]] = {}
    for number, name in enumerate(names):
        old, new = kinds(home)[name]
        place, start, made = folder / str(number), old(), new()
        begun = state.survey({"s": start})
        state.check_top({"s": made})
        save(place, made, begun)
        again = new()
        found[name] = {
            WAYS[0]: outcome(
                lambda place=place, start=start, new=new: restore(place, start, new())
            ),
            WAYS[1]: outcome(
                lambda place=place, made=made, again=again: restore(place, made, again)
            ),
        }
    for name, said in in_another_process(home, names, folder).items():
        found[name][WAYS[2]] = said
    return found


def in_another_process(home: str, names: list[str], folder: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.loop.kinds_table", home, str(folder), json.dumps(names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def answer(home: str, folder: Path, names: list[str]) -> dict[str, str]:
    """As the other process: what came of each kind."""
    found = {}
    for number, name in enumerate(names):
        old, new = kinds(home)[name]
        start = old()
        state.survey({"s": start})
        place = folder / str(number)
        found[name] = outcome(
            lambda place=place, start=start, new=new: restore(place, start, new())
        )
    return found


def refusals(home: str) -> Iterator[tuple[str, str]]:
    """Kinds that are refused before training, with the place that is named."""
    for name, (make, _) in getattr(importlib.import_module(home), "REFUSED", {}).items():
        said = outcome(lambda make=make: state.survey({"s": {"v": make()}}) and None)
        yield name, said


def lines(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    width = max(map(len, found), default=0)
    for name, ways in found.items():
        said = "  ".join(f"{ways[way].partition(':')[0]:<{len(way)}}" for way in WAYS)
        yield f"{name:<{width}}  {said}".rstrip()


def main() -> None:
    print(f"{'kind':<40}  {'  '.join(WAYS)}")
    for home in (PLAIN, FRAMEWORKS):
        names = [name for name in kinds(home) if is_installed(home, name)]
        with tempfile.TemporaryDirectory() as folder:
            print("\n".join(lines(table(home, names, Path(folder)))))
        for name, said in refusals(home):
            print(f"{name}: {said[:100]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(answer(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))))
    else:
        main()
