"""Copies the run's rows to MLflow or Weights & Biases, without making training wait.

The whole run has one tracker run, which every attempt finds or begins by a key derived from the
run's URL. Steps that an attempt repeats after an interruption are not sent again. A thread sends
rows, and training only puts them into a queue of limited length. If a tracker is slow or down, rows
are missing there; they are counted and reported. The run's own rows, in its folder or bucket, are
complete anyway.
"""

import contextlib
import hashlib
import importlib.util
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from outlast.base.visible import visible
from outlast.loop.errors import LoopError
from outlast.protocol import Welcome

VARIABLE = "OUTLAST_TRACKER"
QUEUE_ROWS = 1000
BATCH_ROWS = 100
CLOSE_SEC = 10.0
"""Seconds that the end of a training waits for queued rows."""
RETRY_SEC = 5.0
RETRY_FACTOR_MAX = 12
"""Waits between two tries double up to this multiple of RETRY_SEC."""
TROUBLES_MAX = 5
"""The most different troubles of a tracker to show in one attempt."""
KEY_TAG = "outlast.supervisor"
PARAM_CHARACTERS_MAX = 500


class _Sender(Protocol):
    """One tracker's run. All methods belong to the sending thread and may raise anything."""

    def last_step(self) -> int:
        """The last step of which the tracker has a row; 0 for none."""
        ...

    def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
        """Send rows with their steps, in order."""
        ...

    def close(self, *, interrupted: bool) -> None:
        """End this attempt's rows; ``interrupted``: another attempt may follow."""
        ...


def choose(name: str | None) -> str | None:
    """The tracker to use: ``name``, else the one named by OUTLAST_TRACKER, else None.

    Raises LoopError if it is unknown or its package is not installed.
    """
    name = name if name is not None else os.environ.get(VARIABLE)
    if not name:
        return None
    if name not in _SENDERS:
        raise LoopError(f"tracker {name!r}: unknown; known are {', '.join(_SENDERS)}")
    if importlib.util.find_spec(name) is None:
        raise LoopError(
            f"tracker {name!r}: its package is not installed; pip install 'outlast[{name}]', or "
            "train without a tracker"
        )
    return name


class Tracker:
    """Sends rows from a separate thread."""

    def __init__(self, name: str, welcome: Welcome, params: Mapping[str, Any]) -> None:
        self._name = name
        self._key = run_key(welcome)
        self._title = f"outlast-{welcome.run_id or self._key}"
        self._params = {key: str(value)[:PARAM_CHARACTERS_MAX] for key, value in params.items()}
        self._rows: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(QUEUE_ROWS)
        self._dropped = 0
        self._said_slow = False
        self._troubles = _Troubles(name)
        self._closing = threading.Event()
        self._interrupted = False
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Queue the numbers of one row; drop it if the queue is full."""
        numbers = {
            key: float(value)
            for key, value in row.items()
            if type(value) in (int, float, bool) and math.isfinite(value)
        }
        if not numbers:
            return
        try:
            self._rows.put_nowait((step, numbers))
        except queue.Full:
            self._drop(1)

    def close(self, *, interrupted: bool) -> None:
        """Send the queued rows for a limited time, and report how many are missing."""
        self._interrupted = interrupted
        self._closing.set()
        self._thread.join(CLOSE_SEC)
        left = self._rows.qsize()
        if self._thread.is_alive():
            _say(f"tracker {self._name}: does not answer; the training ends without it")
        if self._dropped + left:
            _say(
                f"tracker {self._name}: {self._dropped + left} rows are missing there; the run's "
                "own rows are complete"
            )

    def _drop(self, rows: int) -> None:
        self._dropped += rows
        if not self._said_slow:
            self._said_slow = True
            _say(f"tracker {self._name}: too slow, rows are dropped there; training continues")

    def _run(self) -> None:
        sender, last_step, waits = None, 0, _waits()
        while sender is None:
            try:
                sender = _SENDERS[self._name](self._key, self._title, self._params)
                last_step = sender.last_step()
            except (Exception, SystemExit) as error:  # a foreign package may raise anything
                sender = None
                self._troubles.say(error, "training continues")
                if self._closing.wait(next(waits)):
                    return
        while rows := self._batch():
            rows = [
                row for row in rows if row[0] > last_step
            ]  # without rows sent before an interruption
            if not self._send(sender, rows):
                self._dropped += len(rows)
                return
        try:
            sender.close(interrupted=self._interrupted)
        except (Exception, SystemExit) as error:
            self._troubles.say(error, "rows may be missing there")

    def _send(self, sender: _Sender, rows: list[tuple[int, dict[str, float]]]) -> bool:
        """Send rows, with retries; whether they were sent before the training was over."""
        waits = _waits()
        while rows:
            try:
                sender.send(rows)
                break
            except (Exception, SystemExit) as error:
                self._troubles.say(error, "training continues")
                if self._closing.wait(next(waits)):
                    return False
        return True

    def _batch(self) -> list[tuple[int, dict[str, float]]]:
        """The next rows; empty once the training is over and the queue is empty."""
        rows: list[tuple[int, dict[str, float]]] = []
        while not rows:
            with contextlib.suppress(queue.Empty):
                rows.append(self._rows.get(timeout=0.1))
                while len(rows) < BATCH_ROWS:
                    rows.append(self._rows.get_nowait())
            if not rows and self._closing.is_set():
                break
        return rows


class _Troubles:
    """Reports each trouble with one tracker once. Texts that differ only in numbers are one
    trouble, and after TROUBLES_MAX different ones no more are reported."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: set[str] = set()

    def say(self, error: BaseException, outcome: str) -> None:
        """Report an error unless it was already reported. ``outcome`` is its effect on the
        training."""
        line = _first_line(error)
        trouble = re.sub(r"\w*\d\w*", "#", line)
        if trouble in self._said or len(self._said) == TROUBLES_MAX:
            return
        self._said.add(trouble)
        last = "; further troubles are not shown" if len(self._said) == TROUBLES_MAX else ""
        _say(f"tracker {self._name}: {line}{last}; {outcome}")


