"""The snapshots that a trainer hands over: which are taken, and when."""

import logging

from outlast.bucket.parts import DONE_TAG
from outlast.protocol import COMPLETE_ID, Accepted, Busy, Complete, Failed, Snapshot
from outlast.supervisor.departure import Departure
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.link import Link
from outlast.supervisor.trainings import Trainings
from outlast.supervisor.worker import Job, Work

_log = logging.getLogger(__name__)

LAST_ROOM = 3
"""Maximum number of snapshots in flight after the loop has ended: one being committed, the best
one, and the last."""


class Offers:
    """Answers what one attempt's trainer offers. All methods belong to the attempt's one thread."""

    def __init__(self, term: HeldTerm, trainings: Trainings, work: Work) -> None:
        self._rooms = term.rooms
        self._progress = term.progress
        self._jobs = term.jobs
        self._trainings = trainings
        self._work = work
        self._folder_said = term.rooms.scratch[0]

    def take(self, link: Link, snapshot: Snapshot, departure: Departure) -> None:
        """Accept a snapshot or answer Busy. One may be in flight; two while stopping; LAST_ROOM
        if the loop has ended."""
        room = LAST_ROOM if snapshot.last else 1 if departure.leaving is None else 2
        in_flight = self._work.snapshots
        if in_flight >= room or not departure.fits(link, in_flight=in_flight > 0):
            link.send(Busy(snapshot.id))
            return
        self._progress.step = max(self._progress.step, self._progress.before + snapshot.step)
        link.send(Accepted(snapshot.id))
        folder = self._rooms.place_of(snapshot.path)
        if folder is None:
            link.send(Failed(snapshot.id, self._stray(snapshot.path)))
            return
        if folder != self._folder_said:
            self._folder_said = folder
            _log.info(f"snapshots are written to {folder}")
        begin = self._trainings.parts.now
        self._work.submit(Job("commit", lambda: self._jobs.commit(snapshot, begin), snapshot))

    def take_end(self, link: Link, complete: Complete) -> None:
        """Commit what a part ended with, after the snapshots before it."""
        link.send(Accepted(COMPLETE_ID))
        if self._rooms.place_of(complete.result) is None:
            link.send(Failed(COMPLETE_ID, self._stray(complete.result)))
            return
        ended = Snapshot(
            COMPLETE_ID, complete.result, complete.step, [DONE_TAG], complete.rows_offset
        )
        begin = self._trainings.parts.now
        commit = lambda: self._jobs.commit(ended, begin, is_end=True)  # noqa: E731
        self._work.submit(Job("commit", commit, ended))

    def _stray(self, path: str) -> str:
        return f"{path}: must be a folder in {' or '.join(map(str, self._rooms.scratch))}"
