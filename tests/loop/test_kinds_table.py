"""Each kind of state comes back equal: into fresh objects, the same object and another process.

With ``-s`` each prints its row; ``python -m tests.loop.kinds_table`` prints all of them, and those
that are refused.
"""

import collections
from pathlib import Path

import pytest

from tests.loop import kinds_table, test_kinds_of_state

(PLAIN,) = kinds_table.HOMES
Table = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return made(PLAIN, tmp_path_factory.mktemp("plain"))


def made(home: str, folder: Path) -> Table:
    return kinds_table.table(home, list(kinds_table.kinds(home)), folder)


def check(found: Table, name: str) -> None:
    print("\n" + "".join(kinds_table.lines({name: found[name]})), end="")
    assert found[name] == dict.fromkeys(kinds_table.WAYS, "equal")


@pytest.mark.parametrize("name", kinds_table.kinds(PLAIN))
def test_each_kind_comes_back_equal(plain: Table, name: str) -> None:
    check(plain, name)


def test_the_table_is_long_and_sees_a_difference() -> None:
    assert len(kinds_table.kinds(PLAIN)) >= 40
    one, two = collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)
    said = kinds_table.outcome(lambda: kinds_table.check_equal(one, two))
    assert said.startswith("differs: ")
    said = dict(kinds_table.refusals(test_kinds_of_state.__name__))
    assert len(said) >= 15 and all(each.startswith("refused: state['s']") for each in said.values())
