"""The health process, and the signs by which it tells."""

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlast.supervisor import health
from outlast.supervisor.health import Ages, Life

ADDRESS = "127.0.0.1"
WAIT_SEC = 90.0


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=made.monotonic, sleep=time.sleep))
    return made


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    path = tmp_path / "sign"
    path.touch()
    return path


def at(path: Path, stamp: int) -> None:
    os.utime(path, ns=(stamp, stamp))


def test_age_counts_from_the_last_change_despite_the_wall_clock(sign: Path, clock: Clock):
    at(sign, 5_000_000_000)
    ages = Ages(sign)
    clock.now += 30
    assert ages.age_sec() == 30
    at(sign, 1_000_000_000)  # the wall clock was set back meanwhile
    assert ages.age_sec() == 0
    clock.now += 7
    assert ages.age_sec() == 7


def test_a_missing_file_ages(sign: Path, clock: Clock):
    ages = Ages(sign)
    sign.unlink()
    ages.age_sec()
    clock.now += 9
    assert ages.age_sec() == 9


def test_signs_touch_the_file_at_most_once_a_second(sign: Path, clock: Clock):
    life = Life(sign)
    stamps = []
    for step_sec in (0.0, 0.5, 0.6):
        clock.now += step_sec
        at(sign, 0)
        life.sign()
        stamps.append(sign.stat().st_mtime_ns > 0)
    assert stamps == [True, False, True]


def test_a_sign_never_fails(tmp_path: Path):
    Life(None).sign()
    Life(tmp_path / "absent" / "sign").sign()


@pytest.fixture
def server(sign: Path) -> Iterator[ThreadingHTTPServer]:
    made = health.serve(ADDRESS, 0, 1.0, sign)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def ask(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=60)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_health_depends_only_on_the_age(server: ThreadingHTTPServer, sign: Path):
    port = server.server_address[1]
    assert ask(port)[0] == 200
    end = time.monotonic() + WAIT_SEC
    while (answer := ask(port))[0] == 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert answer[0] == 503 and answer[1].startswith("last sign of progress")
    sign.touch()
    assert ask(port)[0] == 200


def test_the_health_server_runs_alone_on_any_interpreter(tmp_path: Path, sign: Path):
    """As startup/boot.sh starts it: isolated, from the bundle's file, without the bundle."""
    alone = tmp_path / "health.py"
    alone.write_bytes(Path(health.__file__).read_bytes())
    port = health.serve(ADDRESS, 0, 1.0, sign)
    number = port.server_address[1]
    port.server_close()
    process = subprocess.Popen(
        [sys.executable, "-I", str(alone), ADDRESS, str(number), "60", str(sign)], cwd="/"
    )
    try:
        end = time.monotonic() + WAIT_SEC
        while True:
            try:
                assert ask(number)[0] == 200
                break
            except ConnectionRefusedError:
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_usage():
    assert health.main([]) == 64
