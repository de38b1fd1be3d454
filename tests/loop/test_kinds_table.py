"""Each kind of state comes back equal: into fresh objects, the same object and another process.

With ``-s`` each prints its row; ``python -m tests.loop.kinds_table`` prints all of them, and those
that are refused.
"""

import collections
from pathlib import Path

import pytest

from tests.loop import kinds_table, test_kinds_of_state
from tests.loop.kinds_table import FRAMEWORKS, PLAIN

Table = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return made(PLAIN, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return made(FRAMEWORKS, tmp_path_factory.mktemp("frameworks"))


def made(home: str, folder: Path) -> Table:
    names = [name for name in kinds_table.kinds(home) if kinds_table.is_installed(home, name)]
    return kinds_table.table(home, names, folder)


def check(found: Table, name: str) -> None:
    print("\n" + "".join(kinds_table.lines({name: found[name]})), end="")
    assert found[name] == dict.fromkeys(kinds_table.WAYS, "equal")


@pytest.mark.parametrize("name", kinds_table.kinds(PLAIN))
def test_each_kind_comes_back_equal(plain: Table, name: str) -> None:
    check(plain, name)


@pytest.mark.frameworks
@pytest.mark.timeout(600)  # the first one makes the whole table, with all frameworks, twice
@pytest.mark.parametrize("name", kinds_table.kinds(FRAMEWORKS))
def test_each_kind_of_the_frameworks_comes_back_equal(frameworks: Table, name: str) -> None:
    if not kinds_table.is_installed(FRAMEWORKS, name):
        pytest.skip(f"{name.partition(':')[0]} is not installed")
    check(frameworks, name)


def test_the_table_is_long_and_detects_a_difference() -> None:
    assert len(kinds_table.kinds(PLAIN)) >= 40 and len(kinds_table.kinds(FRAMEWORKS)) >= 30
    one, two = collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)
    said = kinds_table.outcome(lambda: kinds_table.check_equal(one, two))
    assert said.startswith("differs: ")
    said = dict(kinds_table.refusals(test_kinds_of_state.__name__))
    assert len(said) >= 15 and all(each.startswith("refused: state['s']") for each in said.values())
