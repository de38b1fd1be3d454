"""The trainings of one attempt's program, and what each starts from."""

import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from outlast.base import exits
from outlast.bucket.layout import Heartbeat
from outlast.bucket.parts import is_done
from outlast.bucket.records import read_record
from outlast.bucket.restore import Restored
from outlast.bucket.store import StoreError
from outlast.protocol import Ended, Error, Fetched, Hello, Welcome
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.initial import is_init
from outlast.supervisor.link import Link
from outlast.supervisor.parts import Folders, Parts
from outlast.supervisor.worker import Job

_log = logging.getLogger(__name__)

READ = "read"
"""Name of the job that reads what a training starts from."""
RESULT = "result of a part"
"""Name of the job that reads what a part ended with."""


class Trainings:
    """Answers hellos. Only the attempt's one thread may call its methods."""

    def __init__(self, term: HeldTerm, submit: Callable[[Job], None]) -> None:
        self._spec = term.spec
        self._head_file = term.head_file
        self._site = term.site
        self._rooms = term.rooms
        self._progress = term.progress
        self._jobs = term.jobs
        self._submit = submit
        self._term = term.head_file.term
        self._restored: Restored | None = None
        self.parts = Parts(())
        self.reading = False
        """Whether a training waits for the state that it starts from."""
        self._count = 0
        self._given: list[Path] = []
        """Folders given to the current training, until it has read them."""
        self._commit_sec: float | None = None

    def prepare(self, restored: Restored | None) -> None:
        """Notes what the attempt resumes from; the first training may start with another part.
        Raises RestoreError if the run's parts are not known."""
        self.parts = Parts(self._jobs.chain, self._jobs.parts())
        self._restored = restored
        if restored is not None and is_done(restored.checkpoint):
            shutil.rmtree(restored.path, ignore_errors=True)  # no training starts from it alone
            self._restored = None

    def read_commit_sec(self) -> float | None:
        """Seconds that the last commit of an earlier attempt took, from its heartbeat; None if
        unknown."""
        for entry in reversed(self._head_file.held(self._term).lineage):
            with contextlib.suppress(StoreError):
                path = self._head_file.layout.heartbeat(entry.term)
                heartbeat = read_record(self._head_file.store, path, Heartbeat)
                if heartbeat is not None and heartbeat.commit_sec is not None:
                    self._commit_sec = heartbeat.commit_sec
                    break
        return self._commit_sec

    def begin(self, link: Link, hello: Hello) -> Folders | None:
        """Starts the training that sent the hello. Returns None if its state must be read first, or
        if it may not start, which the answer says."""
        refusal = self.parts.refusal(hello)
        if refusal is not None:
            link.note_error(Error(refusal, "usage"))
            link.send(Ended("refused", exits.USAGE, refusal))
            return None
        begin = self.parts.begin(hello)
        self._count += 1
        self.drop_given()
        self._progress.begin_part(begin.part, begin.before, hello.total)
        restored = self._restored
        if restored is not None and begin.end is None and restored.checkpoint == begin.state:
            self._restored = None
            return Folders(begin, restored.path)
        if not begin.missing:
            return Folders(begin)
        self.reading = True
        count = self._count
        read = lambda: self._jobs.read(begin, self._rooms, count)  # noqa: E731
        self._submit(Job(READ, read, beside=True))
        return None

    def read_result(self) -> bool:
        """Submits a job that reads the current part's result; returns False if the part is not
        done."""
        begin, count = self.parts.now, self._count
        if begin.end is None:
            return False
        read = lambda: self._jobs.read_result(begin, self._rooms, count)  # noqa: E731
        self._submit(Job(RESULT, read, beside=True))
        return True

    def give_result(self, link: Link, folder: Path) -> None:
        """Sends the folder that `read_result` has read; the training has it until the next one
        starts."""
        self._given.append(folder.parent)
        link.send(Fetched(str(folder)))

    def welcome(self, link: Link, folders: Folders) -> None:
        """Tells a training where it starts."""
        begin = folders.begin
        self.reading = False
        self._progress.phase = "load"
        self._given = [path for path in (folders.state, folders.end) if path is not None]
        if begin.part:
            what = "is done already" if begin.end else f"resumes at step {begin.step}"
            _log.info(f"part {begin.part}: {what if begin.step else 'starts from scratch'}")
        rooms, site = self._rooms, self._site
        link.send(
            Welcome(
                restore=None if folders.state is None else str(folders.state),
                step=begin.step,
                work=str(rooms.scratch[0]),
                rows=str(rooms.rows),
                term=self._term,
                checkpoint_every=self._spec.checkpoint_every,
                run_id=self._spec.run or site.run_id,
                run_url=f"{self._head_file.store.url}/{self._head_file.layout.root}",
                log_dir=str(rooms.logs),
                scratch=[str(place) for place in rooms.scratch[1:]],
                result=str(rooms.disk),
                machine_age_sec=site.machine_age_sec(),
                commit_sec=self._commit_sec,
                init=begin.state is not None and is_init(begin.state),
                before=begin.before,
                done=None if folders.end is None else str(folders.end),
            )
        )

    def note_tick(self, step: int, phase: str) -> None:
        """Notes the current training's step within its part: it has loaded its state. A part that
        was already done makes no progress, and its program may still read the files."""
        self._progress.phase = phase
        if self.parts.now.end is None:
            self._progress.note_step(self._progress.before + step)
            self.drop_given()

    def drop_given(self) -> None:
        """Deletes the folders given to the current training, to free their memory."""
        for folder in self._given:
            shutil.rmtree(folder, ignore_errors=True)
        self._given = []
