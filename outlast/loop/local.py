"""A run started on this machine, in a folder or a bucket: its supervisor, name and Ctrl-C.

The supervisor is another process, in a separate session, so that the terminal's Ctrl-C reaches only
the trainer. It ends by itself when the trainer's connection closes.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base import exits
from outlast.base.names import DIGEST, check_relative
from outlast.loop import data
from outlast.loop.errors import DataError, LoopError, SupervisorLost
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE
from outlast.spec import identity
from outlast.spec.pin import Pin
from outlast.spec.result import HEAD_FILE, RESULT_FILE, check_result

STOP_SEC = 120.0
"""Seconds that Ctrl-C waits for the commit of the last snapshot; a second one does not wait."""
CONNECT_SEC = 30.0
ABANDON_SEC = 1.0
WAIT_POLL_SEC = 0.2
WAIT_SAID_SEC = 3.0
"""Seconds after which a message explains the wait for the supervisor's last commit."""
KERNELS = ("ipykernel_launcher", "ipykernel")
"""Programs that run a notebook's cells; their command line has a connection file, not a
training."""


@dataclass(frozen=True)
class Options:
    """Arguments of ``outlast.train`` for a run that no supervisor has started."""

    run_dir: str | Path | None = None
    name: str | None = None
    arguments: Mapping[str, Any] | None = None
    source: str | Path | None = None
    checkpoint_every: str = "auto"
    init: str | None = None
    model_output_path: str | None = None


@dataclass(frozen=True)
class Named:
    """The identity of a run, and its folder."""

    trainer: str
    run: str
    folder: str | Path


def named(options: Options) -> Named:
    """The identity of this program's run, from its name, command line and text."""
    program = _program()
    arguments, source = options.arguments, options.source
    if in_notebook():
        # A new kernel has a new connection file, so its command line must not influence the name.
        program = Path(_notebook())
        arguments = _cell(options) if arguments is None else arguments
    if source is None and options.name is None and program.suffix == ".py" and program.is_file():
        source = program
    if arguments is None:
        arguments = {"argv": sys.argv[1:]}
    trainer = options.name or program.stem
    source = None if source is None else Path(source)
    run = run_name(trainer, arguments, source, options.init)
    folder = options.run_dir or default_folder(trainer, arguments, source, options.init)
    return Named(trainer, run, folder)


def in_notebook() -> bool:
    """Whether this process runs a notebook's cells, each of which may run again."""
    program = _program()
    return program.stem in KERNELS or program.parent.name in KERNELS


def _program() -> Path:
    return Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-", "-c") else "python")


def _notebook() -> str:
    """The notebook's file, if Jupyter provides it."""
    return os.environ.get("JPY_SESSION_NAME") or "notebook"


def _cell(options: Options) -> dict[str, Any]:
    """The text of the running cell, which identifies the run like a program's text: another cell is
    another run, unless the call has a name or a source."""
    if options.name is not None or options.source is not None:
        return {}
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = shell.user_ns.get("In") if shell is not None else None
    return {"cell": cells[-1]} if cells else {}


@contextlib.contextmanager
def starting(options: Options) -> Iterator[None]:
    """A context in which the run's supervisor starts beside the program, which imports its
    framework and builds its state meanwhile. ``start`` with equal options takes it.

    It does nothing to the run until the training connects; without one it ends with the context.
    Nothing is started if this process has a supervisor, or is one of several ranks.
    """
    if SOCKET_VARIABLE in os.environ or "RANK" in os.environ:
        yield
        return
    supervisor = _create(options)
    _early.append((options, supervisor))
    try:
        yield
    finally:
        if (options, supervisor) in _early:
            _early.remove((options, supervisor))
            supervisor.drop()


_early: list[tuple[Options, "LocalSupervisor"]] = []
"""Supervisors that no training has taken yet."""


def _create(options: Options) -> "LocalSupervisor":
    run = named(options)
    return LocalSupervisor(
        run.folder,
        trainer=run.trainer,
        run=run.run,
        checkpoint_every=options.checkpoint_every,
        init=options.init,
        model_output_path=options.model_output_path,
    )


def start(options: Options) -> "LocalSupervisor":
    """The supervisor of a run on this machine, once it listens: the one that ``starting`` has
    begun, or a new one."""
    if _early and _early[-1][0] == options:
        _, supervisor = _early.pop()
    else:
        supervisor = _create(options)
    try:
        supervisor.wait_for_socket(CONNECT_SEC)
    except BaseException:
        supervisor.forget_socket()
        supervisor.abandon()
        raise
    return supervisor


def run_name(
    trainer: str, arguments: Mapping[str, Any], source: Path | None, init: str | None = None
) -> str:
    """The run's name; the same command gives the same name.

    ``init`` is another run's checkpoint, pinned; LoopError if it is not.
    """
    seed = arguments.get("seed")
    try:
        pin = Pin.parse(init) if init else None
    except ValueError as error:
        raise LoopError(str(error)) from None
    return identity.run_id(
        identity.Spec(
            trainer=trainer,
            arguments=arguments,
            source="" if source is None else identity.source_digest(source),
            seed=seed if isinstance(seed, int) else None,
            init=None if pin is None else {"path": pin.path, "blake3": pin.digest},
        )
    )


def default_folder(
    trainer: str, arguments: Mapping[str, Any], source: Path | None, init: str | None = None
) -> Path:
    """The folder of a run without ``run_dir``; other arguments give another folder."""
    return Path("runs") / f"{trainer}-{run_name(trainer, arguments, source, init)}"


