"""Runs one Pulumi program for language_host.py: `python run_program.py ANSWER_FD`.

The request comes on stdin, its length first; the answer goes to the file descriptor, so that it is
not mixed with the program's output. The end of stdin means that the host has ended.
"""

import asyncio
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from pulumi import RunError, log
from pulumi.runtime import reset_options, run_in_stack, set_all_config
from pulumi.runtime.proto import language_pb2

DONE = b"\n"
"""Begins an answer, which may have no bytes."""
THREADS_PER_SLOT = 4
"""As in the SDK: each resource in work may need several threads."""
MONITOR_GONE = "Resource monitor has terminated"
"""The SDK's message if the engine has stopped the update, for which the engine has given the
reason.
"""


def read_request() -> Any:
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    return language_pb2.RunRequest.FromString(sys.stdin.buffer.read(length))


def end_with_host() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host ends this process
    request = read_request()
    threading.Thread(target=end_with_host, daemon=True).start()
    folder = request.info.program_directory or request.pwd
    entry = os.path.normpath(os.path.join(folder, request.info.entry_point or request.program))
    os.chdir(folder)
    sys.path[0] = entry if os.path.isdir(entry) else os.path.dirname(entry)
    sys.argv[:] = [entry]
    failed = not run(request, entry)
    with os.fdopen(int(argv[0]), "wb") as out:
        out.write(DONE + language_pb2.RunResponse(bail=failed).SerializeToString())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that a program left behind must not hold the update up


def run(request: Any, entry: str) -> bool:
    """Runs the program under the engine that the request names; False: it failed, and the engine
    was shown why."""
    reset_options(
        project=request.project,
        monitor_address=request.monitor_address,
        engine_address=request.args[0],
        stack=request.stack,
        parallel=request.parallel,
        preview=request.dryRun,
        organization=request.organization or "organization",
    )
    set_all_config(dict(request.config), list(request.configSecretKeys))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # tasks left over after an error
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(max(request.parallel, 1) * THREADS_PER_SLOT))

    def program() -> None:
        runpy.run_path(entry, run_name="__main__")

    try:
        loop.run_until_complete(run_in_stack(program))
    except RunError as error:
        if not str(error).startswith(MONITOR_GONE):
            log.error(str(error))
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
            log.error(f"the engine refused: {error.details()}")  # type: ignore[attr-defined]
    except SystemExit as error:
        if not error.code:
            return True
        log.error(f"the program ended with exit {error.code}")
    except BaseException:  # Anything that a program raises is its failure.
        log.error(f"Program failed with an unhandled exception:\n{traceback.format_exc()}")
    else:
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
