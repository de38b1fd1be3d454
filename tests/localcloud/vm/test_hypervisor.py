"""VMs as real processes: what a guest sees, and that nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast.localcloud.vm import process_guest as guests
from outlast.localcloud.vm.disks import SHARED_MEMORY
from outlast.localcloud.vm.guest_init import descendants, resident_kb
from outlast.localcloud.vm.hypervisor import Hypervisor
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.metadata import vm_values
from outlast.localcloud.vm.process_guest import ProcessGuest
from outlast.localcloud.vm.serial import SERIAL_BYTES, read_serial

pytestmark = pytest.mark.rehearsal

LONGEST_WAIT_SEC = 60.0
LONGEST_INSTALL_SEC = 60.0
ID = str(time.time_ns())
OTHER_ID = str(int(ID) + 1)

# Forks twice, in a separate session, so that init is the parent; says its pid in $1.
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

# Thirteen processes, each of which waits for another to end, and says so in a file.
WATCHERS = """
import os, select, sys
def watch(name, pids):
    poll = select.poll()
    for pid in pids:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    open(f"{sys.argv[1]}/watches-{name}", "w").close()
    poll.poll()
    open(f"{sys.argv[1]}/outlived-{name}", "w").close()
pids = []
while len(pids) < 12:
    pid = os.fork()
    if pid == 0:
        watch(os.getpid(), [os.getppid(), *pids])
        os._exit(0)
    pids.append(pid)
