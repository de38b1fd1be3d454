"""``outlast.train``: the steps of a training, resumed and stopped at their boundaries."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlast.base import exits, places
from outlast.bucket import layout
from outlast.loop import (
    data,
    ranks,
    rows,
    saving,
    schedule,
    snapshot,
    state,
    trackers,
    verify,
)
from outlast.loop.errors import (
    DataError,
    DoesNotFit,
    LoopError,
    StateError,
    SupervisorLost,
    tell_alone,
)
from outlast.loop.history import Direction, History
from outlast.loop.local import (
    STOP_SEC,
    Interrupts,
    LocalSupervisor,
    check_apart,
    check_end,
    default_folder,
    run_name,
)
from outlast.loop.session import CONNECT_SEC, Session
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE, Ended, Welcome, parse_every


class RunEnded(SystemExit):
    """The run has ended already; carries the exit code that belongs to its end."""


def train(
    state: Mapping[str, object],
    total: int,
    *,
    run_dir: str | Path | None = None,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    source: str | Path | None = None,
    checkpoint_every: str = "auto",
    rank_state: Mapping[str, object] | None = None,
    tracker: str | None = None,
    init: str | None = None,
    init_only: Collection[str] | None = None,
    model_output_path: str | None = None,
) -> "Training":
    """A training of ``total`` steps as a context manager.

    ``state`` names the objects that make up the training: numpy arrays and generators,
    ``random.Random``, dicts and lists, scikit-learn estimators, and anything with ``state_dict``
    and ``load_state_dict``. They are restored in place. What cannot be saved is a StateError that
    names it, before the first step.

    Under ``torchrun`` every rank calls this alike: ``state`` is what is equal in all ranks (rank 0
    saves it, all restore it), ``rank_state`` what differs, such as random numbers and the position
    in a rank's share of the data; each rank saves and restores its own.

    ``tracker`` (or ``OUTLAST_TRACKER``), ``mlflow`` or ``wandb``, is given every row as well: one
    tracker's run for the whole run, never waited for.

    A run may begin with a checkpoint of another one (``outlast:init``, ``init``): what ``state``
    names is taken from there, or of that only the names in ``init_only``; the steps begin at 1, the
    history is empty, ``rank_state`` begins anew. What the other checkpoint holds besides does not
    matter, so an optimiser that ``state`` does not name, or ``init_only`` leaves out, is not kept.

    The other arguments matter only without ``OUTLAST_SOCKET``, for a run in a folder: ``init``, a
    checkpoint as ``outlast checkpoints`` prints it; ``model_output_path``, a folder or ``gs://``
    path that gets a copy of the finished result where it is absent there; ``run_dir``, a folder or
    ``gs://`` path (default ``runs/<name>-<run>``), and what the run's name is made of: ``name``,
    ``arguments`` and ``source`` (default: this program, its command line and its text).
    """
    tell_alone()
    world = ranks.world()
    kind = Training
    if world is not None and world.rank > 0:
        from outlast.loop.follower import Follower as kind
    return kind(
        state,
        total,
        run_dir=run_dir,
        name=name,
        arguments=arguments,
        source=source,
        checkpoint_every=checkpoint_every,
        rank_state=rank_state,
        tracker=tracker,
        init=init,
        init_only=init_only,
        model_output_path=model_output_path,
    )


class Training:
    """One attempt at a training. Use it in ``with``; all methods belong to the thread of the loop.

    A body that raises ends the attempt as failed; one that returns has completed the training.
    """

    def __init__(
        self,
        state: Mapping[str, object],
        total: int,
        *,
        run_dir: str | Path | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        source: str | Path | None = None,
        checkpoint_every: str = "auto",
        rank_state: Mapping[str, object] | None = None,
        tracker: str | None = None,
        init: str | None = None,
        init_only: Collection[str] | None = None,
        model_output_path: str | None = None,
    ) -> None:
        if not isinstance(total, int) or isinstance(total, bool) or total < 1:
            raise LoopError(f"total {total!r}: must be a number of steps, 1 or more")
        self._state = state
        self._total = total
        wrong = isinstance(init_only, str) or (init_only and not set(init_only) <= set(state))
        if wrong:
            raise LoopError(f"init_only {init_only!r}: must be names in state")
        self._init_only = None if init_only is None else sorted(init_only)
        self._local = (run_dir, name, arguments, source, checkpoint_every)
        self._beside = (init, model_output_path)
        self._world = ranks.world()
        self._leader: ranks.Leader | None = None
        self._rank_state = (
            None if rank_state is None else ranks.RankState(rank_state, self.rank, self.world_size)
        )
        self._tracker_name = trackers.choose(tracker) if self.rank == 0 else None
        self._tracker: trackers.Tracker | None = None
        self._step = 0
        self._making: int | None = None
        self._started = self._finished = False
        self._row: dict[str, Any] = {}
        self._history = History()
        self._unproved = False
        self._supervisor: LocalSupervisor | None = None
        self._interrupts: Interrupts | None = None
        self._terminated = False
        self._cleanup = contextlib.ExitStack()

    # What a trainer calls.

    @property
    def step(self) -> int:
        """Steps completed so far, in all attempts."""
        return self._step

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self._total

    @property
    def rank(self) -> int:
        """Number of this process among those of the training, from 0."""
        return 0 if self._world is None else self._world.rank

    @property
    def world_size(self) -> int:
        """Processes that make this training together; 1 without ``torchrun``."""
        return 1 if self._world is None else self._world.size

    def steps(self) -> Iterator[int]:
        """The steps still to make: their numbers, from one more than what is done up to total.

        Between two of them snapshots are handed over, and a requested stop exits with 75.
        """
        if self._started:
            raise LoopError("run.steps() was used already; a run has one loop")
        self._started = True
        try:
            while True:
                self._boundary()
                if self._step >= self._total:
                    return
                self._making = self._step + 1
                yield self._making
                self._step, self._making = self._making, None
        finally:
            if self._making is not None:  # left by break: that step counts as made
                self._step, self._making = self._making, None
            self._finished = True

    def log(self, **values: Any) -> None:
        """Values of the step being made; one row a step, the last value of a name stands."""
        if self._making is None:
            raise LoopError("run.log outside a step: call it in the body of run.steps()")
        if "step" in values:
            raise LoopError("run.log step: every row has its step already; use another name")
        for name, value in values.items():
            plain = type(value) is float and math.isfinite(value)
            self._row[name] = value if plain else rows.cell(name, value)

    def eval(self, *, best: Direction | None = None, of: str | None = None, **values: Any) -> None:
        """An evaluation after this step's update; kept in the state and in metrics.json.

        With ``best`` (``max`` or ``min``) a new best value is a checkpoint tagged ``best``; ``of``
        says which value is judged where there are several. After the loop there is no checkpoint
        to tag, and ``best`` does nothing.
        """
        cells = {name: rows.scalar(name, value) for name, value in values.items()}
        judged = of if of is not None else next(iter(cells), None) if len(cells) == 1 else None
        if best is not None:
            if best not in ("max", "min"):
                raise LoopError(f"eval best {best!r}: must be max or min")
            if judged not in cells:
                raise LoopError(f"eval of {judged!r}: must be one of {', '.join(cells)}")
        step = self._making if self._making is not None else self._step
        self._history.add(step, cells)
        if self._making is not None:
            self._row.update(cells)
            if best is not None and judged is not None:
                self._saver.judge_best(judged, step, cells[judged], best)
        self.tick("eval")

    def tick(self, phase: str = "train") -> None:
        """A sign of life in a long phase without steps; raises if a checkpoint has failed."""
        self._session.poll()
        self._say_alive(phase)

    def data(self, path: str | Path) -> Path:
        """A local path for training data at a local or ``gs://`` path, as ``outlast.data`` gives
        it, within the training."""
        try:
            found = data.find(path, lambda: self.tick("staging"))
        except LoopError:
            # The terminal's Ctrl-C ended the download, too; it is gone on with.
            if self._is_interrupted():
                raise SystemExit(exits.INTERRUPTED) from None
            raise
        self._tell_data()
        return found

    def result(self, name: str) -> Path:
        """Where to write a file of the result; after the loop only, for it is made once."""
        if not self._finished:
            raise LoopError(f"result {name!r}: write results after the loop of run.steps()")
        layout.check_object_name(name)
        if name == layout.METRICS_FILE:
            raise LoopError(f"result {name!r}: is written from the values given to run.eval")
        path = self._result_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    # The life of the context.

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._complete()
            except BaseException as late:
                self._end(late)
                raise
        self._end(error)

    def _begin(self) -> None:
        state.check_top(self._state)
        if self._world is not None:
            self._leader = ranks.Leader(self._world, before_exit=self._say_lost)
        socket_path = os.environ.get(SOCKET_VARIABLE)
        if socket_path:
            self._leave_signals_to_supervisor()
        else:
            socket_path = self._start_supervisor()
        self._session = Session(socket_path, total=self._total)
        self._cleanup.callback(self._session.close)
        if self._supervisor is not None:
            self._supervisor.forget_socket()
        answer = self._session.welcome()
        if self._leader is not None:
            self._leader.gather(self._total, self._rank_state is not None, self._told_to_leave)
        if isinstance(answer, Ended):
            say(answer.message)
            raise RunEnded(answer.exit)
        self._tell_data()
        os.environ.update(answer.environment())
        self._work = Path(answer.work)
        self._result_folder = self._work / saving.RESULT
        self._rows = self._cleanup.enter_context(rows.Rows(Path(answer.rows)))
        self._saver = saving.Saver(
            self._session,
            self._state,
            self._history,
            self._rows,
            [self._work, *map(Path, answer.places)],
            rank_state=self._rank_state,
            leader=self._leader,
        )
        self._cleanup.callback(self._saver.close)
        if answer.restore is not None and not answer.init:
            here = self._rank_state is not None
            ranks.check_parts(Path(answer.restore), self.world_size, here)
        if self._leader is not None:
            begin = {"restore": answer.restore, "init": answer.init, "work": answer.work}
            self._leader.begin({**begin, "environment": answer.environment()})
        if answer.restore is None or answer.init:
            if answer.restore is not None:
                self._take_init(Path(answer.restore))
            self._saver.prove()
            self._unproved = True  # optimisers make their state in the first step
        else:
            self._restore(answer)
        if self._leader is not None:  # before the first tick, which gives the restored folder up
            self._leader.wait_ready(self._step)
        if self._tracker_name is not None:
            self._tracker = trackers.Tracker(self._tracker_name, answer, self._local[2] or {})
        timing = schedule.Schedule(
            parse_every(answer.checkpoint_every),
            now_sec=time.monotonic(),
            step=self._step,
            age_sec=answer.machine_age_sec,
            commit_sec=answer.commit_sec,
        )
        restored = answer.restore is not None and not answer.init
        self._saver.begin(self._step, timing, restored=restored)

    def _tell_data(self) -> None:
        """On a laptop: what data is used, so that another attempt on other data is refused."""
        used = data.take_used()
        if self._supervisor is not None:
            for url, path in used.items():
                check_apart(url, self._supervisor.run_dir)
                self._session.fetch(url, path, stopped=self._is_interrupted)

    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed in a training on a laptop."""
        return self._interrupts is not None and self._interrupts.requested

    def _start_supervisor(self) -> str:
        run_dir, name, arguments, source, checkpoint_every = self._local
        parse_every(checkpoint_every)
        called = sys.argv[0] if sys.argv else ""
        program = Path("python" if called in ("", "-", "-c") else called)
        if source is None and name is None and program.suffix == ".py" and program.is_file():
            source = program
        if arguments is None:
            arguments = {"argv": sys.argv[1:]}
        name = name or program.stem
        source = None if source is None else Path(source)
        init, model_output_path = self._beside
        run = run_name(name, arguments, source, init)
        folder = run_dir or default_folder(name, arguments, source, init)
        self._interrupts = Interrupts()
        self._interrupts.install()
        self._cleanup.callback(self._interrupts.restore)
        self._supervisor = LocalSupervisor(
            folder,
            trainer=name,
            run=run,
            checkpoint_every=checkpoint_every,
            init=init,
            model_output_path=model_output_path,
        )
        self._cleanup.callback(self._supervisor.forget_socket)
        self._supervisor.wait_for_socket(CONNECT_SEC)
        return str(self._supervisor.socket_path)

    def _leave_signals_to_supervisor(self) -> None:
        """The terminal's Ctrl-C and a stopping system's SIGTERM reach every process; what they
        mean, the supervisor tells over the socket, with the time that is left."""
        if threading.current_thread() is not threading.main_thread():
            return
        own = os.getpid()

        def leave(number: int, _: object) -> None:
            # A handler and not SIG_IGN: a child that was forked must die of SIGTERM as ever.
            if os.getpid() != own:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self._terminated = True

        for number, handler in ((signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, leave)):
            previous = signal.signal(number, handler)
            self._cleanup.callback(signal.signal, number, previous)

    def _told_to_leave(self) -> bool:
        """Whether this process was signalled to; before the first step nothing is lost by it."""
        return self._terminated or (self._interrupts is not None and self._interrupts.requested)

    def _take_init(self, folder: Path) -> None:
        """Begin with another run's state."""
        saved = snapshot.read(folder)
        names = list(self._state) if self._init_only is None else self._init_only
        state.restore_named(self._state, saved.nodes, saved.blobs, names)
        verify.check(self._state, saved, names=names)

    def _restore(self, welcome: Welcome) -> None:
        folder = Path(welcome.restore or "")
        saved = snapshot.read(folder)
        if saved.step != welcome.step or saved.step > self._total:
            raise DoesNotFit(
                f"the checkpoint is of step {saved.step}; expected was {welcome.step}, "
                f"of {self._total} in all"
            )
        state.restore_all(self._state, saved.nodes, saved.blobs)
        verify.check(self._state, saved)
        if self._rank_state is not None:
            self._rank_state.restore(folder)
        self._history.load_node(saved.loop)
        self._step = saved.step

    def _complete(self) -> None:
        if not self._started:
            raise LoopError("the training has made no steps: loop over run.steps()")
        if self._leader is not None:
            self._leader.wait_finished(self._step)
        self._write_row()
        self._result_folder.mkdir(parents=True, exist_ok=True)
        (self._result_folder / layout.METRICS_FILE).write_bytes(self._history.metrics_json())
        result = snapshot.publish(self._result_folder, self._work / "result")
        self._saver.finish(STOP_SEC)
        # The last snapshot may have been before the last rows.
        self._session.complete(self._step, result, self._rows.flush())

    def _end(self, error: BaseException | None) -> None:
        """Close everything; tell the supervisor why if training failed."""
        session = self._session if hasattr(self, "_session") else None
        if (
            session is not None
            and isinstance(error, Exception | KeyboardInterrupt)
            and not isinstance(error, SupervisorLost)
        ):
            session.report(str(error) or type(error).__name__, _kind_of(error))
        if session is not None:
            session.close()
        if self._tracker is not None:
            self._tracker.close(interrupted=error is not None)
        try:
            impatient = self._interrupts is not None and self._interrupts.impatient
            if self._supervisor is not None and session is None:
                self._supervisor.abandon()
            if self._supervisor is not None and not impatient:
                # It finishes what it was given; only a completed run must wait for all of it.
                code = self._supervisor.wait(None if error is None else 10.0)
                if isinstance(error, SupervisorLost) and error.exit is None:
                    error.exit = code
                if error is None:
                    check_end(code)
        finally:
            self._cleanup.close()
            if self._leader is not None:
                self._end_ranks(self._leader, error)

    def _end_ranks(self, leader: ranks.Leader, error: BaseException | None) -> None:
        """The other ranks leave last, with this one's exit code: torchrun, which ends all as soon
        as one fails, must not cut the hand-over short."""
        if error is None:
            leader.end(exits.DONE)
        elif isinstance(error, SystemExit) and isinstance(error.code, int):
            leader.end(error.code)
        else:
            leader.fail(str(error) or type(error).__name__)

    def _say_lost(self, why: str) -> None:
        """From the ranks' watch, before it ends this process."""
        if hasattr(self, "_session"):
            self._session.report(why, "trainer")

    # Between two steps.

    def _boundary(self) -> None:
        self._write_row()
        self._session.poll()
        self._saver.hear_answer()
        if self._unproved and self._step == 1:
            self._saver.prove()
            self._unproved = False
        left_sec = self._session.stop_in_sec
        if left_sec is None and self._is_interrupted():
            left_sec = STOP_SEC
            say("stopping; Ctrl-C again leaves at once")
        if left_sec is not None:
            self._leave(left_sec)
        self._say_alive("train")
        self._saver.save_due(self._step, self._total)
        if self._leader is not None:
            self._leader.go(self._step)

    def _leave(self, budget_sec: float) -> None:
        """Hand over this step's state within ``budget_sec`` and exit 75."""
        deadline = time.monotonic() + budget_sec
        handed_over = self._saver.hand_over(self._step, deadline)
        if self._supervisor is not None:
            if handed_over and self._session.wait_committed(deadline - time.monotonic()):
                say(
                    f"stopped after step {self._step} of {self._total}; "
                    "the same command goes on from there",
                )
            else:
                handed_over = False
        if not handed_over:
            say(
                f"stopped, but step {self._step} could not be saved within "
                f"{budget_sec:.0f} s; the run goes on from the checkpoint before",
            )
        raise SystemExit(exits.INTERRUPTED)

    def _say_alive(self, phase: str) -> None:
        if self._session.tick(self._step, phase):
            try:
                self._rows.flush()  # the supervisor shows the last rows while it beats
            except OSError as error:
                if error.errno not in places.FULL:
                    raise  # else they wait for the next snapshot, which is tried again

    def _write_row(self) -> None:
        if self._row:
            self._rows.add({"step": self._step, **self._row})
            if self._tracker is not None:
                self._tracker.log(self._step, self._row)
            self._row = {}


def _kind_of(error: BaseException) -> str:
    if isinstance(error, DoesNotFit):
        return "does-not-fit"
    return "usage" if isinstance(error, StateError | DataError) else "trainer"
