"""How the local cloud's groups grow: the time of 200 VMs in 50 groups over that of 20 in 5.

    python -m bench.cloud_load
    python -m bench.cloud_load --rounds 9

The VMs have no processes (`--no-guests`): what is measured is the platform. Over HTTP, one client
declares the groups and waits until all are stable (create), then kills every VM and waits until all
have successors (heal), then deletes the groups one by one (delete); the report shows the clock and
what the cloud's process took of the processor, which tells more where the machine does much
besides. The model alone, without HTTP and without keeping anything, is driven with a clock that
stands still and measured in processor time. Both sizes take turns; a figure is the best of the
rounds. Exit codes: 0 all targets met, 1 one is not, 69 the bench could not run.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import table
from outlast.base.exits import DONE
from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.model import Boot, Stop

FAILED, CANNOT = 1, 69
ROOT = Path(__file__).parent.parent
ZONE = "europe-west4-a"
PROJECT = "/compute/v1/projects/outlast-rehearsal"
GROUPS = f"{PROJECT}/zones/{ZONE}/instanceGroupManagers"
SMALL, LARGE = (20, 5), (200, 50)
"""VMs and groups."""
MOST = 12.0
"""Times of the small figure that the large one may be, which is ten times the VMs."""
POLL_SEC = 0.05
END_SEC = 300.0
IMAGE = "projects/debian-cloud/global/images/family/debian-13"
PROPERTIES = {
    "machineType": "e2-standard-2",
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {"sourceImage": IMAGE},
        }
    ],
    "networkInterfaces": [{"network": "global/networks/default"}],
    "scheduling": {"provisioningModel": "SPOT", "automaticRestart": False},
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench.cloud_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--rounds", type=int, default=5, help="how often each is measured (%(default)s)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args = parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as work, local_cloud(Path(work)) as cloud:
            seconds = {
                **in_turns(args.rounds, lambda vms, groups: over_http(cloud, vms, groups)),
                **in_turns(args.rounds, model_alone),
            }
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"cloud load: {error}", file=sys.stderr)
        return CANNOT
    lines = [
        {
            "what": what,
            f"{SMALL[0]} VMs, {SMALL[1]} groups, ms": round(1000 * small_sec, 1),
            f"{LARGE[0]} VMs, {LARGE[1]} groups, ms": round(1000 * large_sec, 1),
            "times": round(large_sec / small_sec, 1),
            f"at most {MOST:g}": large_sec / small_sec <= MOST,
        }
        for what, (small_sec, large_sec) in seconds.items()
    ]
    print(table.show(f"\nThe best of {args.rounds} rounds; {table.machine()}", lines))
    table.write_json(args.json, {"machine": table.machine(), "lines": lines})
    return DONE if all(line[f"at most {MOST:g}"] for line in lines) else FAILED


def in_turns(
    rounds: int, measure: Callable[[int, int], dict[str, float]]
) -> dict[str, tuple[float, float]]:
    """The best of both sizes by what was measured, after one round that does not count."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for number in range(rounds + 1):
        for side, size in enumerate((SMALL, LARGE)):
            for what, seconds in measure(*size).items():
                if number:
                    found.setdefault(what, ([], []))[side].append(seconds)
    return {what: (min(small), min(large)) for what, (small, large) in found.items()}


# Over HTTP