watch("first", pids)
"""

# A daemon by the book, which also ignores SIGTERM: a separate session, init for a parent, no
# environment, no open file, at home nowhere. Says its pid in $1.
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.chdir("/")
        os.closerange(0, 100)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execve("/bin/sleep", ["sleep", "600"], {})
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
            traceback.print_exception,
            grace_sec=grace_sec,
            environment={"EXTRA": "from the cloud"},
        )

    async def boot(
        self, script: str, *, name: str = "vm", instance_id: str = ID, **fields: Any
    ) -> ProcessGuest:
        """`fields` are those of Machine."""
        values = vm_values(
            project="p",
            project_number="1",
            instance_id=instance_id,
            name=name,
            zone="europe-west4-a",
            properties={},
            service_account="",
            image="",
        )
        values["instance/attributes/startup-script"] = script
        await self.hypervisor.boot(Machine(instance_id, name, values, **fields))
        guest = self.hypervisor.guest(instance_id)
        assert isinstance(guest, ProcessGuest)
        return guest

    async def until(self, event: str) -> None:
        await until(lambda: (ID, event) in self.events)


async def until(condition: Callable[[], Any], longest_sec: float = LONGEST_WAIT_SEC) -> Any:
    deadline = time.monotonic() + longest_sec
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)
    return found


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
                found = [path.name for path in place.iterdir()]
                assert not [name for name in found if ID in name or OTHER_ID in name]

    async def run() -> None:
        async with host() as stage:
            await scene(stage)

    asyncio.run(run())


def test_a_guest_sees_only_its_own_machine(tmp_path: Path) -> None:
    script = """
      #!/bin/bash
      {
        printf '%s\\n' "$0" "$PWD" "$(cat "$OUTLAST_ROOT/etc/hostname")"
        command -v poweroff systemctl python3
        cat "$OUTLAST_ROOT/proc/sys/kernel/random/boot_id"
        curl -sfH Metadata-Flavor:Google "$METADATA_BASE/instance/name"; echo
      } >"var/tmp/seen.new"
      env -0 >"var/tmp/env"
      mv "var/tmp/seen.new" "var/tmp/seen"
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
        await until((root / "var/tmp/seen").exists)
        seen = (root / "var/tmp/seen").read_text().splitlines()
        assert Path(seen[0]).name == "startup-script"
        assert Path(seen[0]).parent.parent == root / "tmp"
        assert seen[1:3] == [str(root), "vm-x1"]
        assert [Path(p).parent.name for p in seen[3:6]] == ["shims", "shims", "bin"]
        assert len(seen[6]) == 36
        assert seen[7] == "vm-x1"
        assert (root / "opt/outlast/baked").read_text() == "yes"
        pairs = (root / "var/tmp/env").read_text().rstrip("\0").split("\0")
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
        # Programs make their sockets in TMPDIR, which the startup script moves to the disk.
        assert len(os.fsencode(root / "var/lib/outlast/tmp/pymp-12345678/listener-12345678")) < 108

    play(tmp_path / "a-long-name-that-leaves-no-room" / "for-a-socket" / "state", scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_tmp_holds_half_of_the_memory_and_the_disk_more(tmp_path: Path) -> None:
    """As on Debian 13; the startup script, which the agent has written there, is still there."""
    script = """#!/bin/bash
      [[ -s "$0" ]] && echo the script is there
      for folder in tmp var/tmp; do
        head -c 60000000 /dev/zero >$folder/large && echo "60 MB fit into $folder"
        rm -f $folder/large
      done
    """

    async def scene(host: Host) -> None:
        guest = await host.boot(script, memory_mb=100)
        serial = guest.serial
        assert serial
        await until(lambda: "Finished running" in serial.read_text())
        said = serial.read_text()
        assert "the script is there" in said and "60 MB fit into var/tmp" in said
        assert "60 MB fit into tmp" not in said and "No space left on device" in said
        assert not list((guest.root / "tmp").iterdir()), "the agent deletes the script"

    play(tmp_path, scene)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_nothing_is_executed_from_run(tmp_path: Path) -> None:
    script = """
      cd "$OUTLAST_ROOT"
      for folder in run tmp; do
        printf '#!/bin/bash\necho executed in %s\n' $folder >$folder/program
        chmod +x $folder/program
        $folder/program
      done
      echo all was tried
    """

    async def scene(host: Host) -> None:
        guest = await host.boot(script)
        assert guest.serial
        serial = guest.serial
        await until(lambda: "all was tried" in serial.read_text())
        said = serial.read_text()
        assert "executed in tmp" in said
        assert "executed in run" not in said and "Permission denied" in said
        # The folder is the same one for the cloud.
        assert (guest.root / "run/program").exists()

    play(tmp_path, scene)


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
            f"echo '{STRAY}' >var/tmp/stray.py; trap '' TERM; python3 var/tmp/stray.py "
            "var/tmp/stray & env -i bash -c 'exec -a bare sleep 600' & wait; sleep 600"
        )
        await until((guest.root / "var/tmp/stray").exists)
        stray = int((guest.root / "var/tmp/stray").read_text())
        await until(lambda: len(host.hypervisor.pids()) >= 4)
        pids = host.hypervisor.pids(ID)
        assert stray in pids
        await host.hypervisor.kill(ID)
        assert not [pid for pid in pids if runs(pid)]
        assert host.events == [(ID, "running"), (ID, "exited")]
        assert not host.hypervisor.pids()

    play(tmp_path, scene)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_all_processes_of_a_vm_end_together(tmp_path: Path, end: str) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"echo '{WATCHERS}' >var/tmp/watch.py; trap '' TERM; python3 var/tmp/watch.py var/tmp"
        )
        await until(lambda: len(list(guest.root.glob("var/tmp/watches-*"))) == 13)
        await getattr(host.hypervisor, end)(ID)
        await host.until("exited")
        assert not list(guest.root.glob("var/tmp/outlived-*"))

    play(tmp_path, scene, grace_sec=0.2)


