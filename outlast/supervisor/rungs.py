"""A trial at the rungs of its sweep: follows its rows, records its values, and says when to stop.

A comparison is never worth a run: whatever fails here, the training continues, and a warning says
what was not compared.
"""

import json
import logging
import math
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.base.plain_files import NotPlain
from outlast.base.retry import ONCE, Patience
from outlast.base.suggest import did_you_mean
from outlast.bucket import rungs
from outlast.bucket.layout import Choice, RungDecision, RungValue, SweepLayout
from outlast.bucket.rows import iter_rows
from outlast.bucket.store import StoreError
from outlast.protocol import own_row
from outlast.spec.sweep_rules import Measured, Rule, SweepRules
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.listener import Post
from outlast.supervisor.notice import Interrupted

_log = logging.getLogger(__name__)

LOOK_SEC = 0.5
"""Seconds between two looks at the rows; a trainer writes them once a second."""
READ_BYTES_MAX = 1 << 20
LAST_WORDS_SEC = 10.0
"""Seconds that an attempt's end waits for the values of the last rungs."""
NAMES_MAX = 20
"""Names of other metrics that are remembered for a warning."""


@dataclass(frozen=True)
class Reached:
    """A rung that the rows have passed."""

    rung: int
    step: int
    """Step of the last value."""
    measured: Measured | None
    """None if the metric has no value up to the rung."""


@dataclass(frozen=True)
class Pruned:
    """Event: the trial decided at a rung that it stops."""

    decision: RungDecision


class Course:
    """A trial's metric, row by row. The same rows give the same numbers, bit for bit, whether they
    come from one attempt or from several."""

    def __init__(self, rules: SweepRules) -> None:
        self._rules = rules
        self._next = rules.rung_after(0)
        self._step = 0
        self._value: float | None = None
        self._best: float | None = None
        self._sum = 0.0
        self._count = 0
        self.has_values = False
        self.strange: Any = None
        """A value of the metric that is not a number."""
        self.others: dict[str, None] = {}
        """Names of other metrics."""

    def add(self, row: Mapping[str, Any]) -> list[Reached]:
        """Takes the next row, as the bucket has it; returns the rungs that it shows as passed."""
        if type(row.get("step")) is not int:
            return []
        own = own_row(row)
        step = own["step"]
        part = f"{own['part']}/" if own.get("part") != row.get("part") else ""
        for name in own if len(self.others) < NAMES_MAX else ():
            if name not in ("step", "part") and part + name != self._rules.metric:
                self.others[part + name] = None
        if not self._rules.metric.startswith(part):
            return []
        # Rows are in the order of their steps: those before this step are complete.
        passed = self._pass(step - 1)
        name = self._rules.metric.removeprefix(part)
        if name in own:
            self._take(step, own[name])
        return [*passed, *self._pass(step)]

    def _take(self, step: int, value: Any) -> None:
        if isinstance(value, bool | str) or not isinstance(value, int | float | None):
            self.strange = value
            return
        number = _finite(value)
        self.has_values, self._step, self._value = True, step, number
        if number is None:
            return
        if self._best is None or self._rules.better(number, self._best):
            self._best = number
        self._sum += number
        self._count += 1

    def _pass(self, step: int) -> list[Reached]:
        found = []
        while self._next is not None and self._next <= step:
            found.append(Reached(self._next, self._step, self._measured()))
            self._next = self._rules.rung_after(self._next)
        return found

    def _measured(self) -> Measured | None:
        if not self.has_values:
            return None
        mean = _finite(self._sum / self._count) if self._count else None
        return Measured(self._value, self._best, mean)


def _finite(value: float | None) -> float | None:
    """As a float; None if that is not finite. Rows have null for what is not finite."""
    try:
        number = None if value is None else float(value)
    except OverflowError:
        return None
    return number if number is None or math.isfinite(number) else None


