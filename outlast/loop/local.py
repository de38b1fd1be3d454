"""A run in a folder of this machine, or from here in a bucket: its supervisor, name and Ctrl-C.

The supervisor is another process, in a session of its own so that the terminal's Ctrl-C reaches
the trainer only. It ends by itself when the trainer's connection closes.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from outlast.base import exits
from outlast.bucket import layout
from outlast.loop import data
from outlast.loop.errors import DataError, LoopError, SupervisorLost
from outlast.spec import identity

STOP_SEC = 120.0
"""How long a Ctrl-C waits for the last snapshot to be committed; a second one does not wait."""


def run_name(
    trainer: str, arguments: Mapping[str, Any], source: Path | None, init: str | None = None
) -> str:
    """What the run is called; the same command gives the same name.

    ``init`` is another run's checkpoint, pinned; LoopError where it is not.
    """
    seed = arguments.get("seed")
    try:
        pin = layout.Pin.parse(init) if init else None
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
    """Where a run lives that was given no folder; another set of arguments has another."""
    return Path("runs") / f"{trainer}-{run_name(trainer, arguments, source, init)}"


def finished_result(run: str | Path) -> Path:
    """The folder with the verified files of a finished run's result: of the run in a folder or at
    ``gs://BUCKET/experiments/NAME/RUN``, of a copy of its result, or of the model's file in one.

    DataError where there is none, LoopError where the run has no result or it is damaged.
    """
    if "://" in str(run):
        return data.fetch(str(run), "result")
    folder = Path(run)
    if folder.is_file():
        folder = folder.parent
    digest = None
    if not (folder / layout.RESULT_FILE).exists():
        path, digest = _end_of(folder, f"run-dir {run}")
        folder = folder / path
    try:
        found = layout.check_result(folder)
    except ValueError as error:
        raise LoopError(f"run-dir {run}: its result is damaged: {folder}/{error}") from None
    if digest not in (None, found.digest):
        raise LoopError(f"run-dir {run}: its result is damaged: {folder} holds another one")
    return folder


def _end_of(run_dir: Path, named: str) -> tuple[str, str]:
    """Where a finished run's result is below its folder, and its digest."""
    try:
        head = json.loads((run_dir / layout.Layout("", "").head).read_bytes())
        state, result = head["state"], head["end"] and head["end"]["result"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{named}: holds no run; train there first") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoopError(f"{named}: its HEAD cannot be read ({error})") from None
    if state != exits.State.DONE or not result:
        raise LoopError(
            f"{named}: the run there is {state} and has no result; "
            "the training command goes on with it"
        )
    return result["path"], result["digest"]


def check_apart(path: str | Path, run_dir: str | Path) -> None:
    """DataError where a run's folder lies in its data: each checkpoint would make it other data,
    and the next attempt would be refused."""
    if "://" in str(path) or "://" in str(run_dir):
        return
    if Path(run_dir).resolve().is_relative_to(Path(path).resolve()):
        raise DataError(
            f"data {path}: holds the run's own folder {run_dir}, and would be other data with each "
            "checkpoint; give a run-dir outside of it, or name the data more closely"
        )


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
        # Not in run_dir: a socket's path has little room, and some file systems have no sockets.
        self._folder = Path(tempfile.mkdtemp(prefix="outlast-"))
        self.socket_path = self._folder / "supervisor.sock"
        command = [sys.executable, "-m", "outlast.supervisor", "folder"]
        command += ["--socket", str(self.socket_path), f"--run-dir={run_dir}"]
        command += [
            f"--trainer={trainer}",
            f"--run={run}",
            f"--checkpoint-every={checkpoint_every}",
        ]
        command += [f"--init={init or ''}", f"--model-output-path={model_output_path or ''}"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if data.is_file(sys.stderr) else None,
                env=data.environment(),
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise LoopError(f"the supervisor cannot be started: {error}") from None

    def wait_for_socket(self, timeout_sec: float) -> None:
        """Until the supervisor listens; SupervisorLost with its exit code if it ends before."""
        waited_sec = 0.0
        while not self.socket_path.exists():
            try:
                code = self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                waited_sec += 0.02
                if waited_sec >= timeout_sec:
                    raise SupervisorLost(
                        f"the supervisor does not listen after {timeout_sec:.0f} s"
                    ) from None
                continue
            lost = SupervisorLost(f"the supervisor ended with exit code {code} before it listened")
            lost.exit = code
            raise lost

    def wait(self, timeout_sec: float | None) -> int | None:
        """Its exit code once it has finished what it was given; None after ``timeout_sec``."""
        try:
            return self._process.wait(timeout_sec)
        except subprocess.TimeoutExpired:
            return None

    def abandon(self) -> None:
        """End a supervisor that was never spoken to; it would wait for a trainer for ever."""
        self._process.terminate()

    def forget_socket(self) -> None:
        """Remove the socket's folder: once connected it is of no use, and a kill would leave it."""
        shutil.rmtree(self._folder, ignore_errors=True)


def check_end(code: int | None) -> None:
    """SupervisorLost where the supervisor of a training that is complete ended with another
    ``code`` than 0."""
    if code != exits.DONE:
        lost = SupervisorLost(
            "the training is complete, but its result is not where it should be (the supervisor "
            f"ended with exit code {code}, and says above why); the same command tries again"
        )
        lost.exit = code
        raise lost


class Interrupts:
    """Ctrl-C and SIGTERM of a laptop run: the first sets a flag, the second leaves at once."""

    def __init__(self) -> None:
        self.requested = False
        self.impatient = False
        self._previous: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's; without a handler Ctrl-C is an ordinary one
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self.impatient = True
            raise SystemExit(exits.INTERRUPTED)
        self.requested = True