@pytest.mark.parametrize("end", ["kill", "stop", "poweroff"])
def test_a_daemon_that_hides_dies_with_its_vm(tmp_path: Path, end: str) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"echo '{DAEMON}' >var/tmp/daemon.py; python3 var/tmp/daemon.py var/tmp/daemon; "
            "while [[ ! -e var/tmp/end ]]; do sleep 0.01; done; poweroff"
        )
        await until((guest.root / "var/tmp/daemon").exists)
        daemon = int((guest.root / "var/tmp/daemon").read_text())
        await until(lambda: _name(daemon) == "sleep")
        assert not Path(f"/proc/{daemon}/environ").read_bytes()
        if end == "poweroff":
            (guest.root / "var/tmp/end").touch()
        else:
            await getattr(host.hypervisor, end)(ID)
        await host.until("exited")
        assert not runs(daemon)

    play(tmp_path, scene, grace_sec=0.2)


def test_a_stray_process_dies_with_a_killed_first_process(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"echo '{STRAY}' >var/tmp/stray.py; python3 var/tmp/stray.py var/tmp/stray"
        )
        await until((guest.root / "var/tmp/stray").exists)
        stray = int((guest.root / "var/tmp/stray").read_text())
        assert guest.pid
        os.kill(guest.pid, signal.SIGKILL)
        await host.until("exited")
        assert not runs(stray)

    play(tmp_path, scene)


def test_vms_die_with_a_cloud_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from outlast.localcloud.vm.hypervisor import Hypervisor
from outlast.localcloud.vm.machine import Machine
async def main():
    hypervisor = Hypervisor(Path(sys.argv[1]), lambda *_: None, print, grace_sec=1)
    script = '''
      trap '' TERM INT HUP
      echo '{DAEMON}' >var/tmp/daemon.py; python3 var/tmp/daemon.py var/tmp/daemon
      while [[ ! -e var/tmp/daemon ]]; do sleep 0.01; done
      sleep 600 & echo $! >var/tmp/pid; wait'''
    await hypervisor.boot(Machine({ID!r}, "vm", {{"instance/attributes/startup-script": script}}))
    while not (hypervisor.guest({ID!r}).root / "var/tmp/pid").exists():
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
        assert len(pids) >= 4
        cloud.kill()
    asyncio.run(until(lambda: not [pid for pid in pids if runs(pid)]))
    asyncio.run(until(lambda: not (tmp_path / f"vms/{ID}/root").exists()))
    assert not [path for path in SHARED_MEMORY.iterdir() if ID in path.name]
    # The next cloud clears away what is left.
    Hypervisor(tmp_path, lambda *_: None, print, grace_sec=1)
    assert not list((tmp_path / "vms").iterdir())


def test_the_next_cloud_ends_leftover_vms(tmp_path: Path) -> None:
    async def first() -> list[int]:
        """A host that is forgotten, with a VM whose first process does nothing any more."""
        host = Host(tmp_path)
        guest = await host.boot(
            f"echo '{DAEMON}' >var/tmp/daemon.py; python3 var/tmp/daemon.py var/tmp/daemon; wait"
        )
        await until((guest.root / "var/tmp/daemon").exists)
        assert guest.pid
        os.kill(guest.pid, signal.SIGSTOP)
        return [guest.pid, int((guest.root / "var/tmp/daemon").read_text())]

    async def second(pids: list[int]) -> None:
        assert all(runs(pid) for pid in pids)
        Hypervisor(tmp_path, lambda *_: None, print, grace_sec=1)
        await until(lambda: not [pid for pid in pids if runs(pid)])
        assert not list((tmp_path / "vms").iterdir())

    async def both() -> None:
        await second(await first())

    asyncio.run(both())


@pytest.mark.parametrize("command", ["poweroff", "systemctl poweroff"])
def test_poweroff_from_inside_stops_everything_in_order(tmp_path: Path, command: str) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "(trap 'echo child heard it; exit' TERM; sleep 600 & touch var/tmp/ready; "
            "  while true; do wait; done) & "
            "trap 'systemctl is-system-running; exit' TERM; "
            "while [[ ! -e var/tmp/ready ]]; do sleep 0.01; done; "
            # Started before: a shell's child that has not yet become `sleep` loses a SIGTERM.
            "sleep 600 & "
            f"systemctl is-system-running; {command}; echo it returns; "
            "while true; do wait; done"
        )
        serial = guest.serial
        assert serial
        await host.until("exited")
        assert host.events == [(ID, event) for event in ("running", "stopping", "exited")]
        said = serial.read_text().splitlines()
        for line in ("running", "stopping", "child heard it", "it returns"):
            assert line in said
        assert not host.hypervisor.pids()

    play(tmp_path, scene, grace_sec=60)  # all of it leaves by itself


