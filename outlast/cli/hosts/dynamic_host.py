"""The engine's host of dynamic providers: the SDK's own server, ending when the engine ends it."""

import os
import runpy
import signal
import sys
import threading


def end_with_engine() -> None:
    """Ends at once when the engine, which holds the other end of stdin, has ended."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    threading.Thread(target=end_with_engine, daemon=True).start()
    # Providers are pickled by reference; their modules are found in the program's folder.
    sys.path[0] = os.getcwd()
    runpy.run_module("pulumi.dynamic", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
