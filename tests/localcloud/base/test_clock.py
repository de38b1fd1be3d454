"""The cloud's clock, at the wall's speed and faster."""

from types import SimpleNamespace

import pytest

from outlast.localcloud.base import clock as clocks
from outlast.localcloud.base.clock import RealClock, from_rfc3339, to_rfc3339


def test_a_faster_clock_continues_from_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [1_000_000.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(time=lambda: wall[0]))
    clock = RealClock()
    assert clock.now() == wall[0]
    wall[0] += 10
    clock.set_speed(60)
    assert clock.now() == 1_000_010
    assert clock.wall_sec(120) == 2
    wall[0] += 2
    assert clock.now() == 1_000_130
    clock.set_speed(1)
    wall[0] += 5
    assert clock.now() == 1_000_135, "never back"


def test_times_are_written_and_read_in_utc() -> None:
    assert to_rfc3339(0.25) == "1970-01-01T00:00:00.250Z"
    assert from_rfc3339("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(ValueError, match="has no time zone"):
        from_rfc3339("1970-01-01T00:00:00")
