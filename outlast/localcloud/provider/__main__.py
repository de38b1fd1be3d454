"""`python -m outlast.localcloud.provider --endpoint URL --ready-file FILE`: serves the provider.

Prints its port, and writes it as JSON `{"port": N}` to the ready file once it serves. Ends on
SIGTERM or SIGINT, or when the process that started it has gone.
"""

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from outlast.localcloud.provider.server import start

PARENT_POLL_SEC = 0.5


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m outlast.localcloud.provider", description=__doc__
    )
    made.add_argument("--endpoint", required=True, help="the local cloud's base address")
    made.add_argument("--ready-file", type=Path, help="file that gets the port as JSON")
    return made


def main(argv: list[str] | None = None) -> int:
    """Serves until a signal; returns the exit code."""
    args = parser().parse_args(argv)
    parent = os.getppid()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server, port = start(args.endpoint)
    if args.ready_file:
        draft = args.ready_file.with_name(f"{args.ready_file.name}.{os.getpid()}")
        draft.write_text(json.dumps({"port": port}))
        draft.replace(args.ready_file)
    print(port, flush=True)
    while os.getppid() == parent and not ended.wait(PARENT_POLL_SEC):
        pass
    server.stop(grace=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
