"""What the local cloud's storage can take: small writes a second, and large objects.

    python -m bench.cloud_storage
    python -m bench.cloud_storage --seconds 10 --mb 64 --rounds 9

Small objects are written by bare HTTP clients (a socket that sends a prepared request and reads the
answer), each a process with one connection; the same clients then write to a bare server that does
no more than write the file and compute md5 and crc32c. Large objects are sent over one connection,
in turns with a bare copy over loopback that does just that; a figure is the median of the rounds.
The targets of large objects are ratios within this run, so that a busy machine does not decide.
Exit codes: 0 all targets met, 1 one is not, 69 the bench could not run.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from bench import table
from outlast.base.exits import DONE

FAILED, CANNOT = 1, 69
ROOT = Path(__file__).parent.parent
BUCKET = "bench"
CLIENTS = 4
SMALL_BYTES = 1024
WRITES_AIM, WRITES_LEAST = 1000, 300
COPY_RATIO = 0.5
BLOCK = 256 * 1024
SEND = 1024 * 1024
END_SEC = 120.0
HEAD_END = b"\r\n\r\n"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.cloud_storage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seconds", type=float, default=5.0, help="of small writes")
    made.add_argument("--mb", type=int, default=64, help="a large object's size")
    made.add_argument("--rounds", type=int, default=7, help="of large objects")
    made.add_argument("--json", type=Path, help="file for the figures")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args = parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as work, contextlib.ExitStack() as stack:
            cloud = stack.enter_context(local_cloud(Path(work)))
            bare = stack.enter_context(bare_server(Path(work)))
            copier = stack.enter_context(bare_copier(Path(work)))
            small = {
                "local cloud": small_writes(cloud, args.seconds),
                "bare server": small_writes(bare, args.seconds),
            }
            large = large_objects(cloud, copier, args.mb * 1024 * 1024, args.rounds)
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"cloud storage: {error}", file=sys.stderr)
        return CANNOT
    title = (
        f"\n{CLIENTS} clients, {SMALL_BYTES} byte objects, {args.seconds:g} s; {table.machine()}"
    )
    print(table.show(title, [{"server": name, **told} for name, told in small.items()]))
    lines = [
        {
            "direction": way,
            "bare copy ms": round(1000 * bare_sec, 1),
            "local cloud ms": round(1000 * cloud_sec, 1),
            "ratio": round(bare_sec / cloud_sec, 2),
        }
        for way, (bare_sec, cloud_sec) in large.items()
    ]
    print(table.show(f"One object of {args.mb} MiB, medians of {args.rounds} rounds", lines))
    writes = small["local cloud"]["writes a second"]
    targets = [
        {"target": f"small writes a second, at least {WRITES_LEAST}", "found": writes},
        *(
            {"target": f"{line['direction']}, at least {COPY_RATIO}", "found": line["ratio"]}
            for line in lines
        ),
    ]
    for line, least in zip(targets, (WRITES_LEAST, COPY_RATIO, COPY_RATIO), strict=True):
        line["met"] = line["found"] >= least
    targets.append(
        {
            "target": f"(the aim: {WRITES_AIM} small writes a second)",
            "found": writes,
            "met": writes >= WRITES_AIM,
        }
    )
    print(table.show("Targets", targets))
    body = {"machine": table.machine(), "small": small, "large": lines, "targets": targets}
    table.write_json(args.json, body)
    return DONE if all(line["met"] for line in targets[:-1]) else FAILED


# The servers


@contextlib.contextmanager
def local_cloud(work: Path) -> Iterator[int]:
    """A local cloud with one bucket, without the engine's provider; gives the port."""
    command = [sys.executable, "-m", "outlast.localcloud", "serve", "--no-provider"]
    process = subprocess.Popen(
        [*command, "--state", str(work / "cloud")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout
        said = process.stdout.readline()
        if not said:
            raise RuntimeError("the local cloud did not start")
        port = int(said.partition("http://127.0.0.1:")[2].partition(" ")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)
        bucket = json.dumps({"name": BUCKET, "location": "US"})
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b", bucket, kind)
        if connection.getresponse().status != 200:
            raise RuntimeError("the local cloud made no bucket")
        connection.close()
        yield port
    finally:
        process.terminate()
        process.wait(END_SEC)


@contextlib.contextmanager
def bare_server(work: Path) -> Iterator[int]:
    """An HTTP server that writes each body to a file and hashes it, and does nothing else."""
    with _process(_serve_bodies, work) as port:
        yield port


@contextlib.contextmanager
def bare_copier(work: Path) -> Iterator[int]:
    """A server of `SIZE\\n` and that many bytes; answers digests, then sends the bytes back."""
    with _process(_copy_bodies, work) as port:
        yield port


@contextlib.contextmanager
def _process(serve: Callable[[socket.socket, Path], None], work: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.Process(target=serve, args=(listener, work), daemon=True)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()


def _serve_bodies(listener: socket.socket, work: Path) -> None:
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for number in range(sys.maxsize):
                head = await reader.readuntil(HEAD_END)
                data = await reader.readexactly(_length(head))
                path = work / f"bare-{id(writer)}-{number}"
                path.write_bytes(data)
                body = json.dumps(_digests(data)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def serve() -> None:
        server = await asyncio.start_server(answer, sock=listener)
        await server.serve_forever()

    asyncio.run(serve())


def _copy_bodies(listener: socket.socket, work: Path) -> None:
    buffer = memoryview(bytearray(BLOCK))
    while True:
        connection = listener.accept()[0]
        with connection, connection.makefile("rb") as lines:
            size = int(lines.readline())
            md5, crc, left = hashlib.md5(usedforsecurity=False), google_crc32c.Checksum(), size
            with (work / "copied").open("wb") as file:
                while left:
                    got = lines.readinto1(buffer[: min(left, BLOCK)])  # type: ignore[attr-defined]
                    block = bytes(buffer[:got])
                    file.write(block)
                    md5.update(block)
                    crc.update(block)
                    left -= got
            connection.sendall(md5.digest() + crc.digest())
            with (work / "copied").open("rb") as file:
                while block := file.read(BLOCK):
                    connection.sendall(block)


def _digests(data: bytes) -> dict[str, str]:
    crc = google_crc32c.Checksum(data).digest().hex()
    return {"md5": hashlib.md5(data, usedforsecurity=False).hexdigest(), "crc32c": crc}


# The clients


def small_writes(port: int, seconds: float) -> dict[str, Any]:
    """Writes a second of all clients together, and how long one took."""
    with multiprocessing.Pool(CLIENTS) as pool:
        told = pool.starmap(_write_small, [(port, n, seconds) for n in range(CLIENTS)], chunksize=1)
    took = sorted(sec for each in told for sec in each)
    return {
        "writes a second": round(len(took) / seconds),
        "median ms": round(1000 * statistics.median(took), 2),
        "99 % ms": round(1000 * took[int(len(took) * 0.99)], 2),
    }


def _write_small(port: int, client: int, seconds: float) -> list[float]:
    body = os.urandom(SMALL_BYTES)
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=END_SEC) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end:
            head = _request(f"small/{client}/{len(took)}", len(body), port)
            connection.sendall(head + body)
            head, rest = _read_head(connection)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a small write was refused: {head!r}")
            _read_exactly(connection, _length(head) - len(rest))
            took.append(time.perf_counter() - before)
    return took


def large_objects(
    cloud: int, copier: int, size: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Seconds of (bare copy, local cloud) up and down, medians."""
    data = memoryview(os.urandom(size))
    bare: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first is a warm-up
        bare.append(_copy_bare(copier, data))
        ours.append(_copy_cloud(cloud, data, f"large/{number}"))
    return {
        way: (
            statistics.median(each[at] for each in bare[1:]),
            statistics.median(each[at] for each in ours[1:]),
        )
        for at, way in enumerate(("upload", "download"))
    }


def _copy_bare(port: int, data: memoryview) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port), timeout=END_SEC) as connection:
        started = time.perf_counter()
        connection.sendall(b"%d\n" % len(data))
        connection.sendall(data)
        _read_exactly(connection, 20)
        sent = time.perf_counter()
        _read_exactly(connection, len(data))
        return sent - started, time.perf_counter() - sent


def _copy_cloud(port: int, data: memoryview, name: str) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port), timeout=END_SEC) as connection:
        started = time.perf_counter()
        connection.sendall(_request(name, len(data), port))
        connection.sendall(data)
        head, rest = _read_head(connection)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a large write was refused: {head!r}")
        _read_exactly(connection, _length(head) - len(rest))
        sent = time.perf_counter()
        path = f"/download/storage/v1/b/{BUCKET}/o/{name.replace('/', '%2F')}?alt=media"
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        connection.sendall(request.encode())
        head, rest = _read_head(connection)
        _read_exactly(connection, _length(head) - len(rest))
        return sent - started, time.perf_counter() - sent


def _request(name: str, length: int, port: int) -> bytes:
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head of an answer, and what came of its body with it."""
    read = b""
    while HEAD_END not in read:
        got = connection.recv(BLOCK)
        if not got:
            raise RuntimeError("the server closed the connection")
        read += got
    head, _, rest = read.partition(HEAD_END)
    return head, rest


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


def _read_exactly(connection: socket.socket, count: int) -> None:
    buffer = bytearray(SEND)
    while count:
        got = connection.recv_into(buffer, min(count, SEND))
        if not got:
            raise RuntimeError("the server closed the connection")
        count -= got


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