def _waits() -> Iterator[float]:
    factor = 1
    while True:
        yield factor * RETRY_SEC
        factor = min(2 * factor, RETRY_FACTOR_MAX)


def run_key(welcome: Welcome) -> str:
    """A key that all attempts of one run share, and no other run."""
    text = f"{welcome.run_url}\0{welcome.run_id}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Mlflow:
    """An MLflow run, found by a tag in the experiment that MLflow's own settings name."""

    def __init__(self, key: str, title: str, params: Mapping[str, str]) -> None:
        import mlflow  # type: ignore[import-not-found]
        from mlflow.entities import Metric, Param  # type: ignore[import-not-found]

        self._metric = Metric
        self._client = mlflow.MlflowClient()
        experiment = _mlflow_experiment(self._client)
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {KEY_TAG: key}
            made = self._client.create_run(experiment, run_name=title, tags=tags)
            self._id = made.info.run_id
            self._client.log_batch(self._id, params=[Param(*item) for item in params.items()])

    def last_step(self) -> int:
        names = self._client.get_run(self._id).data.metrics
        histories = [self._client.get_metric_history(self._id, name) for name in names]
        return max((point.step for history in histories for point in history), default=0)

    def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
        now_ms = int(time.time() * 1000)
        points = [
            self._metric(name, value, now_ms, step)
            for step, row in rows
            for name, value in row.items()
        ]
        for start in range(0, len(points), 1000):  # MLflow's limit per call
            self._client.log_batch(self._id, metrics=points[start : start + 1000])

    def close(self, *, interrupted: bool) -> None:
        # A later attempt continues an interrupted run, so for MLflow it is still running.
        if not interrupted:
            self._client.set_terminated(self._id)


def _mlflow_experiment(client: Any) -> str:
    """Id of the experiment that MLFLOW_EXPERIMENT_ID or MLFLOW_EXPERIMENT_NAME names."""
    if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return number
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    found = client.get_experiment_by_name(name)
    return client.create_experiment(name) if found is None else found.experiment_id


class _Wandb:
    """A Weights & Biases run with the key as its id; project and entity are W&B's own settings."""

    def __init__(self, key: str, title: str, params: Mapping[str, str]) -> None:
        import wandb  # type: ignore[import-not-found]

        self._run = wandb.init(
            id=key,
            resume="allow",
            name=title,
            config=dict(params),
            project=os.environ.get("WANDB_PROJECT", "outlast"),
        )

    def last_step(self) -> int:
        return int(self._run.step) - 1 if self._run.resumed and self._run.step else 0

    def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
        for step, row in rows:
            self._run.log(row, step=step)

    def close(self, *, interrupted: bool) -> None:
        self._run.finish(exit_code=1 if interrupted else 0)


_SENDERS: dict[str, Any] = {"mlflow": _Mlflow, "wandb": _Wandb}


def _say(message: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(visible(f"outlast: {message}\n"))
        sys.stderr.flush()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
