"""Amounts in words."""

import pytest

from outlast.base import numbers


def test_one_thing_is_not_things() -> None:
    assert [numbers.count(n, "file") for n in (0, 1, 1200)] == ["0 files", "1 file", "1,200 files"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (7200, "2 h"), (3601, "1 h")],
        *[(90061, "1 d 1 h"), (86400 * 100, "100 d")],
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text
