"""``python -m outlast.loop.launch N MODULE …``: torch's launcher, with the exit code of a rank.

``torchrun`` itself ends with 1 for every failure of a rank. This launcher ends with the code of the
rank that failed, or by the signal that killed it, so that a supervisor can distinguish bad usage
and exhausted memory from an error in the program. Needs torch; ``outlast:processes`` starts it.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from outlast.base import exits
from outlast.loop.ranks import FAILED_EXIT

TORCHRUN_KILL_SEC = 25.0
"""A rank that ends by SIGKILL this many seconds after the first one was killed by torchrun."""


def main(argv: Sequence[str]) -> int:
    """Run ``python -m MODULE …`` in N processes. Return the exit code, negative for a signal."""
    processes, *trainer = argv
    try:
        from torch.distributed import run  # type: ignore[import-not-found]
        from torch.distributed.elastic.multiprocessing.errors import (  # type: ignore[import-not-found]
            ChildFailedError,
        )
    except ImportError as error:
        print(
            f"processes {processes}: {sys.executable} cannot start them ({error}); more than one "
            "needs torch there, so install it, or name another interpreter",
            file=sys.stderr,
        )
        return exits.USAGE
    signal.signal(signal.SIGABRT, _abort_ranks)
    options = ["--standalone", "--no-python", f"--nproc-per-node={processes}"]
    command = [sys.executable, "-P", "-m", *trainer]
    try:
        run.run(run.parse_args([*options, *command]))
    except ChildFailedError as error:
        return _cause(
            [(failure.timestamp, failure.exitcode) for failure in error.failures.values()]
        )
    return exits.DONE


def _cause(failures: Sequence[tuple[float, int]]) -> int:
    """The most informative exit code of all ranks' (time in seconds, code). A rank that has lost
    another one ends with 1. After the first failure torchrun ends all ranks by SIGTERM, to which a
    rank may respond with 75, and after 30 s by SIGKILL."""
    first_sec = min(at_sec for at_sec, _ in failures)
    codes = [code for at_sec, code in failures if at_sec - first_sec < TORCHRUN_KILL_SEC]
    least = (-signal.SIGTERM, exits.INTERRUPTED, FAILED_EXIT)
    return min(codes, key=lambda code: (*(code == other for other in least), code > 0))


def _abort_ranks(number: int, _: object) -> None:
    """Pass SIGABRT on to the ranks, because their stacks show where a training hangs."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                os.kill(int(child), number)


def _leave(code: int) -> None:
    """End with an exit code, or by the signal that a negative one names."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump of this process is useless
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
