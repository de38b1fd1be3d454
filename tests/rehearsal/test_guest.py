"""VMs as real processes: what a guest sees, and that nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rehearsal.guest import SHARED_MEMORY, Guest, Hypervisor, Machine
from rehearsal.metadata import vm_values

pytestmark = pytest.mark.rehearsal

LONGEST_WAIT_SEC = 15.0
ID = str(time.time_ns())

# Forks twice, in a session of its own, so that init is the parent; says its pid in $1.
STRAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
os.wait()
"""


class Host:
    """A hypervisor and what it has reported."""

    def __init__(self, folder: Path, grace_sec: float = 1.0) -> None:
        self.events: list[tuple[str, str]] = []
        self.hypervisor = Hypervisor(
            folder,
            lambda instance_id, event, why: self.events.append((instance_id, event)),
            grace_sec=grace_sec,
            environment={"EXTRA": "from the cloud"},
        )

    async def boot(
        self, script: str, *, notice_sec: float = 0.0, image: Path | None = None, name: str = "vm"
    ) -> Guest:
        values = vm_values(
            project="p",
            project_number="1",
            instance_id=ID,
            name=name,
            zone="europe-west4-a",
            properties={},
            service_account="",
            image="",
        )
        values["instance/attributes/startup-script"] = script
        machine = Machine(ID, name, values, image=image, notice_sec=notice_sec)
        await self.hypervisor.boot(machine)
        guest = self.hypervisor.guest(ID)
        assert guest
        return guest

    async def until(self, event: str) -> None:
        await until(lambda: (ID, event) in self.events)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2][:1] not in (b"Z", b"X")


def play(folder: Path, scene: Callable[[Host], Awaitable[None]], grace_sec: float = 1.0) -> None:
    """Runs a scene with a host that is gone afterwards, with all that it had."""

    @asynccontextmanager
    async def host() -> AsyncIterator[Host]:
        host = Host(folder, grace_sec)
        try:
            yield host
        finally:
            pids = host.hypervisor.pids()
            await host.hypervisor.close()
            assert not [pid for pid in pids if runs(pid)]
            assert not list((folder / "vms").iterdir())
            for place in (SHARED_MEMORY, Path("/tmp")):
                assert not [path for path in place.iterdir() if ID in path.name]

    async def run() -> None:
        async with host() as stage:
            await scene(stage)

    asyncio.run(run())


def test_guest_sees_a_machine_of_its_own(tmp_path: Path) -> None:
    script = """
      #!/bin/bash
      {
        printf '%s\\n' "$0" "$PWD" "$(cat "$OUTLAST_ROOT/etc/hostname")"
        command -v poweroff systemctl python3
        cat "$OUTLAST_ROOT/proc/sys/kernel/random/boot_id"
        curl -sfH Metadata-Flavor:Google "$METADATA_BASE/instance/name"; echo
      } >"$OUTLAST_ROOT/tmp/seen.new"
      env -0 >"$OUTLAST_ROOT/tmp/env"
      mv "$OUTLAST_ROOT/tmp/seen.new" "$OUTLAST_ROOT/tmp/seen"
      echo to the serial port
      exit 3
    """
    image = tmp_path / "image"
    (image / "opt/outlast").mkdir(parents=True)
    (image / "opt/outlast/baked").write_text("yes")

    async def scene(host: Host) -> None:
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = "leftover"
        os.environ["HTTPS_PROXY"] = "http://leftover"
        try:
            guest = await host.boot(script, image=image, name="vm-x1")
        finally:
            del os.environ["GOOGLE_APPLICATION_CREDENTIALS"], os.environ["HTTPS_PROXY"]
        root = guest.root
        await until((root / "tmp/seen").exists)
        seen = (root / "tmp/seen").read_text().splitlines()
        assert Path(seen[0]).name == "startup-script"
        assert Path(seen[0]).parent.parent == root / "tmp"
        assert seen[1:3] == [str(root), "vm-x1"]
        assert [Path(p).parent.name for p in seen[3:6]] == ["shims", "shims", "bin"]
        assert len(seen[6]) == 36
        assert seen[7] == "vm-x1"
        assert (root / "opt/outlast/baked").read_text() == "yes"
        pairs = (root / "tmp/env").read_text().rstrip("\0").split("\0")
        environment = dict(pair.split("=", 1) for pair in pairs)
        assert environment["HOME"] == f"{root}/root"
        assert environment["TMPDIR"] == f"{root}/tmp"
        assert environment["EXTRA"] == "from the cloud"
        assert not {"GOOGLE_APPLICATION_CREDENTIALS", "HTTPS_PROXY"} & set(environment)
        serial = host.hypervisor.serial("vm-x1")
        assert serial
        await until(lambda: "Finished running startup scripts." in serial.read_text())
        assert "to the serial port\n" in serial.read_text()
        assert "failed with error: exit status 3" in serial.read_text()
        # A script that ends does not end the VM.
        assert guest.pid and runs(guest.pid)
        assert len(os.fsencode(root / "run/outlast/supervisor.sock")) < 100

    play(tmp_path / "a-long-name-that-leaves-no-room" / "for-a-socket" / "state", scene)