def earlier_stop(term: HeldTerm) -> RungDecision | None:
    """The decision by which this trial stops, if an earlier attempt made it; None if there is none.
    It tries once: while the sweep's objects cannot be reached, the trial trains."""
    rules = term.spec.sweep_rules
    if rules is None:
        return None
    store, run = term.head_file.store, term.spec.run
    try:
        found = rungs.decisions_of(store, SweepLayout(rules.name), run, patience=ONCE)
    except StoreError as error:
        _log.info(f"sweep {rules.name}: {error}; earlier decisions are looked for again")
        return None
    return _stop_among(found, term.spec.resume)


def _stop_among(decisions: Iterable[RungDecision], resume: int) -> RungDecision | None:
    """The first stop that binds an attempt of this resume."""
    return next((one for one in decisions if _stops(one, resume)), None)


def _stops(decision: RungDecision, resume: int) -> bool:
    return decision.choice is Choice.STOP and decision.resume >= resume


class RungWatch:
    """Compares one attempt's trial with the others, in a separate thread."""

    def __init__(self, term: HeldTerm, rules: SweepRules, begun: int) -> None:
        """``begun``: the step that the attempt resumes from."""
        self._rules = rules
        self._layout = SweepLayout(rules.name)
        self._begun = begun
        self._spec = term.spec
        self._head_file = term.head_file
        self._term = term.head_file.term
        self._store = term.head_file.store
        self._rows = term.rooms.rows
        self._progress = term.progress
        self._patience: Patience = term.head_file.patience.fresh()
        self._course = Course(rules)
        self._waiting: list[Reached] = []
        """Rungs that are not compared yet."""
        self._tried = False
        """Whether the waiting ones were tried."""
        self._decided: set[int] = set()
        self._warned_missing = False
        self._closed = threading.Event()
        self._last_words = False
        self._post: Post = lambda event: None
        self._thread: threading.Thread | None = None
        self.offset = 0
        """Bytes at the start of the rows' file that are not read again."""

    def begin(self, post: Post) -> None:
        """Starts to follow the rows; the event is Pruned."""
        self._post = post
        self._thread = threading.Thread(target=self._run, name="rungs", daemon=True)
        self._thread.start()

    def close(self, *, last_words: bool, done: bool) -> None:
        """Ends the watch. ``last_words``: after recording the values of the last rungs, without
        another decision; ``done``: the trial has trained to its end."""
        self._last_words = last_words
        self._closed.set()
        if last_words and self._thread is not None:
            self._thread.join(LAST_WORDS_SEC)
        self._patience.close()
        if done and not self._course.has_values:
            self._warn_missing("at any step")

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._begin():
                self._follow()
        except Interrupted:
            return
        except (StoreError, ValueError, OSError) as error:
            if not self._closed.is_set():
                self._warn(f"its earlier values cannot be read ({error}); it is not compared")
        except Exception as error:
            _log.info("".join(traceback.format_exception(error)))
            self._warn(f"the comparison crashed ({type(error).__name__}: {error})")
        finally:
            self.offset = sys.maxsize

    def _begin(self) -> bool:
        """Obeys an earlier decision, and reads the rows of earlier attempts. Returns False if the
        trial stops."""
        found = self._earlier_decisions()
        self._decided = {decision.rung for decision in found}
        stop = _stop_among(found, self._spec.resume)
        if stop is not None:
            self._post(Pruned(stop))
            return False
        if self._begun:
            self._patience(self._replay, f"sweep {self._rules.name}")
        return True

    def _earlier_decisions(self) -> list[RungDecision]:
        """Empty if they cannot be read; each rung's own is read again where it counts."""
        try:
            return rungs.decisions_of(
                self._store, self._layout, self._spec.run, patience=self._patience
            )
        except StoreError as error:
            if not self._closed.is_set():
                self._warn(f"its earlier decisions cannot be read ({error}); training continues")
            return []

    def _replay(self) -> None:
        """Takes the rows of earlier attempts up to the step that this one resumes from."""
        self._course, self._waiting = Course(self._rules), []
        head = self._head_file.held(self._term)
        for row in iter_rows(self._store, self._head_file.layout, head):
            if row["step"] > self._begun:
                break
            self._waiting += self._course.add(row)
        self._waiting = [one for one in self._waiting if one.rung not in self._decided]

    def _follow(self) -> None:
        while True:
            over = self._closed.is_set()
            if over and not self._last_words:
                return
            reached = self._read()
            self._waiting += reached
            # What failed before is tried again with the next rung. How many steps the training has
            # is known once it has begun.
            if (reached or over or not self._tried) and self._progress.greeted and self._compare():
                return
            if over:
                return
            self._closed.wait(LOOK_SEC)

    def _read(self) -> list[Reached]:
        """The rungs that the rows since the last look have passed."""
        found: list[Reached] = []
        while True:
            try:
                with self._rows.open("rb") as file:
                    file.seek(self.offset)
                    data = file.read(READ_BYTES_MAX)
            except (OSError, NotPlain):
                return found
            whole, newline, _ = data.rpartition(b"\n")
            if not newline:
                # A row of this length is none: rows are at most a few kilobytes.
                self.offset += len(data) if len(data) == READ_BYTES_MAX else 0
                return found
            self.offset += len(whole) + 1
            for line in whole.split(b"\n"):
                row = _row(line)
                if row is not None:
                    found += self._course.add(row)

    def _compare(self) -> bool:
        """Compares at the rungs that wait. Returns True if the trial stops. A failure leaves them
        waiting, which is a warning."""
        self._tried = True
        while self._waiting:
            reached = self._waiting[0]
            try:
                stop = self._at(reached)
            except StoreError as error:
                if not self._closed.is_set():
                    self._warn(
                        f"rung {reached.rung} could not be compared ({error}); training continues,"
                        " and it is tried again at the next rung"
                    )
                return False
            self._waiting.pop(0)
            if stop is not None:
                self._post(Pruned(stop))
                return True
        return False

    def _at(self, reached: Reached) -> RungDecision | None:
        """Records and decides at a rung; returns the decision if the trial stops. Raises
        StoreError."""
        measured = reached.measured
        if measured is None:
            if not self._warned_missing:
                self._warn_missing(f"up to rung {reached.rung}")
            return None
        value = RungValue(
            run=self._spec.run,
            rung=reached.rung,
            step=reached.step,
            value=measured.value,
            best=measured.best,
            mean=measured.mean,
        )
        counts = rungs.record_value(self._store, self._layout, value, patience=self._patience)
        if counts != value:
            self._warn(
                f"rung {reached.rung}: an earlier attempt recorded {_said(counts)}, this one has"
                f" {_said(value)}; the first counts (the trainer does not repeat itself exactly, or"
                " its arguments were changed)"
            )
        if self._closed.is_set() or self._rules.rule is Rule.NONE or self._is_last(reached.rung):
            return None
        decision = rungs.decide(
            self._store,
            self._layout,
            counts,
            self._rules,
            resume=self._spec.resume,
            patience=self._patience,
        )
        if reached.rung not in self._decided:
            _log.info(f"{decision.choice}: {decision.why}")
        self._decided.add(reached.rung)
        return decision if _stops(decision, self._spec.resume) else None

    def _is_last(self, rung: int) -> bool:
        """Whether the trial has nothing left to train at a rung, as far as its steps are known."""
        total, progress = self._progress.total, self._progress
        return total is not None and rung >= total - progress.before

    # -- warnings -----------------------------------------------------------------------------

    def _warn_missing(self, where: str) -> None:
        self._warned_missing = True
        metric, strange = self._rules.metric, self._course.strange
        if strange is not None:
            what = f"metric {metric} is {str(strange)[:80]!r}, which is not a number"
        else:
            logged = [*self._course.others]
            known = f"logged are {', '.join(logged)}" if logged else "the trainer logs no rows"
            what = f"metric {metric} has no value {where}; {did_you_mean(metric, logged, known)}"
        self._warn(f"{what}; the trial is not compared there, and trains on")

    def _warn(self, message: str) -> None:
        message = f"sweep {self._rules.name}: {message}"
        _log.info(message)
        self._progress.note_warning(message)


def _said(value: RungValue) -> str:
    return f"{value.value!r} (best {value.best!r}, average {value.mean!r}) at step {value.step}"


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
