"""The supervisor's entries.

    python -P -m outlast.supervisor vm                               on a VM, from its metadata
    python -m outlast.supervisor folder --run-dir DIR --socket PATH --trainer NAME --run ID
                                                              for a trainer on this computer, in a
                                                              folder or a bucket
    python -P -m outlast.supervisor dev --source DIR --state DIR --code DIGEST
                                                           a development run beside a VM's own
    python -m outlast.supervisor fetch URL --into DIR      a result, or data, as a local path

Exit codes are those of outlast/base/exits.py: 0 the run has ended or no longer needs this machine,
64 bad usage, 75 another machine must continue, 76 fenced; 1 for a setup that failed and, in a
folder, for a run that failed.
"""

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from outlast.base import exits
from outlast.base.console import (
    crash_report,
    fill_streams,
    flush_streams,
    write_line,
    write_stderr,
)
from outlast.bucket import fetch as fetching
from outlast.spec.run_spec import BadSpec
from outlast.supervisor.development import run_development
from outlast.supervisor.life import FAILED
from outlast.supervisor.on_computer import run_folder
from outlast.supervisor.on_vm import run_vm
from outlast.supervisor.stop import Stop


def parser() -> argparse.ArgumentParser:
    """The command line of both entries."""
    top = argparse.ArgumentParser(
        prog="python -m outlast.supervisor", description="The supervisor."
    )
    entries = top.add_subparsers(dest="entry", required=True)
    entries.add_parser("vm", help="on a VM, from its metadata")
    folder = entries.add_parser("folder", help="for a trainer on this computer")
    folder.add_argument("--run-dir", required=True, help="folder or gs:// path of the run")
    folder.add_argument("--socket", type=Path, required=True, help="where to listen")
    folder.add_argument("--trainer", required=True, help="name of the trainer, for the records")
    folder.add_argument("--run", required=True, help="name of the run; another one is refused")
    folder.add_argument(
        "--checkpoint-every", default="auto", help="auto, 30s or steps; default %(default)s"
    )
    folder.add_argument("--init", default="", help="another run's checkpoint to begin with")
    folder.add_argument(
        "--parent", type=int, help="process that starts it, which may end before it runs"
    )
    folder.add_argument("--model-output-path", default="", help="where to copy the result")
    dev = entries.add_parser("dev", help="a development run beside a VM's own")
    dev.add_argument("--source", type=Path, required=True, help="folder of its code")
    dev.add_argument("--state", type=Path, required=True, help="folder for its own files")
    dev.add_argument("--code", required=True, help="digest of the code; it names the run")
    fetch = entries.add_parser("fetch", help="get a finished run's result, or data")
    fetch.add_argument("url", help="a run's folder, gs://BUCKET/experiments/NAME/RUN, or data")
    fetch.add_argument("--into", type=Path, required=True, help="cache folder; prints the path in")
    fetch.add_argument(
        "--kind",
        choices=("auto", "data", "result"),
        default="auto",
        help="what it is; auto: a result where a run is",
    )
    fetch.add_argument("--json", action="store_true", help="answer as JSON, refusals too")
    return top


_ENTRIES = {
    "vm": lambda stop, options: run_vm(stop),
    "folder": run_folder,
    "dev": run_development,
}


def main(argv: Sequence[str]) -> int:
    """Runs one entry in a separate thread, so that the main thread stays free for signal
    handlers."""
    fill_streams()
    try:
        options = parser().parse_args(argv)
    except SystemExit as error:
        return exits.USAGE if error.code else exits.DONE
    if options.entry == "fetch":
        return fetching.main(options.url, options.kind, options.into, as_json=options.json)
    # A signal may interrupt any thread, but only the main thread runs handlers: it waits on a
    # descriptor that a signal in any thread makes readable.
    wakes, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    stop = Stop()
    stop.install()
    codes: list[int] = []
    ended = threading.Event()

    def live() -> None:
        try:
            codes.append(_ENTRIES[options.entry](stop, options))
        except BadSpec as error:
            write_line(f"outlast: {error}")
            codes.append(exits.USAGE)
        except BaseException as error:
            # Report it before `ended` is set: the main thread then ends the process at once.
            write_stderr(crash_report(error))
        finally:
            ended.set()
            with contextlib.suppress(BlockingIOError):  # A full descriptor is readable, too.
                wake.send(b"\0")

    threading.Thread(target=live, name="supervisor").start()
    while not ended.is_set():
        wakes.recv(4096)
    return codes[0] if codes else FAILED


def leave(code: int) -> NoReturn:
    """Ends the process now: threads that wait for a store or a metadata server must not delay
    it.
    """
    flush_streams()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