def test_vm_without_startup_script_lives(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot("")
        await host.until("running")
        assert guest.serial
        serial = guest.serial
        await until(lambda: "No startup scripts to run." in serial.read_text())
        assert guest.pid and runs(guest.pid)

    play(tmp_path, scene)


def test_kill_leaves_no_process_at_once(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"echo '{STRAY}' >$TMPDIR/stray.py; trap '' TERM; "
            "python3 $TMPDIR/stray.py $TMPDIR/stray & env -i bash -c 'exec -a bare sleep 600' & "
            "wait; sleep 600"
        )
        await until((guest.root / "tmp/stray").exists)
        stray = int((guest.root / "tmp/stray").read_text())
        await until(lambda: len(host.hypervisor.pids()) >= 4)
        pids = host.hypervisor.pids(ID)
        assert stray in pids
        await host.hypervisor.kill(ID)
        assert not [pid for pid in pids if runs(pid)]
        assert host.events == [(ID, "running"), (ID, "exited")]
        assert not host.hypervisor.pids()

    play(tmp_path, scene)


def test_stray_dies_with_a_first_process_that_was_killed_itself(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"echo '{STRAY}' >$TMPDIR/stray.py; python3 $TMPDIR/stray.py $TMPDIR/stray"
        )
        await until((guest.root / "tmp/stray").exists)
        stray = int((guest.root / "tmp/stray").read_text())
        assert guest.pid
        os.kill(guest.pid, signal.SIGKILL)
        await host.until("exited")
        assert not runs(stray)

    play(tmp_path, scene)


def test_vms_die_with_a_cloud_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from rehearsal.guest import Hypervisor, Machine
async def main():
    hypervisor = Hypervisor(Path(sys.argv[1]), lambda *_: None, grace_sec=1)
    script = "trap '' TERM INT HUP; sleep 600 & echo $! >$TMPDIR/pid; wait"
    await hypervisor.boot(Machine({ID!r}, "vm", {{"instance/attributes/startup-script": script}}))
    while not (hypervisor.guest({ID!r}).root / "tmp/pid").exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    print(*hypervisor.pids(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as cloud:
        assert cloud.stdout
        pids = [int(pid) for pid in cloud.stdout.readline().split()]
        assert len(pids) >= 3
        cloud.kill()
    asyncio.run(until(lambda: not [pid for pid in pids if runs(pid)]))
    asyncio.run(until(lambda: not (tmp_path / f"vms/{ID}/root").exists()))
    assert not [path for path in SHARED_MEMORY.iterdir() if ID in path.name]
    # The next cloud clears away what is left.
    Hypervisor(tmp_path, lambda *_: None, grace_sec=1)
    assert not list((tmp_path / "vms").iterdir())


@pytest.mark.parametrize("command", ["poweroff", "systemctl poweroff"])
def test_poweroff_from_inside_stops_everything_in_order(tmp_path: Path, command: str) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "(trap 'echo child heard it; exit' TERM; touch $TMPDIR/ready; "
            "  while true; do sleep 600 & wait; done) & "
            "trap 'systemctl is-system-running; exit' TERM; "
            "while [[ ! -e $TMPDIR/ready ]]; do sleep 0.01; done; "
            f"systemctl is-system-running; {command}; echo it returns; "
            "while true; do sleep 600 & wait; done"
        )
        serial = guest.serial
        assert serial
        await host.until("exited")
        assert host.events == [(ID, event) for event in ("running", "stopping", "exited")]
        said = serial.read_text().splitlines()
        for line in ("running", "stopping", "child heard it", "it returns"):
            assert line in said
        assert not host.hypervisor.pids()

    play(tmp_path, scene)


def test_guest_that_does_not_stop_is_cut_off_after_the_grace(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "trap 'echo no' TERM; touch $TMPDIR/ready; while true; do sleep 600 & wait; done"
        )
        serial = guest.serial
        assert serial
        await until((guest.root / "tmp/ready").exists)
        begun = time.monotonic()
        await host.hypervisor.stop(ID)
        await host.until("exited")
        assert time.monotonic() - begun >= 0.5
        assert "no\n" in serial.read_text()

    play(tmp_path, scene, grace_sec=0.5)


def test_preemption_raises_the_flag_waits_and_stops(tmp_path: Path) -> None:
    script = """
      trap 'echo TERM at $(date +%s%N); exit' TERM
      curl -sfH Metadata-Flavor:Google "$METADATA_BASE/instance/preempted?wait_for_change=true"
      echo " seen at $(date +%s%N)"
      sleep 600 & wait
    """

    async def scene(host: Host) -> None:
        guest = await host.boot(script, notice_sec=0.4)
        serial = guest.serial
        assert serial
        await until(lambda: any(_name(pid) == "curl" for pid in host.hypervisor.pids()))
        await asyncio.sleep(0.1)
        await host.hypervisor.preempt(ID)
        await host.hypervisor.preempt(ID)
        await host.until("exited")
        said = serial.read_text()
        seen = int(said.partition("TRUE seen at ")[2].split()[0])
        terminated = int(said.partition("TERM at ")[2].split()[0])
        assert 0.3 < (terminated - seen) / 1e9 < 3

    play(tmp_path, scene)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_frozen_vm_does_nothing_until_it_thaws(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot("while true; do echo x >>$TMPDIR/ticks; sleep 0.01; done")
        ticks = guest.root / "tmp/ticks"
        await until(ticks.exists)
        await host.hypervisor.freeze(ID)
        size = ticks.stat().st_size
        await asyncio.sleep(0.2)
        assert ticks.stat().st_size == size
        await host.hypervisor.thaw(ID)
        await until(lambda: ticks.stat().st_size > size)
        await host.hypervisor.freeze(ID)
        await host.hypervisor.kill(ID)
        assert not host.hypervisor.pids()

    play(tmp_path, scene)


def test_each_boot_has_its_own_id_token_and_serial_log(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        boot_ids, tokens = set(), set()
        for number in (1, 2):
            guest = await host.boot("echo here")
            boot_ids.add((guest.root / "proc/sys/kernel/random/boot_id").read_text())
            tokens.add(guest.access_token)
            (guest.root / "var/lib/kept").touch()
            await until(lambda n=number: (tmp_path / f"serial/vm-{n}.log").read_text())
            await host.hypervisor.kill(ID)
            await host.hypervisor.discard(ID)
            await until(lambda: not list((tmp_path / "vms").iterdir()))
        assert len(boot_ids) == len(tokens) == 2
        assert all(host.hypervisor.holder(token) for token in tokens)
        assert host.hypervisor.boots("vm") == 2

    play(tmp_path, scene)


def test_reboot_keeps_the_disk_but_not_what_is_in_memory(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot("sleep 600")
        for path in ("var/lib/kept", "run/lost", "dev/shm/lost"):
            (guest.root / path).touch()
        await host.hypervisor.kill(ID)
        await host.hypervisor.boot(guest.machine, new_disk=False)
        await until(lambda: len(host.hypervisor.pids()) > 1)
        assert (guest.root / "var/lib/kept").exists()
        assert not (guest.root / "run/lost").exists()
        assert not (guest.root / "dev/shm/lost").exists()

    play(tmp_path, scene)


def test_shims_refuse_what_would_reach_this_machine(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "for c in 'shutdown -h now' reboot halt 'systemctl reboot'; do $c; echo rc $?; done"
        )
        serial = guest.serial
        assert serial
        await until(lambda: "Finished running" in serial.read_text())
        assert serial.read_text().count("rc 1\n") == 4
        assert guest.pid and runs(guest.pid)

    play(tmp_path, scene)
