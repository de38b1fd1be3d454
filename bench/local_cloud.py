"""What the local cloud can take: groups, small writes, large objects, and what it costs idle.

    python -m bench.local_cloud
    python -m bench.local_cloud --rounds 9 --json figures.json

The cloud runs without VM processes and without the engine's provider. Groups: one client declares
them, kills every VM, and deletes them; the figure is the processor time of the cloud's process for
200 VMs in 50 groups over that for 20 in 5, the best of the rounds. Small writes: four client
processes, each with one connection. Large objects: one connection, in turns with a bare copy over
loopback that writes and hashes the same bytes; medians. Idle: what the kernel has counted after all
that. Exit codes: 0 all targets met, 1 one is not, 69 the bench could not run.
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

from bench.result import Result, command_line
from outlast.base.exits import DONE

FAILED, CANNOT = 1, 69
ROOT = Path(__file__).parent.parent
PROJECT = "/compute/v1/projects/outlast-rehearsal"
GROUPS = f"{PROJECT}/zones/europe-west4-a/instanceGroupManagers"
SMALL, LARGE = (20, 5), (200, 50)
"""VMs and groups."""
MOST_TIMES = 12.0
"""Times of the small figure that the large one may be, which is ten times the VMs."""
BUCKET = "bench"
CLIENTS, SMALL_BYTES, LEAST_WRITES = 4, 1024, 300
LEAST_COPY_RATIO = 0.5
MOST_PERCENT, MOST_MB = 2.0, 150.0
BLOCK = 256 * 1024
POLL_SEC, SETTLE_SEC, END_SEC = 0.05, 2.0, 300.0
IMAGE = "projects/debian-cloud/global/images/family/debian-13"
DISK = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}}
PROPERTIES = {
    "machineType": "e2-standard-2",
    "disks": [DISK],
    "networkInterfaces": [{"network": "global/networks/default"}],
    "scheduling": {"provisioningModel": "SPOT", "automaticRestart": False},
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.local_cloud", __doc__)
    made.add_argument("--seconds", type=float, default=5.0, help="of small writes, and idle")
    made.add_argument("--mb", type=int, default=64, help="a large object's size")
    made.add_argument("--rounds", type=int, default=5, help="of groups and of large objects")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.local_cloud", argv)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as work, local_cloud(Path(work)) as cloud:
            rows = groups(cloud, args.rounds)
            rows += small_writes(cloud.port, args.seconds)
            with bare_copier(Path(work)) as copier:
                rows += large_objects(cloud.port, copier, args.mb << 20, args.rounds)
            rows += idle(cloud.pid, args.seconds)
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"local cloud: {error}", file=sys.stderr)
        return CANNOT
    result.table(f"{args.rounds} rounds", rows)
    return result.end(args.json, DONE if all(row["met"] for row in rows) else FAILED)


def _row(what: str, found: float, target: str, met: bool) -> dict[str, Any]:
    return {"what": what, "found": round(found, 2), "target": target, "met": met}


class Client:
    """One connection to the local cloud."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.port = pid, port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)
        self._cpu_clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a call that must succeed."""
        data = None if body is None else json.dumps(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:200]!r}")
        return json.loads(data)

    def cpu_sec(self) -> float:
        """Processor time of the cloud's process so far."""
        return time.clock_gettime(self._cpu_clock)

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


