"""Shows how one run stands."""

from outlast.base.exits import State
from outlast.base.numbers import duration
from outlast.base.visible import one_line
from outlast.cli.boots import Wait
from outlast.cli.show.attempts import (
    attempts_table,
    say_failures,
    say_metrics,
    say_parts,
    say_warnings,
)
from outlast.cli.show.console import Terminal
from outlast.cli.status import Status


def show_status(status: Status) -> None:
    """One run: state, attempts, the last metrics."""
    console = Terminal()
    book, wait = status.history, status.wait
    if book is None:
        what = _waited(wait) if wait else status.state
        console.sentence(f"{status.experiment}: run {status.run} is {what}")
        console.sentence(status.url)
        _say_serial(console, wait)
        return
    end = book.head.end
    state = status.state
    if end and end.reason != state:
        state += f" ({end.reason})"
    total = f" of {book.total}" if book.total else ""
    step = f"step {book.step}{total}" if not status.parts else f"{book.step} steps in all its parts"
    if status.left is not None and book.rate:
        of = f" of part {book.part}" if book.part else ""
        step += f", {duration(status.left.total_seconds())} left{of} at {book.rate:.3g} steps/s"
    if book.head.state in (State.FAILED, State.STOPPED) and book.head.step < book.step:
        step += f"; its newest checkpoint is at step {book.head.step}"
    console.sentence(f"{status.experiment}: run {status.run} is {state}, {step}")
    if status.why:
        console.sentence(f"{status.state}: {one_line(status.why)}")
    console.sentence(status.url)
    if status.silence is not None and not status.state.ended:
        console.sentence(f"last heartbeat {duration(status.silence.total_seconds())} ago")
    say_parts(console, status.parts)
    console.print()
    console.print("Attempts (UTC):")
    open_state = status.state if status.silence is not None else "not ended"
    console.print(attempts_table(book.attempts, open_state))
    if wait:
        console.sentence(f"the next attempt: {_waited(wait)}")
        _say_serial(console, wait)
    for attempt in book.attempts:
        if attempt.changed:
            what = ", ".join(attempt.changed)
            console.sentence(f"attempt {attempt.term} changed: {what}")
    say_failures(console, book.attempts, done=book.head.state is State.DONE)
    say_warnings(console, book.attempts)
    if status.metrics:
        console.print()
        say_metrics(console, status.metrics, now=-1 if status.parts else book.step)
    if status.result:
        console.print()
        console.sentence(f"result  {status.result}")


def _say_serial(console: Terminal, wait: Wait | None) -> None:
    """The last lines of a VM that never started its training."""
    if wait and wait.serial:
        console.print("the VM's serial port ends with:")
        for line in wait.serial:
            console.sentence(f"  {line}")


def _waited(wait: Wait) -> str:
    since = f" since {wait.since:%H:%M:%S}" if wait.since else ""
    return f"{wait.what}{since}" + (f": {wait.why}" if wait.why else "")