def test_guest_that_does_not_stop_is_cut_off_after_the_grace(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "trap 'echo no' TERM; touch var/tmp/ready; while true; do sleep 600 & wait; done"
        )
        serial = guest.serial
        assert serial
        await until((guest.root / "var/tmp/ready").exists)
        begun = time.monotonic()
        await host.hypervisor.stop(ID)
        await host.until("exited")
        assert time.monotonic() - begun >= 0.5
        assert "no\n" in serial.read_text()

    play(tmp_path, scene, grace_sec=0.5)


def test_preemption_raises_the_flag_waits_and_stops(tmp_path: Path) -> None:
    script = """
      trap 'echo TERM at $(date +%s%N); exit' TERM
      flag() { curl -sH Metadata-Flavor:Google "$@" "$METADATA_BASE/instance/preempted$query"; }
      etag="$(flag -o /dev/null -D - | tr -d '\\r' | awk 'tolower($1) == "etag:" {print $2}')"
      touch "var/tmp/asks"
      query="?wait_for_change=true&last_etag=$etag"
      echo "$(flag) seen at $(date +%s%N)"
      while :; do sleep 0.1; done
    """

    async def scene(host: Host) -> None:
        guest = await host.boot(script, notice_sec=0.4)
        serial = guest.serial
        assert serial
        await until((guest.root / "var/tmp/asks").exists)
        begun = time.time()
        await host.hypervisor.preempt(ID)
        await host.hypervisor.preempt(ID)
        await host.until("exited")
        said = serial.read_text()
        seen = int(said.partition("TRUE seen at ")[2].split()[0])
        terminated = int(said.partition("TERM at ")[2].split()[0])
        assert begun < seen / 1e9 < terminated / 1e9
        assert 0.4 <= terminated / 1e9 - begun < 10

    play(tmp_path, scene, grace_sec=10)  # it leaves by itself


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_frozen_vm_does_nothing_until_it_thaws(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot("while true; do echo x >>var/tmp/ticks; sleep 0.01; done")
        ticks = guest.root / "var/tmp/ticks"
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


def test_shims_refuse_commands_that_would_affect_this_machine(tmp_path: Path) -> None:
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


# Limits, and what scenarios do to a guest

EATER = """
import time
kept = []
for _ in range(100):
    kept.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.01)
"""


def test_out_of_memory_kills_the_largest_process_and_the_vm_lives(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            f"sleep 600 & echo '{EATER}' >var/tmp/eater.py; python3 var/tmp/eater.py; echo rc $?; "
            "wait",
            memory_mb=200,
        )
        serial = guest.serial
        assert serial
        await until(lambda: "rc " in serial.read_text())
        assert "rc 137\n" in serial.read_text()
        await until(lambda: "Out of memory: Killed process" in serial.read_text())
        assert any(_name(pid) == "sleep" for pid in host.hypervisor.pids())
        assert (ID, "exited") not in host.events

    play(tmp_path, scene)


def test_processes_above_the_limit_are_killed_and_the_vm_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "guest_init.py"
    text = guests.INIT.read_text()
    assert "MAX_PROCESSES = 4096\n" in text
    limited.write_text(text.replace("MAX_PROCESSES = 4096\n", "MAX_PROCESSES = 20\n"))
    beside = guests.INIT.with_name("guest_mounts.py")
    (tmp_path / beside.name).write_text(beside.read_text())
    monkeypatch.setattr(guests, "INIT", limited)

    async def scene(host: Host) -> None:
        vm = await host.boot("for n in {1..60}; do sleep 600 & done; echo all; sleep 600; echo on")
        serial = vm.serial
        assert serial
        await until(lambda: "all\n" in serial.read_text())
        await until(lambda: "at most 20" in serial.read_text())
        await until(lambda: len(_children(vm)) <= 20)
        assert vm.pid and runs(vm.pid) and (ID, "exited") not in host.events

    play(tmp_path, scene)


def test_out_of_memory_on_demand(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "sleep 600 & python3 -c 'import time; x = bytearray(range(200)) * 262144; "
            "time.sleep(600)'; echo rc $?"
        )
        serial = guest.serial
        assert serial
        large = await until(lambda: [p for p in _children(guest) if resident_kb(p) > 50_000])
        (python,) = large
        assert await host.hypervisor.out_of_memory(ID) == python
        await until(lambda: "rc 137\n" in serial.read_text())
        assert f"Out of memory: Killed process {python}" in serial.read_text()
        assert guest.pid and runs(guest.pid)
        assert await host.hypervisor.out_of_memory("1") == 0

    play(tmp_path, scene)


def _children(guest: ProcessGuest) -> set[int]:
    return descendants(guest.pid) if guest.pid else set()


def test_a_signal_reaches_only_the_chosen_processes(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot("sleep 601 & sleep 602 & wait -n; echo rc $?; wait")
        serial = guest.serial
        assert serial
        await until(lambda: sum(_name(pid) == "sleep" for pid in host.hypervisor.pids()) == 2)
        assert host.hypervisor.signal(ID, r"sleep 60[02]", signal.SIGTERM) == 1
        await until(lambda: "rc 143\n" in serial.read_text())
        assert host.hypervisor.signal(ID, "no such program", signal.SIGTERM) == 0

    play(tmp_path, scene)


def test_a_vm_may_lack_tools_and_a_driver(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "command -v curl poweroff || echo lacks $?; curl --version; echo rc $?; "
            "date >/dev/null; nvidia-smi; echo driver $?",
            missing_tools=("curl", "wget"),
            driver_fails=True,
        )
        serial = guest.serial
        assert serial
        await until(lambda: "Finished running" in serial.read_text())
        said = serial.read_text()
        assert "/curl\n" not in said and "shims/poweroff\n" in said
        assert "curl: command not found" in said and "rc 127\n" in said
        assert "date: command not found" not in said
        assert "NVIDIA-SMI has failed" in said and "driver 9\n" in said

    play(tmp_path, scene)


def test_one_preemption_may_have_its_own_notice_and_grace(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        guest = await host.boot(
            "trap 'echo TERM' TERM; touch var/tmp/ready; while true; do sleep 600 & wait; done",
            notice_sec=600,
        )
        await until((guest.root / "var/tmp/ready").exists)
        serial, begun = guest.serial, time.monotonic()
        await host.hypervisor.preempt(ID, notice_sec=0.0, grace_sec=0.3)
        await host.until("exited")
        assert 0.3 <= time.monotonic() - begun < LONGEST_WAIT_SEC
        assert serial and "TERM\n" in serial.read_text()

    play(tmp_path, scene, grace_sec=600)


def test_an_abandoned_vm_keeps_its_disk_until_it_exits(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        zombie = await host.boot("while true; do echo x >>var/tmp/ticks; sleep 0.01; done")
        ticks = zombie.root / "var/tmp/ticks"
        await until(ticks.exists)
        await host.hypervisor.discard(ID)
        successor = await host.boot("sleep 600", instance_id=OTHER_ID)
        size = ticks.stat().st_size
        await until(lambda: ticks.stat().st_size > size)
        assert host.hypervisor.serial("vm") == successor.serial != zombie.serial
        await host.hypervisor.stop(ID)
        await host.until("exited")
        await until(lambda: not zombie.root.exists())
        assert host.hypervisor.guest(ID) is None and successor.pid and runs(successor.pid)

    play(tmp_path, scene)


def test_metadata_is_for_the_vms_own_processes(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        first = await host.boot("sleep 600")
        assert first.server
        other = await host.boot(
            "for host in $GCE_METADATA_HOST $TARGET; do "
            "curl -so /dev/null -w '%{http_code}\n' -H Metadata-Flavor:Google "
            "http://$host/computeMetadata/v1/instance/id; done".replace(
                "$TARGET", first.server.host
            ),
            instance_id=OTHER_ID,
            name="other",
        )
        serial = other.serial
        assert serial
        await until(lambda: "Finished running" in serial.read_text())
        assert [line for line in serial.read_text().splitlines() if line.isdigit()] == [
            "200",
            "403",
        ]

    play(tmp_path, scene)


# Serial output


def test_serial_output_is_read_in_pieces_and_the_newest_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "vm-1.log"
    file.write_bytes(b"0123456789")
    assert read_serial(file, 0) == (b"0123456789", 0, 10)
    assert read_serial(file, 7) == (b"789", 7, 10)
    assert read_serial(file, 10) == (b"", 10, 10)  # nothing new: the same `next` again
    assert read_serial(file, -3) == (b"789", 7, 10)
    assert read_serial(file, -300) == (b"0123456789", 0, 10)
    with file.open("ab") as serial:
        serial.write(b"x" * SERIAL_BYTES)
    contents, first, end = read_serial(file, 0)
    assert (len(contents), first, end) == (SERIAL_BYTES, 10, SERIAL_BYTES + 10)


# Images


def wheel(folder: Path) -> Path:
    """A package with a command, `greet`."""
    path = folder / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    files = {
        "greeting.py": "def main():\n    print('baked', __file__)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_vm_boots_from_a_disk_that_another_vm_prepared(tmp_path: Path) -> None:
    async def scene(host: Host) -> None:
        builder = await host.boot(
            "venv=$OUTLAST_ROOT/opt/outlast/venv; python3 -m venv --without-pip $venv && "
            f"{sys.executable} -m pip --python $venv/bin/python --disable-pip-version-check "
            f"install --no-index {wheel(tmp_path)}; "
            "touch $TMPDIR/lost $OUTLAST_ROOT/var/lib/kept; poweroff",
            name="builder",
        )
        image = tmp_path / "image"
        with pytest.raises(KeyError):
            await host.hypervisor.bake(OTHER_ID, image)
        await until(lambda: (ID, "exited") in host.events, LONGEST_INSTALL_SEC)
        assert (
            builder.serial and "Successfully installed greeting-1.0" in builder.serial.read_text()
        )
        await host.hypervisor.bake(ID, image)
        await host.hypervisor.discard(ID)
        await until(lambda: not builder.root.exists())
        for name in ("first", "second"):  # what one writes, the other does not see
            guest = await host.boot(
                "ls $OUTLAST_ROOT/var/lib $TMPDIR; $OUTLAST_ROOT/opt/outlast/venv/bin/greet; "
                "cat $OUTLAST_ROOT/etc/hostname; touch $OUTLAST_ROOT/var/lib/mine",
                instance_id=OTHER_ID,
                image=image,
                name=name,
            )
            serial = guest.serial
            assert serial
            await until(lambda serial=serial: "Finished running" in serial.read_text())
            said = serial.read_text().splitlines()
            assert "kept" in said and "lost" not in said and "mine" not in said
            assert name in said
            (greeting,) = (line for line in said if line.startswith("baked "))
            assert greeting.startswith(f"baked {guest.root}/opt/outlast/venv/")
            await host.hypervisor.kill(OTHER_ID)
            await host.hypervisor.discard(OTHER_ID)
            # Another VM never has the same id; the next one here does.
            await until(lambda: not (tmp_path / "vms" / OTHER_ID).exists())

    play(tmp_path, scene)
