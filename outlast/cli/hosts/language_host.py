"""The engine's Python language host, on the SDK's own stubs.

The engine starts it as `pulumi-language-python [flags] ENGINE`, reads its port from the first line
of its output, and ends it by SIGINT. Each program runs in a separate process, under the
interpreter of the project's virtual environment (`runtime.options.virtualenv`).
"""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path

import grpc
from google.protobuf import json_format
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

PROGRAM = Path(__file__).resolve().with_name("run_program.py")
DONE = b"\n"
"""Begins the answer of run_program.py."""
MESSAGE_LIMIT_BYTES = 400 * 1024 * 1024
"""The engine's own limit."""


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Implements the parts of a language host that programs and policy packs need."""

    def __init__(self, engine_address: str) -> None:
        self._engine_address = engine_address

    def Handshake(self, request, context):
        self._engine_address = request.engine_address or self._engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo()

    def About(self, request, context):
        version = ".".join(str(part) for part in sys.version_info[:3])
        return language_pb2.AboutResponse(executable=sys.executable, version=version)

    def GetRequiredPackages(self, request, context):
        """None: the providers are attached or found on PATH, nothing is to be downloaded."""
        return language_pb2.GetRequiredPackagesResponse()

    def GetProgramDependencies(self, request, context):
        found = {each.name: each.version for each in distributions()}
        return language_pb2.GetProgramDependenciesResponse(
            dependencies=[
                language_pb2.DependencyInfo(name=name, version=version)
                for name, version in sorted(found.items())
            ]
        )

    def InstallDependencies(self, request, context):
        """Nothing: `make setup` has installed what requirements/ locks."""
        yield language_pb2.InstallDependenciesResponse(
            stdout=b"Nothing to install: make setup has done it.\n"
        )

    def Run(self, request, context):
        try:
            python = interpreter(request)
        except ValueError as error:
            return language_pb2.RunResponse(error=str(error))
        if not request.args:
            request.args.append(self._engine_address)
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb") as answer:
            # Its stdin stays open as long as this host lives: its end tells the program to end.
            process = subprocess.Popen(
                [python, "-u", str(PROGRAM), str(write_end)],
                cwd=request.pwd or None,
                stdin=subprocess.PIPE,
                pass_fds=[write_end],
            )
            os.close(write_end)
            context.add_callback(process.terminate)
            assert process.stdin
            payload = request.SerializeToString()
            process.stdin.write(len(payload).to_bytes(8, "big") + payload)
            process.stdin.flush()
            data = answer.read()
            status = process.wait()
            process.stdin.close()
        if status or data[:1] != DONE:
            return language_pb2.RunResponse(error=f"the program's process ended with exit {status}")
        return language_pb2.RunResponse.FromString(data[1:])

    def RunPlugin(self, request, context):
        """Runs a policy pack or a component package, and streams its output to the engine."""
        folder = request.info.program_directory
        if request.kind == "analyzer":
            words = ["-m", "pulumi.policy", *request.args, folder]
        elif request.kind == "resource":
            words = [folder, *request.args]
        else:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"plugins of kind {request.kind!r}")
        try:
            python = interpreter(request)
        except ValueError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        environment = dict(line.split("=", 1) for line in request.env)
        process = subprocess.Popen(
            [python, "-u", *words],
            cwd=request.pwd or None,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        context.add_callback(process.kill)
        for name, data in output_of(process):
            if name == "stdout":
                yield language_pb2.RunPluginResponse(stdout=data)
            else:
                yield language_pb2.RunPluginResponse(stderr=data)
        yield language_pb2.RunPluginResponse(exitcode=process.wait())


def output_of(process: subprocess.Popen) -> Iterator[tuple[str, bytes]]:
    """What a process prints, as it comes: `stdout` or `stderr`, and the bytes."""
    parts: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def read(name: str, fd: int) -> None:
        while data := os.read(fd, 65536):
            parts.put((name, data))
        parts.put((name, b""))

    assert process.stdout and process.stderr
    for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
        threading.Thread(target=read, args=(name, stream.fileno()), daemon=True).start()
    open_streams = 2
    while open_streams:
        name, data = parts.get()
        if data:
            yield name, data
        else:
            open_streams -= 1


def interpreter(request) -> str:
    """The interpreter that runs a program. Raises ValueError if the project names one that does not
    exist.
    """
    options = json_format.MessageToDict(request.info.options)
    name = options.get("virtualenv")
    if not name:
        return sys.executable
    python = Path(request.info.root_directory or request.pwd, name, "bin", "python")
    if not os.access(python, os.X_OK):
        raise ValueError(
            f"runtime.options.virtualenv {name!r}: there is no {python}; run make setup."
        )
    return str(python)


def end_with_engine() -> None:
    """Ends at once when the engine, which holds the other end of stdin, has ended."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    addresses = [argument for argument in argv if not argument.startswith("-")]
    server = grpc.server(
        ThreadPoolExecutor(),
        options=[
            ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ],
    )
    host = LanguageHost(addresses[0] if addresses else "")
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    threading.Thread(target=end_with_engine, daemon=True).start()
    server.wait_for_termination()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
