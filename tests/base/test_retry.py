"""The one retry policy: how long, and what is said."""

import errno
import threading

import pytest

from outlast.base.retry import (
    FULL_SEC,
    ONCE,
    SILENT_SEC,
    Limits,
    Patience,
    Trouble,
    pauses,
    spreading,
    trouble_of,
)
from outlast.bucket.store import Damaged, Forbidden, Throttled, Unavailable
from tests.log_lines import log_lines
from tests.stores import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def said() -> list[str]:
    return log_lines()


def failing(error: Exception, clock: FakeClock, until_sec: float):
    def action() -> str:
        if clock.elapsed < until_sec:
            raise type(error)(*error.args)
        return "done"

    return action


@pytest.mark.parametrize(
    ("error", "limit_sec"),
    [
        (Unavailable("503"), SILENT_SEC),
        (Throttled("429"), SILENT_SEC),
        (Forbidden("403"), 600.0),
        (OSError(errno.ENOSPC, "full"), FULL_SEC),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_trouble_has_its_limit(clock: FakeClock, error: Exception, limit_sec: float) -> None:
    patience = Patience(clock, limits=Limits(forbidden_sec=600.0))
    assert patience(failing(error, clock, limit_sec * 0.9)) == "done"
    clock.elapsed = 0.0
    with pytest.raises(type(error)):
        patience(failing(error, clock, 1e9))
    assert limit_sec <= clock.elapsed < limit_sec + 50


@pytest.mark.parametrize("error", [Damaged("bits"), OSError(errno.EIO, "disk"), ValueError("no")])
def test_all_else_is_final(clock: FakeClock, error: Exception) -> None:
    with pytest.raises(type(error)):
        Patience(clock)(failing(error, clock, 1.0))
    assert clock.elapsed == 0


def test_a_trouble_is_said_once_and_then_counted(clock: FakeClock, said: list[str]) -> None:
    Patience(clock)(failing(Unavailable("a: 503"), clock, 600.0), "restore")
    assert said[0] == "restore: a: 503; trying again for up to 15 min"
    assert said[-1].startswith("restore: succeeded at try ")
    assert 4 <= len(said) <= 7 and all("tried" in line for line in said[1:-1])


def test_what_goes_through_at_once_is_not_said(clock: FakeClock, said: list[str]) -> None:
    assert Patience(clock)(lambda: 7, "restore") == 7 and said == []


def test_a_refusal_says_that_permissions_may_be_spreading(
    clock: FakeClock, said: list[str]
) -> None:
    patience = Patience(clock).permitting(600.0)
    patience(failing(Forbidden("HEAD: 403"), clock, 5.0))
    assert said[0] == (
        "HEAD: 403; permissions may still be spreading, trying again for up to 10 min"
    )


def test_threads_that_meet_the_same_trouble_say_it_once(said: list[str]) -> None:
    gate = threading.Barrier(4)

    class Together(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            gate.wait(10)

    patience, tries = Patience(Together()), []

    def action() -> None:
        tries.append(1)
        if len(tries) <= 4:
            gate.wait(10)
            raise Unavailable("503")

    threads = [threading.Thread(target=patience, args=(action,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len([line for line in said if "trying again" in line]) == 1


def test_what_an_inner_call_gave_up_an_outer_one_gives_up(clock: FakeClock) -> None:
    patience = Patience(clock)
    with pytest.raises(Unavailable) as caught:
        patience(lambda: patience(failing(Unavailable("503"), clock, 1e9)))
    assert clock.elapsed < SILENT_SEC + 50 and trouble_of(caught.value) is None
    assert trouble_of(Unavailable("503")) is Trouble.SILENT


def test_a_closed_patience_tries_once(clock: FakeClock) -> None:
    patience = Patience(clock)
    patience.close()
    with pytest.raises(Unavailable):
        patience.within(100)(failing(Unavailable("503"), clock, 50))
    assert clock.elapsed == 0 and patience.fresh()(failing(Unavailable("5"), clock, 50)) == "done"


def test_tries_may_be_counted_instead_of_their_time(clock: FakeClock, said: list[str]) -> None:
    tries = []

    def action() -> None:
        tries.append(1)
        clock.sleep(3600.0)
        raise Unavailable("503\nand much more")

    with pytest.raises(Unavailable):
        Patience(clock, limits=Limits(silent_tries=3))(action, "wheels")
    assert len(tries) == 3 and said == ["wheels: 503; trying again up to 3 times"]
    clock.elapsed = 0.0
    patience = Patience(clock, limits=Limits(forbidden_sec=600.0, silent_tries=3))
    assert patience(failing(Forbidden("403"), clock, 500.0)) == "done"


def test_once_is_one_try(clock: FakeClock) -> None:
    with pytest.raises(Unavailable):
        ONCE(failing(Unavailable("503"), clock, 1.0))


def test_pauses_double_up_to_sixty_times_the_first() -> None:
    waits = [wait for wait, _ in zip(pauses(1.0), range(12), strict=False)]
    assert 0.5 <= waits[0] <= 1.5 and 30 <= waits[-1] <= 90
    assert all(wait <= 1.5 * 2**tries for tries, wait in enumerate(waits))


def test_an_inner_wait_for_permissions_leaves_all_else_to_the_outer_one(clock: FakeClock) -> None:
    inner, outer = spreading(clock, 600.0), Patience(clock)
    assert outer(lambda: inner(failing(Unavailable("503"), clock, 100.0))) == "done"
    clock.elapsed = 0.0
    assert outer(lambda: inner(failing(Forbidden("403"), clock, 500.0))) == "done"
    clock.elapsed = 0.0
    with pytest.raises(Forbidden):
        outer(lambda: inner(failing(Forbidden("403"), clock, 700.0)))
    assert 600 <= clock.elapsed < 610