@contextlib.contextmanager
def local_cloud(work: Path) -> Iterator[Client]:
    """A local cloud with one bucket, whose VMs have no processes."""
    command = [sys.executable, "-m", "outlast.localcloud", "serve", "--no-provider", "--no-guests"]
    process = subprocess.Popen(
        [*command, "--state", str(work / "cloud")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout
        said = process.stdout.readline()
        if not said:
            raise RuntimeError("the local cloud did not start")
        client = Client(process.pid, int(said.partition("http://127.0.0.1:")[2].partition(" ")[0]))
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(END_SEC)


# Groups


def groups(cloud: Client, rounds: int) -> list[dict[str, Any]]:
    """How creation, healing and deletion grow with the number of VMs."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for number in range(rounds + 1):  # the first is a warm-up
        for side, size in enumerate((SMALL, LARGE)):
            for what, seconds in _life_of_groups(cloud, *size).items():
                if number:
                    found.setdefault(what, ([], []))[side].append(seconds)
    rows = []
    for what, (small, large) in found.items():
        times = min(large) / min(small)
        target = f"at most {MOST_TIMES:g}"
        rows.append(_row(f"{what}: times for 10 times the VMs", times, target, times <= MOST_TIMES))
    return rows


def _life_of_groups(cloud: Client, vms: int, count: int) -> dict[str, float]:
    cloud.call("POST", "/_local/reset")
    cloud.call("POST", "/_local/switches", {"recreate_delay_sec": 0.0})
    template = {"name": "t1", "properties": PROPERTIES}
    cloud.call("POST", f"{PROJECT}/global/instanceTemplates", template)
    names = [f"g{number}" for number in range(count)]
    versions = [{"instanceTemplate": "global/instanceTemplates/t1"}]
    begun = cloud.cpu_sec()
    for name in names:
        body = {"name": name, "targetSize": vms // count, "versions": versions}
        cloud.call("POST", GROUPS, body)
    _wait(lambda: len(_running(cloud)) == vms and _all_stable(cloud))
    created = cloud.cpu_sec()
    old = _running(cloud)
    for name in old.values():
        cloud.call("POST", f"/_local/vms/{name}/kill")
    _wait(lambda: len(_running(cloud).keys() - old.keys()) == vms and _all_stable(cloud))
    healed = cloud.cpu_sec()
    for name in names:
        cloud.call("DELETE", f"{GROUPS}/{name}")
    _wait(lambda: not cloud.call("GET", "/_local/vms"))
    deleted = cloud.cpu_sec()
    return {"create": created - begun, "heal": healed - created, "delete": deleted - healed}


def _running(cloud: Client) -> dict[str, str]:
    """Names by id of the VMs that are up."""
    vms = cloud.call("GET", "/_local/vms")
    return {vm["id"]: vm["name"] for vm in vms if vm["status"] == "RUNNING"}


def _all_stable(cloud: Client) -> bool:
    return all(group["status"]["isStable"] for group in cloud.call("GET", GROUPS)["items"])


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SEC
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the groups did not get what they want in {END_SEC:g} s")
        time.sleep(POLL_SEC)


# Objects


def small_writes(port: int, seconds: float) -> list[dict[str, Any]]:
    """Writes a second of all clients together."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)
    headers = {"Content-Type": "application/json"}
    client.request("POST", "/storage/v1/b", json.dumps({"name": BUCKET}), headers)
    client.getresponse().read()
    client.close()
    with multiprocessing.Pool(CLIENTS) as pool:
        asked = [(port, number, seconds) for number in range(CLIENTS)]
        rate = sum(pool.starmap(_write_small, asked, chunksize=1)) / seconds
    target = f"at least {LEAST_WRITES}"
    return [_row(f"writes of {SMALL_BYTES} bytes a second", rate, target, rate >= LEAST_WRITES)]


def _write_small(port: int, client: int, seconds: float) -> int:
    body = os.urandom(SMALL_BYTES)
    end = time.perf_counter() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)
    count = 0
    while time.perf_counter() < end:
        _upload(connection, f"small/{client}/{count}", body)
        count += 1
    connection.close()
    return count


def _upload(connection: http.client.HTTPConnection, name: str, data: bytes) -> None:
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
    connection.request("POST", path, data)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{name} was refused: {said!r}")


def large_objects(port: int, copier: int, size: int, rounds: int) -> list[dict[str, Any]]:
    """How fast an object goes up and down, compared with a bare copy."""
    data = os.urandom(size)
    bare: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first is a warm-up
        bare.append(_copy_bare(copier, data))
        ours.append(_copy_cloud(port, data, f"large/{number}"))
    rows = []
    for side, way in enumerate(("upload", "download")):
        bare_sec, ours_sec = (statistics.median(e[side] for e in each[1:]) for each in (bare, ours))
        ratio, target = bare_sec / ours_sec, f"at least {LEAST_COPY_RATIO}"
        what = f"{way} of {size >> 20} MiB: speed of a bare copy's"
        rows.append(_row(what, ratio, target, ratio >= LEAST_COPY_RATIO))
    return rows


def _copy_bare(port: int, data: bytes) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port), timeout=END_SEC) as connection:
        started = time.perf_counter()
        connection.sendall(b"%d\n" % len(data) + data)
        _read_exactly(connection, 20)
        sent = time.perf_counter()
        _read_exactly(connection, len(data))
        return sent - started, time.perf_counter() - sent


def _copy_cloud(port: int, data: bytes, name: str) -> tuple[float, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)
    started = time.perf_counter()
    _upload(connection, name, data)
    sent = time.perf_counter()
    path = f"/download/storage/v1/b/{BUCKET}/o/{name.replace('/', '%2F')}?alt=media"
    connection.request("GET", path)
    answer = connection.getresponse()
    while answer.read(BLOCK):
        pass
    connection.close()
    return sent - started, time.perf_counter() - sent


def _read_exactly(connection: socket.socket, count: int) -> None:
    buffer = bytearray(BLOCK)
    while count:
        got = connection.recv_into(buffer, min(count, BLOCK))
        if not got:
            raise RuntimeError("the server closed the connection")
        count -= got


@contextlib.contextmanager
def bare_copier(work: Path) -> Iterator[int]:
    """A server of `SIZE\\n` and that many bytes; it answers digests, then sends the bytes back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.Process(target=_copy_bodies, args=(listener, work), daemon=True)
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()


def _copy_bodies(listener: socket.socket, work: Path) -> None:
    while True:
        connection = listener.accept()[0]
        with connection, connection.makefile("rb") as lines:
            left = int(lines.readline())
            md5, crc = hashlib.md5(usedforsecurity=False), google_crc32c.Checksum()
            with (work / "copied").open("wb") as file:
                while left:
                    block = lines.read(min(left, BLOCK))
                    file.write(block)
                    md5.update(block)
                    crc.update(block)
                    left -= len(block)
            connection.sendall(md5.digest() + crc.digest())
            with (work / "copied").open("rb") as file:
                while block := file.read(BLOCK):
                    connection.sendall(block)


# Idle


def idle(pid: int, seconds: float) -> list[dict[str, Any]]:
    """Processor and memory of the cloud's process while nothing is asked of it."""
    time.sleep(SETTLE_SEC)
    clock = (~pid << 3) | 2
    before = time.clock_gettime(clock)
    time.sleep(seconds)
    percent = 100 * (time.clock_gettime(clock) - before) / seconds
    status = Path(f"/proc/{pid}/status").read_text()
    memory_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return [
        _row("idle: % of a core", percent, f"under {MOST_PERCENT:g}", percent < MOST_PERCENT),
        _row("idle: MB", memory_mb, f"under {MOST_MB:g}", memory_mb < MOST_MB),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
