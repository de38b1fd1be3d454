"""How a training ends: whether leaving the loop completes it, and messages if it does not."""

import traceback

from outlast.base import exits
from outlast.base.console import write_stderr
from outlast.loop.errors import DataError, DoesNotFit, LeftEarly, StateError, SupervisorLost
from outlast.loop.words import say


def left_with_0(error: BaseException | None) -> bool:
    """Whether the program ended with sys.exit(0)."""
    return isinstance(error, SystemExit) and error.code in (None, exits.DONE)


def left_early(step: int, total: int | None, what: str = "the loop was left") -> LeftEarly:
    """The error for a loop that was left before its last step without ``run.finish``."""
    of = "" if total is None else f" of {total}"
    return LeftEarly(
        f"{what} after step {step}{of}, so the training is not complete; to end it there, call "
        "run.finish('why') before leaving the loop; the same command continues from the last "
        "checkpoint"
    )


def report(error: BaseException | None) -> tuple[str, str] | None:
    """The message to the supervisor about the error that ends the program, and its kind in the
    protocol; None if no message is needed."""
    match error:
        case None | SupervisorLost() | SystemExit(code=exits.INTERRUPTED):
            return None
        case SystemExit():
            return f"the program left with sys.exit({error.code!r})", "trainer"
        case DoesNotFit():
            return str(error), "does-not-fit"
        case StateError() | DataError():
            return str(error), "usage"
        case Exception() | KeyboardInterrupt():
            return str(error) or type(error).__name__, "trainer"
    return None


def traceback_of(error: BaseException | None) -> list[str]:
    """The lines of the traceback of an error that may be a bug in the program; empty if the error's
    sentence explains it."""
    if not isinstance(error, Exception) or isinstance(error, DoesNotFit | StateError | DataError):
        return []
    return "".join(traceback.format_exception(error)).splitlines()


def say_after_stop(error: BaseException | None) -> None:
    """Print the program's exception after a stop, which takes precedence over it."""
    if error is None or isinstance(error, SystemExit | KeyboardInterrupt):
        return
    say(f"the program was asked to stop, and then raised {type(error).__name__}:")
    write_stderr("".join(traceback.format_exception(error)))
