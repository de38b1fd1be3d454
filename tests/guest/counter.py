"""Counts in the bucket until it is stopped: the supervisor of a run that tests a machine's boot,
its power button and its network, and nothing else.

Runs in the guest in place of `outlast.supervisor`. Objects below the run's prefix, as JSON; N is
the number of the boot:

    count      {boot, n}: the last number, from which the next boot continues
    boot-N     {n, installed, received, prefix, python}: what it began with
    stopped-N  {at}: the time of SIGTERM by this machine's clock, in seconds since 1970
    ended-N    {n}: the last number, LAST_SEC after SIGTERM
    hang       a test has written it: from now on, no sign of progress"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

LAST_SEC = 10.0
"""Seconds that it keeps counting after SIGTERM, while the system around it stops."""
POLL_SEC = 1.2
"""Storage takes a write of an object once a second."""
SIGN = Path("/run/outlast/sign")
DONE, INTERRUPTED = 0, 75
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"


def metadata(path: str) -> str:
    request = urllib.request.Request(METADATA + path, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


class Objects:
    """The run's objects, and the offset of this machine's clock from the storage's."""

    def __init__(self) -> None:
        self._bucket = metadata("attributes/outlast-bucket")
        self._prefix = metadata("attributes/outlast-prefix")
        self._token = json.loads(metadata("service-accounts/default/token"))["access_token"]
        self._host = os.environ["STORAGE_EMULATOR_HOST"]
        self._offset = (float("inf"), 0.0)
        """Of the fastest answer: seconds that it took, storage's time less CLOCK_MONOTONIC."""

    def at(self, monotonic: float) -> float:
        """The time by the storage's clock."""
        return monotonic + self._offset[1]

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            return self._call(f"/storage/v1/b/{self._bucket}/o/{self._prefix}%2F{name}?alt=media")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def write(self, name: str, **value: Any) -> None:
        query = f"uploadType=media&name={self._prefix}%2F{name}"
        before = time.monotonic()
        made = self._call(f"/upload/storage/v1/b/{self._bucket}/o?{query}", value)
        after = time.monotonic()
        at = datetime.fromisoformat(made["updated"]).timestamp()
        self._offset = min(self._offset, (after - before, at - (before + after) / 2))

    def _call(self, path: str, value: Any = None) -> Any:
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self._host + path, data)
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


def installed() -> list[str]:
    """What an installation leaves: logs of pip and apt, an environment on the boot disk, packages
    since the power-on."""
    found = [str(path) for path in Path("/var/log/outlast").glob("*") if path.name != "boot.log"]
    found.remove("/var/log/outlast/supervisor.log")
    found += [str(path) for path in Path("/var/lib/outlast").glob("*venv")]
    began = time.time() - time.monotonic()
    log = Path("/var/log/dpkg.log")
    if log.exists() and log.stat().st_size and log.stat().st_mtime > began:
        found.append(str(log))
    return found


def main() -> int:
    stopped: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(time.monotonic()))
    objects = Objects()
    last = objects.read("count") or {"boot": 0, "n": 0}
    boot, n = last["boot"] + 1, last["n"]
    received = int(Path("/sys/class/net/eth0/statistics/rx_bytes").read_text())
    objects.write(
        f"boot-{boot}",
        n=n,
        installed=installed(),
        received=received,
        prefix=sys.prefix,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
    )
    noted = False
    while not stopped or time.monotonic() < stopped[0] + LAST_SEC:
        if stopped and not noted:
            noted = True
            objects.write(f"stopped-{boot}", at=objects.at(stopped[0]))
        n += 1
        objects.write("count", boot=boot, n=n)
        order = (objects.read("order") or {"do": ""})["do"]
        if order == "end":
            return DONE
        if order != "hang" and SIGN.exists():
            SIGN.touch()
        time.sleep(POLL_SEC)
    objects.write(f"ended-{boot}", n=n)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
