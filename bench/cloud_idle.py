"""What an idle local cloud costs: processor and memory.

    python -m bench.cloud_idle --seconds 30

First as `outlast cloud start` leaves it; then after writes and lists, with VMs that sleep. The
processor time is what the kernel has counted for a process, whatever else the machine does; the
VMs' own processes are counted apart. Exit codes: 0 both targets met, 1 one is not, 69 the bench
could not run.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.sites import BUCKET, local_cloud, scratch
from outlast.base.exits import DONE
from outlast.cli.cloud import IMAGE_FAMILY, PROJECT, LocalCloud
from outlast.cli.errors import OperateError

FAILED, CANNOT = 1, 69
MOST_PERCENT, MOST_MB = 2.0, 150.0
SETTLE_SEC = 2.0
WRITES, VMS = 500, 3
WAIT_SEC = 60.0
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.cloud_idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    made.add_argument("--image", type=Path, help="of the VMs; default that of `make setup`")
    made.add_argument("--json", type=Path, help="file for the figures")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure as the flags say."""
    args = parser().parse_args(argv)
    try:
        with (
            scratch(None) as work,
            local_cloud(work, work / "plans", args.image) as cloud,
        ):
            rows = _measure("as started", cloud, args.seconds)
            _use(cloud)
            rows += _measure(f"{WRITES} writes later, {VMS} VMs", cloud, args.seconds)
    except OperateError as error:
        print(f"cloud idle: {error}", file=sys.stderr)
        return CANNOT
    print(table.show(f"Idle local cloud, {args.seconds:g} s each; {table.machine()}", rows))
    table.write_json(args.json, {"machine": table.machine(), "rows": rows})
    ours = [row for row in rows if row["process"] == "cloud"]
    met = all(row["% of a core"] < MOST_PERCENT and row["MB"] < MOST_MB for row in ours)
    print(f"cloud under {MOST_PERCENT:g} % of a core and {MOST_MB:g} MB: {'yes' if met else 'no'}")
    return DONE if met else FAILED


def _measure(when: str, cloud: LocalCloud, seconds: float) -> list[Row]:
    time.sleep(SETTLE_SEC)
    vms = set(cloud.audit()["pids"])
    groups = {
        "cloud": [cloud.pid],
        "provider adapter": [pid for pid in _children(cloud.pid) if pid not in vms],
        "VMs": sorted(vms),
    }
    before = {name: _cpu_sec(pids) for name, pids in groups.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begun
    return [
        {
            "when": when,
            "process": name,
            "% of a core": round(100 * (_cpu_sec(pids) - before[name]) / took, 2),
            "MB": round(sum(map(_memory_mb, pids)), 1),
        }
        for name, pids in groups.items()
        if pids
    ]


def _use(cloud: LocalCloud) -> None:
    """Writes, lists, and a group of VMs that sleep; returns when they run."""
    for number in range(WRITES):
        path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=object/{number}"
        cloud.call("POST", path, {"number": number})
    cloud.call("GET", f"/storage/v1/b/{BUCKET}/o")
    project = f"/compute/v1/projects/{PROJECT}"
    owner, _, family = IMAGE_FAMILY.partition("/")
    image = f"projects/{owner}/global/images/family/{family}"
    properties = {
        "machineType": "e2-small",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "startup-script", "value": "#!/bin/bash\nsleep 3600\n"}]},
    }
    template = {"name": "idle", "properties": properties}
    cloud.call("POST", f"{project}/global/instanceTemplates", template)
    group = {
        "name": "idle",
        "baseInstanceName": "idle",
        "targetSize": VMS,
        "versions": [{"instanceTemplate": "global/instanceTemplates/idle"}],
    }
    cloud.call("POST", f"{project}/zones/us-central1-a/instanceGroupManagers", group)
    deadline = time.monotonic() + WAIT_SEC
    while sum(vm["status"] == "RUNNING" for vm in cloud.vms()) < VMS:
        if time.monotonic() > deadline:
            raise OperateError(f"the group has no {VMS} VMs after {WAIT_SEC:g} s")
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in tasks for child in file.read_text().split()]


def _cpu_sec(pids: Iterable[int]) -> float:
    """Processor time of processes so far, in the kernel and outside."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
