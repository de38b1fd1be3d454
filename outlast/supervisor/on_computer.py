"""The supervisor of a trainer on this computer, for a run in a folder or a bucket."""

import argparse
import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from outlast import protocol
from outlast.base import exits
from outlast.base.console import write_line
from outlast.base.log import log_to
from outlast.base.names import LABEL
from outlast.base.retry import LIBRARY_WITHIN_SEC, Limits, Patience
from outlast.bucket.data import Cache, DataError, user_cache
from outlast.bucket.fetch import place_of
from outlast.bucket.head import HeadError, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import (
    Foreign,
    StoreError,
    open_store,
)
from outlast.spec.run_spec import NO_DEADLINE, NO_STACK, RunSpec, Timeouts, parse_checkpoint_every
from outlast.supervisor.group import (
    NoGroup,
)
from outlast.supervisor.life import FAILED, Boot, is_over, refuse, supervise
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import this_computer
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.process import (
    PARENT_POLL_SEC,
    CallingTrainer,
)
from outlast.supervisor.site import MachineClock, Site
from outlast.supervisor.stop import Stop
from outlast.supervisor.webhook import Webhook

_log = logging.getLogger(__name__)

LAPTOP_FORBIDDEN_SEC = 5.0
"""Seconds in which a refusal by a bucket may be temporary, for example while a token is renewed."""
LAPTOP_STOP_SEC = 30.0
WORK_PREFIX = "outlast-supervisor-"


def run_folder(stop: Stop, options: argparse.Namespace) -> int:
    """Supervises a trainer on this computer, until the trainer has ended; returns the exit code."""
    parent = options.parent or os.getppid()
    log_to(lambda line: write_line(f"outlast: {line}"))
    spec = RunSpec(
        prefix="",
        run="",
        resume=0,
        placement=0,
        owner=f"{NO_STACK}{options.trainer}/{options.run}",
        trainer=options.trainer,
        deadline=NO_DEADLINE,
        checkpoint_every=parse_checkpoint_every(options.checkpoint_every),
        init=options.init,
        model_output_path=options.model_output_path,
        timeouts=replace(Timeouts(), stop=LAPTOP_STOP_SEC, failure_grace=0.0, iam_propagation=0.0),
    )
    notices = Notices(spec.timeouts)
    stop.connect(notices)
    clock = MachineClock(notices)
    patience = Patience(clock, limits=Limits(forbidden_sec=LAPTOP_FORBIDDEN_SEC))
    listener = Listener(options.socket)
    _watch_parent(parent, clock)
    try:
        # A trainer may start it early; the run stays as it is until that trainer is ready.
        listener.wait_for_caller(clock)
    except Interrupted:
        listener.close()
        return exits.INTERRUPTED
    try:
        where, layout = place_of(options.run_dir)
        if where == options.run_dir:
            _set_aside(Path(where), spec.owner)
        store = open_store(where, read_retry_sec=LIBRARY_WITHIN_SEC)
    except (DataError, StoreError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError):
            why = error.strerror or error
            message = f"run folder {options.run_dir}: {why}; give another --run-dir"
        code = refuse(listener, message)
        listener.close()
        return code
    drop_left_work()
    work, held = make_work()
    try:
        site = Site(
            machine=this_computer(),
            group=NoGroup(),
            notices=notices,
            listener=listener,
            work=work,
            make_trainer=lambda term: CallingTrainer(parent),
            log_of=lambda term: None,
            clock=clock,
            webhook=Webhook(""),
            run_id=options.run,
            restarts=False,
            wanted=lambda: os.getppid() == parent,
            data=Cache(user_cache(), patience=patience.fresh()),
        )
        head_file = HeadFile(store, layout, patience=patience)
        return supervise(Boot(spec, head_file, site, records=False, run_dir=options.run_dir))
    except Interrupted:
        return exits.INTERRUPTED
    except (StoreError, OSError) as error:
        if isinstance(error, Foreign):
            return refuse(listener, f"run folder {options.run_dir}: {error}")
        # Mostly a full or read-only disk; the trainer gets the reason instead of silence.
        if not listener.turn_away(protocol.Error(str(error), "supervisor"), timeout_sec=1.0):
            _log.info(str(error))
        return FAILED
    finally:
        listener.close()
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def _watch_parent(parent: int, clock: MachineClock) -> None:
    """Ends this process, from a thread, once the trainer that started it has ended before an
    attempt began: a supervisor that still waits for a store would block its user's next try.
    Nothing is lost. An attempt watches its trainer itself."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SEC)
        if not clock.training:
            os._exit(exits.INTERRUPTED)  # a request may block the other threads

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _set_aside(run_dir: Path, owner: str) -> None:
    """Moves away another run in the folder if it has no checkpoint and no process works on it:
    usually a first try with a mistake. No other run is moved.
    """
    if not (run_dir / Layout("", "").head).is_file():
        return
    store, layout = open_store(str(run_dir), reading=True), Layout("", "")
    try:
        reading = read_head(store, layout)
        over = is_over(store, layout, reading, Timeouts().successor_silence)
    except (HeadError, StoreError, ValueError):
        return  # the boot table reports what is wrong
    head = reading.head
    if head.owner == owner or head.state.ended or head.chain or not over:
        return
    run = head.owner.rpartition("/")[2]
    named = f"{run}-{head.nonce[:6]}" if LABEL.matches(run) else head.nonce[:6]
    aside = run_dir.with_name(f"{run_dir.name}.{named}")
    run_dir.rename(aside)
    _log.info(f"run folder {run_dir}: held another run, without a checkpoint; it is in {aside} now")


def make_work() -> tuple[Path, int]:
    """Creates a folder for snapshots; returns it with the descriptor that holds its lock while this
    process lives."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            held = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # without locks nothing is deleted
                fcntl.flock(held, fcntl.LOCK_EX)
            # Another supervisor may have deleted it before it was locked.
            if work.exists():
                return work, held
            os.close(held)


def drop_left_work() -> None:
    """Deletes the folders of this user's killed supervisors: those without a lock."""
    for work in Path(tempfile.gettempdir()).glob(f"{WORK_PREFIX}*"):
        with contextlib.suppress(OSError):
            left = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(left).st_uid == os.getuid():
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                os.close(left)
