"""Reads runs again and again until all of them have ended.

Nothing of a run depends on it: it only reads, and may end and begin at any time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from outlast.base import exits
from outlast.bucket.standing import Standing
from outlast.cli import endpoint, overview
from outlast.cli.errors import CloudError, OperateError
from outlast.cli.overview import Line
from outlast.cli.polling import POLL_SEC, Pauses
from outlast.cli.runs import Place

EXITS: Mapping[Standing, int] = {
    Standing.DONE: exits.DONE,
    Standing.FAILED: 3,
    Standing.STOPPED: 4,
    Standing.EXPIRED: 5,
    Standing.PRUNED: 6,
}
"""What `outlast wait`, `watch` and `run` end with, by how the run ended."""
TIMED_OUT = 124
"""As timeout(1) does."""
NEAR_SEC = 2.0
"""The first pause for a run on this machine: a look costs nothing."""
TRIES = 5
"""So many looks in a row may fail."""


class TimedOut(OperateError):
    """Some runs have not ended in time."""

    exit_code = TIMED_OUT


def pauses(places: Sequence[Place]) -> Pauses:
    """The pauses for these runs."""
    is_near = endpoint.is_local() or all(place.folder for place in places)
    return Pauses(NEAR_SEC if is_near else POLL_SEC)


def rounds(
    places: Sequence[Place],
    pauses: Pauses,
    *,
    limit_sec: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Line]]:
    """Yields all runs after each look, until all have ended. An ended run is not read again.

    Raises TimedOut after `limit_sec`, CloudError if the local cloud is stopped, and OperateError if
    a run cannot be read at first, or several times in a row.
    """
    began = clock()
    ended: dict[int, Line] = {}
    before: list[object] = []
    failures = 0
    while True:
        if not all(place.folder for place in places):
            endpoint.check_local_cloud()
        try:
            lines = [ended.get(n) or overview.line_of(place) for n, place in enumerate(places)]
        except CloudError:
            raise
        except OperateError:
            failures += 1
            if not before or failures >= TRIES:
                raise
            pauses.wait(changed=False)
            continue
        failures = 0
        ended = {n: line for n, line in enumerate(lines) if line.status.state.ended}
        yield lines
        if len(ended) == len(places):
            return
        now: list[object] = [(line.status.state, _step(line)) for line in lines]
        changed, before = now != before, now
        if limit_sec is not None and clock() - began >= limit_sec:
            left = [line.status for line in lines if not line.status.state.ended]
            said = ", ".join(f"{one.experiment} is {one.state}" for one in left)
            raise TimedOut(f"not ended in {limit_sec / 60:g} min: {said}")
        pauses.wait(changed=changed)


def _step(line: Line) -> int:
    return line.status.history.step if line.status.history else 0


def exit_code(lines: Sequence[Line]) -> int:
    """0 if all are done, otherwise the code of the first that is not."""
    return next((code for line in lines if (code := EXITS[line.status.state])), exits.DONE)