class Client:
    """One connection to the local cloud."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_SEC)

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

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


@contextlib.contextmanager
def local_cloud(work: Path) -> Iterator[Client]:
    """A local cloud whose VMs have no processes."""
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
        client.call("POST", "/_local/switches", {"recreate_delay_sec": 0.0})
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(END_SEC)


def over_http(cloud: Client, vms: int, groups: int) -> dict[str, float]:
    """Seconds to create, heal and delete the groups."""
    cloud.call("POST", "/_local/reset")
    template = {"name": "t1", "properties": PROPERTIES}
    cloud.call("POST", f"{PROJECT}/global/instanceTemplates", template)
    names = [f"g{number}" for number in range(groups)]
    with _Watch(cloud.pid) as create:
        for name in names:
            body = {
                "name": name,
                "targetSize": vms // groups,
                "versions": [{"instanceTemplate": "global/instanceTemplates/t1"}],
            }
            cloud.call("POST", GROUPS, body)
        _wait(lambda: len(_running(cloud)) == vms and _all_stable(cloud))
    old = _running(cloud)
    with _Watch(cloud.pid) as heal:
        for name in old.values():
            cloud.call("POST", f"/_local/vms/{name}/kill")
        _wait(lambda: len(_running(cloud).keys() - old.keys()) == vms and _all_stable(cloud))
    with _Watch(cloud.pid) as delete:
        for name in names:
            cloud.call("DELETE", f"{GROUPS}/{name}")
        _wait(lambda: not cloud.call("GET", "/_local/vms"))
    return {
        "create, over HTTP": create.seconds,
        "heal, over HTTP": heal.seconds,
        "delete, over HTTP": delete.seconds,
        "create, the cloud's processor": create.cpu_seconds,
        "heal, the cloud's processor": heal.cpu_seconds,
        "delete, the cloud's processor": delete.cpu_seconds,
    }


def _running(cloud: Client) -> dict[str, str]:
    """Names by id of the VMs that are up."""
    vms = cloud.call("GET", "/_local/vms")
    return {vm["id"]: vm["name"] for vm in vms if vm["status"] == "RUNNING"}


def _all_stable(cloud: Client) -> bool:
    groups = cloud.call("GET", GROUPS)["items"]
    return all(group["status"]["isStable"] for group in groups)


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SEC
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the groups did not get what they want in {END_SEC:g} s")
        time.sleep(POLL_SEC)


class _Watch:
    """Measures a block: the clock, and the processor time of a process."""

    def __init__(self, pid: int) -> None:
        self._cpu_clock = (~pid << 3) | 2
        """As clock_getcpuclockid(3) makes it: in ns, where /proc counts in ticks of 10 ms."""

    def __enter__(self) -> "_Watch":
        self._begun = time.perf_counter(), time.clock_gettime(self._cpu_clock)
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._begun[0]
        self.cpu_seconds = time.clock_gettime(self._cpu_clock) - self._begun[1]


# The model alone


class _StoppedClock:
    """A clock that stands still."""

    def now(self) -> float:
        return 1_800_000_000.0


def model_alone(vms: int, groups: int) -> dict[str, float]:
    """Seconds to create all and heal all, in as many groups and in one."""
    return {
        **_model("", vms, groups),
        **_model(", all in one group", vms, 1),
    }


def _model(title: str, vms: int, groups: int) -> dict[str, float]:
    numbers = itertools.count(1)
    fleet = Fleet(_StoppedClock(), project_number="1", next_id=lambda: next(numbers))
    fleet.switches.recreate_delay_sec = 0.0
    fleet.add_template("t1", PROPERTIES, "")
    version = {"instanceTemplate": "t1", "template": "t1"}
    begun = time.process_time()
    for number in range(groups):
        fleet.add_group(ZONE, f"g{number}", {}, [version], vms // groups)
        _settle(fleet)
    created = time.process_time()
    for instance_id in list(fleet.instances):
        fleet.exited(instance_id)
        _settle(fleet)
    healed = time.process_time()
    assert len(fleet.instances) == vms
    return {f"create, model{title}": created - begun, f"heal, model{title}": healed - created}


def _settle(fleet: Fleet) -> None:
    """Does the model's commands one by one, with a tick after each as the cloud does."""
    fleet.tick()
    while commands := fleet.take_commands():
        for command in commands:
            if isinstance(command, Boot):
                fleet.running(command.instance)
            elif isinstance(command, Stop):
                fleet.exited(command.instance)
            fleet.tick()
            fleet.take_changes()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