def finished_result(run: str | Path) -> Path:
    """The folder with the verified files of a finished run's result. ``run`` is the run's folder,
    ``gs://BUCKET/experiments/NAME/RUN``, a copy of its result, or a model file in one.

    DataError if there is none, LoopError if the run has no result or it is damaged.
    """
    if "://" in str(run):
        return data.fetch(str(run), "result")
    folder = Path(run)
    if folder.is_file():
        folder = folder.parent
    digest = None
    if not (folder / RESULT_FILE).exists():
        path, digest = _end_of(folder, f"run-dir {run}")
        folder = folder / path
    try:
        found = check_result(folder)
    except ValueError as error:
        raise LoopError(f"run-dir {run}: its result is damaged: {folder}/{error}") from None
    if digest not in (None, found.digest):
        raise LoopError(f"run-dir {run}: its result is damaged: {folder} contains another one")
    return folder


def _end_of(run_dir: Path, named: str) -> tuple[str, str]:
    """The path of a finished run's result below its folder, and its digest."""
    try:
        head = json.loads((run_dir / HEAD_FILE).read_bytes())
        state, result = head["state"], head["end"] and head["end"]["result"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{named}: holds no run; train there first") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoopError(f"{named}: its HEAD cannot be read ({error})") from None
    if state != exits.State.DONE or not result:
        raise LoopError(
            f"{named}: the run there is {str(state)[:20]} and has no result; "
            "the training command continues it"
        )
    try:
        path, digest = str(result["path"]), DIGEST.check(result["digest"], "end.result.digest")
        check_relative(path.removesuffix("/"), "end.result.path")
    except (ValueError, KeyError, TypeError) as error:
        raise LoopError(f"{named}: its HEAD cannot be read ({error})") from None
    return path, digest


def check_apart(path: str | Path, run_dir: str | Path) -> None:
    """Raise DataError if a run's folder is inside its data, because each checkpoint would change
    the data and the next attempt would be refused."""
    if "://" in str(path) or "://" in str(run_dir):
        return
    if Path(run_dir).resolve().is_relative_to(Path(path).resolve()):
        raise DataError(
            f"data {path}: holds the run's own folder {run_dir}, and would be other data with each "
            "checkpoint; give a run-dir outside of it, or name the data more closely"
        )


def _beside_stderr() -> int | None:
    """The file descriptor for the supervisor's stdout: stderr, because stdout is the program's."""
    if sys.stderr is None:
        return subprocess.DEVNULL
    return sys.stderr.fileno() if data.is_file(sys.stderr) else None


class LocalSupervisor:
    """The supervisor process of a run in a folder, and the socket it listens on."""

    def __init__(
        self,
        run_dir: str | Path,
        *,
        trainer: str,
        run: str,
        checkpoint_every: str,
        init: str | None = None,
        model_output_path: str | None = None,
    ) -> None:
        self.run_dir = run_dir
        # Not in run_dir, because a socket's path must be short and some file systems have no
        # sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="outlast-"))
        self.socket_path = self._folder / "supervisor.sock"
        command = [sys.executable, "-P", "-m", "outlast.supervisor", "folder"]
        command += ["--socket", str(self.socket_path), f"--run-dir={run_dir}"]
        command += [
            f"--trainer={trainer}",
            f"--run={run}",
            f"--checkpoint-every={checkpoint_every}",
        ]
        command += [f"--init={init or ''}", f"--model-output-path={model_output_path or ''}"]
        command += [f"--parent={os.getpid()}"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=_beside_stderr(),
                env=data.environment(),
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise LoopError(f"the supervisor cannot be started: {error}") from None

    def wait_for_socket(self, timeout_sec: float) -> None:
        """Wait until the supervisor listens; SupervisorLost with its exit code if it ends
        before."""
        waited_sec = 0.0
        while not self.socket_path.exists():
            try:
                code = self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                waited_sec += 0.02
                if waited_sec >= timeout_sec:
                    raise SupervisorLost(
                        f"the supervisor did not start to listen in {timeout_sec:.0f} s"
                    ) from None
                continue
            lost = SupervisorLost(f"the supervisor ended with exit code {code} before it listened")
            lost.exit = code
            raise lost

    def wait(self, timeout_sec: float | None) -> int | None:
        """Its exit code once it has finished its work; None after ``timeout_sec``."""
        try:
            return self._process.wait(timeout_sec)
        except subprocess.TimeoutExpired:
            return None

    def wait_for_commit(self, stopped: Callable[[], bool]) -> int | None:
        """Its exit code once its last work is committed, however long that takes, because starting
        the same run earlier would fence it. None once ``stopped`` returns True."""
        begun = time.monotonic()
        announced = False
        while (code := self.wait(WAIT_POLL_SEC)) is None and not stopped():
            if not announced and time.monotonic() - begun >= WAIT_SAID_SEC:
                say("waiting for the last checkpoint to be committed; Ctrl-C leaves at once")
                announced = True
        return code

    def abandon(self) -> None:
        """End a supervisor whose trainer leaves before it got an answer."""
        self._process.terminate()
        if self.wait(ABANDON_SEC) is None:  # blocked in a request to an unavailable store
            self._process.kill()

    def drop(self) -> None:
        """End a supervisor to which no trainer has connected; it has done nothing yet."""
        self._process.kill()
        self._process.wait()
        self.forget_socket()

    def forget_socket(self) -> None:
        """Remove the socket's folder, which is useless once connected and would survive a kill."""
        shutil.rmtree(self._folder, ignore_errors=True)


def check_end(code: int | None) -> None:
    """Raise SupervisorLost if the supervisor of a complete training ended with a ``code`` other
    than 0."""
    if code != exits.DONE:
        lost = SupervisorLost(
            "the training is complete, but its result was not kept (the supervisor "
            f"ended with exit code {code}; its message is above); the same command tries again"
        )
        lost.exit = code
        raise lost
