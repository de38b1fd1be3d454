"""VMs as machines of QEMU, played with a program that speaks QEMU's protocol in its place."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outlast.localcloud.vm import accelerator
from outlast.localcloud.vm.hypervisor import Hypervisor
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.qemu_guest import PARENT, GuestImage, Host, QemuGuest, memory_mb
from outlast.localcloud.vm.slowness import BOOT_SEC, Slowness

LONGEST_WAIT_SEC = 60.0
ID = str(time.time_ns())

# Greets, answers each command, and notes it. Hears the power button unless its machine is deaf.
QEMU = """
import json, sys, pathlib
notes = pathlib.Path("commands")
def say(**message):
    print(json.dumps(message), flush=True)
pathlib.Path("arguments").write_text(json.dumps(sys.argv[1:]))
if "dead" in sys.argv[sys.argv.index("-name") + 1]:
    why = "failed to initialize kvm" if "kvm" in sys.argv else "cannot allocate memory"
    sys.exit(f"qemu-system-x86_64: {why}")
print("a line of the firmware", file=sys.stderr, flush=True)
say(QMP={})
for line in sys.stdin:
    asked = json.loads(line)
    notes.open("a").write(asked["execute"] + " " + json.dumps(asked.get("arguments", {})) + "\\n")
    status = "internal-error" if "broken" in sys.argv[sys.argv.index("-name") + 1] else "running"
    say(**{"return": {"status": status}, "id": asked.get("id")})
    if asked["execute"] == "system_powerdown":
        say(event="POWERDOWN")
        if "deaf" not in sys.argv[sys.argv.index("-name") + 1]:
            say(event="SHUTDOWN")
            break
    elif asked["execute"] == "cont" and "fragile" in sys.argv[sys.argv.index("-name") + 1]:
        if "kvm" in sys.argv:
            sys.exit("error: kvm run failed Bad address")
    elif asked["execute"] == "cont":
        if "full" in sys.argv[sys.argv.index("-name") + 1]:
            data = {"action": "stop", "nospace": True, "reason": "No space left on device"}
            for _ in range(3):
                say(event="BLOCK_IO_ERROR", data=data)
        say(event="STOP")
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in the place of QEMU's, first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    write(folder / "qemu-system-x86_64", f"#!{sys.executable} -IS\n{QEMU}")
    size = '{"virtual-size": 10737418240}'
    write(
        folder / "qemu-img",
        f"#!/bin/bash\nprintf '%s\\n' \"$*\" >>{folder}/images\n"
        f"[[ $1 != info ]] || echo '{size}'\n"
        'case "$1" in create|convert) : >"$(for each in "$@"; do case "$each" in '
        '*/disk.qcow2) last="$each" ;; esac; done; echo "$last")" ;; esac\n',
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    folder.mkdir()
    record = {"system": "debian-13", "disk": "disk.raw", "format": "raw", "root": "/dev/vda"}
    (folder / "guest.json").write_text(json.dumps(record))
    for name in ("disk.raw", "vmlinuz", "initrd.img"):
        (folder / name).write_text(name)
    return folder


class Cloud:
    """A hypervisor of QEMU guests and what it has reported."""

    def __init__(self, folder: Path, accelerated: accelerator.Accelerator = "tcg") -> None:
        self.events: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.measured: list[float] = []
        slowness = Slowness(lambda took, factor: self.measured.append(factor))
        self.host = Host(accelerated, slowness, self.notes.append)
        self.hypervisor = Hypervisor(
            folder / "state",
            lambda instance_id, event, why: self.events.append((event, why)),
            traceback.print_exception,
            grace_sec=0.2,
            environment={"STORAGE_EMULATOR_HOST": "http://169.254.169.2:1", "SAID": "two words"},
            make_guest=lambda machine, place: QemuGuest(machine, place, self.host),
        )

    async def boot(self, image: Path | None, name: str = "vm", **fields: int) -> QemuGuest:
        values = {"instance/attributes/startup-script": "#!/bin/bash"}
        machine = Machine(ID, name, values, image, address="127.1.2.3", **fields)  # type: ignore[arg-type]
        await self.hypervisor.boot(machine)
        guest = self.hypervisor.guest(ID)
        assert isinstance(guest, QemuGuest)
        return guest

    async def until(self, event: str) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_SEC
        while event not in [said for said, _ in self.events]:
            assert time.monotonic() < deadline, f"no {event} in {self.events}"
            await asyncio.sleep(0.01)


def play(cloud: Cloud, scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await scene()
        finally:
            pids = cloud.hypervisor.pids()
            await cloud.hypervisor.close()
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    asyncio.run(run())


def test_the_power_button_stops_a_guest_that_hears_it(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        guest = await cloud.boot(image, memory_mb=1024, cpus=1, disk_gb=20)
        await cloud.until("running")
        assert len(cloud.hypervisor.pids()) == 2
        guest.asked("instance/id")
        assert not cloud.measured
        guest.asked("instance/attributes/")
        assert cloud.measured == [1.0]  # faster than a VM of Compute Engine
        await cloud.hypervisor.stop(ID)
        await cloud.until("exited")
        assert [event for event, _ in cloud.events] == ["running", "stopping", "exited"]
        arguments = json.loads((guest.folder / "arguments").read_text())
        line = arguments[arguments.index("-append") + 1]
        assert "root=/dev/vda" in line and "systemd.hostname=vm" in line
        assert "systemd.setenv=STORAGE_EMULATOR_HOST=http://169.254.169.2:1" in line
        assert '"systemd.setenv=SAID=two words"' in line
        assert arguments[arguments.index("-smp") + 1] == "1"
        assert arguments[arguments.index("-m") + 1] == "1024"
        created = (programs / "images").read_text().splitlines()[-1].split()
        assert created[-1] == str(20 << 30) and str(image / "disk.raw") in created

    play(cloud, scene)


def test_a_guest_that_does_not_hear_is_killed_after_its_grace_times_the_factor(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        guest = await cloud.boot(image, "deaf")
        cloud.host.slowness.booted(time.monotonic() - 3 * BOOT_SEC)
        began = time.monotonic()
        await cloud.hypervisor.stop(ID)
        await cloud.until("exited")
        assert time.monotonic() - began >= 3 * 0.2
        assert [event for event, _ in cloud.events] == ["running", "stopping", "exited"]
        assert "system_powerdown" in (guest.folder / "commands").read_text()

    play(cloud, scene)


def test_a_guest_is_frozen_probed_and_killed(programs: Path, image: Path, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        guest = await cloud.boot(image, "deaf")
        await cloud.hypervisor.freeze(ID)
        await cloud.hypervisor.open_port(ID, 8080)
        await cloud.hypervisor.open_port(ID, 8080)
        await cloud.hypervisor.thaw(ID)
        await cloud.hypervisor.withdraw_address(ID)
        asked = (guest.folder / "commands").read_text().splitlines()
        words = [line.split()[0] for line in asked]
        monitor = "human-monitor-command"
        assert words == ["qmp_capabilities", "stop", monitor, "cont", monitor]
        assert "hostfwd_add net0 tcp:127.1.2.3:8080-169.254.169.15:8080" in asked[2]
        assert "hostfwd_remove net0 tcp:127.1.2.3:8080" in asked[4]
        with pytest.raises(LookupError, match="cannot be reached from outside"):
            cloud.hypervisor.signal(ID, "x", signal.SIGTERM)
        with pytest.raises(LookupError, match="cannot be reached from outside"):
            await cloud.hypervisor.out_of_memory(ID)
        await cloud.hypervisor.kill(ID)
        assert not cloud.hypervisor.pids()
        assert [event for event, _ in cloud.events] == ["running", "exited"]

    play(cloud, scene)


def test_a_vm_that_kvm_cannot_run_on_ends_and_later_ones_are_emulated(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path, "kvm")

    async def scene() -> None:
        await cloud.boot(image, "broken-deaf")
        await cloud.hypervisor.thaw(ID)  # the program then reports that its processor stopped
        await cloud.until("exited")
        assert cloud.host.accelerator == "tcg"
        assert cloud.notes == [
            "KVM failed in the middle of a VM's life (an internal error of its processor); later "
            "VMs are emulated (TCG)"
        ]
        guest = await cloud.boot(image, "deaf")
        arguments = json.loads((guest.folder / "arguments").read_text())
        assert arguments[arguments.index("-accel") + 1].startswith("tcg")

    play(cloud, scene)


def test_a_qemu_that_exits_midway_under_kvm_works_emulated(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path, "kvm")

    async def scene() -> None:
        await cloud.boot(image, "fragile")
        assert not cloud.notes
        await cloud.hypervisor.thaw(ID)  # the program then ends, as QEMU does if KVM refuses to run
        await cloud.until("exited")
        assert cloud.host.accelerator == "tcg"
        assert cloud.notes == [
            "KVM failed in the middle of a VM's life (error: kvm run failed Bad address); later "
            "VMs are emulated (TCG)"
        ]
        guest = await cloud.boot(image, "fragile")
        await cloud.hypervisor.thaw(ID)
        await cloud.hypervisor.freeze(ID)
        assert "stop" in (guest.folder / "commands").read_text()
        assert guest.process is not None and guest.process.returncode is None

    play(cloud, scene)


def test_a_vm_that_is_killed_says_nothing_about_kvm(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path, "kvm")

    async def scene() -> None:
        await cloud.boot(image, "deaf")
        await cloud.hypervisor.kill(ID)
        await cloud.until("exited")
        assert (cloud.host.accelerator, cloud.notes) == ("kvm", [])

    play(cloud, scene)


def test_a_qemu_that_does_not_start_under_kvm_is_emulated_next(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path, "kvm")

    async def scene() -> None:
        await cloud.hypervisor.boot(Machine(ID, "dead", {}, image))
        assert [event for event, _ in cloud.events] == ["failed"]
        assert cloud.host.accelerator == "tcg"
        assert "(qemu-system-x86_64: failed to initialize kvm)" in cloud.notes[0]

    play(cloud, scene)


def test_a_vm_whose_disk_cannot_grow_ends_and_says_why(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        await cloud.boot(image, "full-deaf")
        await cloud.hypervisor.thaw(ID)  # the program then reports that its disk is full
        await cloud.until("exited")
        assert cloud.notes == [
            f"full-deaf: its disk in {tmp_path}/state/vms cannot be written (No space left on "
            "device); the VM has ended; free some space there"
        ]

    play(cloud, scene)


def test_an_image_that_does_not_fit_leaves_nothing(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        await cloud.boot(image)
        await cloud.hypervisor.stop(ID)
        await cloud.until("exited")
        write(
            programs / "qemu-img",
            '#!/bin/bash\necho half >"${@: -1}"\necho No space left on device >&2\nexit 1\n',
        )
        with pytest.raises(OSError, match="qemu-img convert: No space left on device"):
            await cloud.hypervisor.bake(ID, tmp_path / "images/baked")
        assert not list((tmp_path / "images").iterdir())

    play(cloud, scene)


def test_a_stopped_disk_becomes_an_image_that_boots(
    programs: Path, image: Path, tmp_path: Path
) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        await cloud.boot(image)
        await cloud.hypervisor.stop(ID)
        await cloud.until("exited")
        await cloud.hypervisor.bake(ID, tmp_path / "baked")
        assert (programs / "images").read_text().splitlines()[-1].startswith("convert -q -O qcow2")
        baked = GuestImage.read(tmp_path / "baked")
        assert (baked.system, baked.root, baked.format) == ("debian-13", "/dev/vda", "qcow2")
        assert (baked.folder / "vmlinuz").read_text() == "vmlinuz"
        await cloud.boot(tmp_path / "baked")

    play(cloud, scene)


def test_why_a_vm_cannot_boot_is_reported(programs: Path, image: Path, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)

    async def scene() -> None:
        machine = Machine(ID, "vm", {}, None)
        await cloud.hypervisor.boot(machine)
        await cloud.hypervisor.boot(Machine(ID, "dead", {}, image))
        long = {"PIP_INDEX_URL": "x" * 2100}
        cloud.hypervisor._environment = long
        await cloud.hypervisor.boot(Machine(ID, "vm", {}, image))

    play(cloud, scene)
    failed = [why for event, why in cloud.events if event == "failed"]
    assert "the image has no guest image here; see make guest-image" in failed[0]
    assert "QEMU did not start: qemu-system-x86_64: cannot allocate memory" in failed[1]
    assert "at most 2047 fit on the kernel's command line" in failed[2]


def test_qemu_ends_with_a_cloud_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "vm"
    folder.mkdir()
    code = f"""
import os, subprocess, sys, time
lifeline, ours = os.pipe()
child = subprocess.Popen(
    [sys.executable, "-IS", {str(PARENT)!r}, str(lifeline), {str(folder)!r}, "--",
     "bash", "-c", "sleep 600 & echo $! $$; wait"], pass_fds=[lifeline])
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.kill()
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while folder.exists() or any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_qemu_does_not_outlive_its_parent(tmp_path: Path) -> None:
    lifeline, ours = os.pipe()
    command = [sys.executable, "-IS", str(PARENT), str(lifeline), str(tmp_path / "vm"), "--"]
    with subprocess.Popen(
        [*command, "bash", "-c", "echo $$; exec sleep 600"],
        pass_fds=[lifeline],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        qemu = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while Path(f"/proc/{qemu}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(ours)
    os.close(lifeline)


def test_memory_is_that_of_the_machine_type_within_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert memory_mb(1024) == 1024
    assert memory_mb(1 << 30) < 1 << 30


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("echo Linux version 6.12", ("kvm", "")),
        (
            "echo KVM internal error. Suberror: 1",
            ("tcg", "the trial boot failed: KVM internal error. Suberror: 1"),
        ),
        ("sleep 600", ("tcg", "the trial boot failed: no kernel started in 1 s")),
        ("exit 1", ("tcg", "the trial boot failed: no kernel started in 1 s")),
    ],
)
def test_a_trial_boot_decides(
    said: str, found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(accelerator, "KVM", device)
    monkeypatch.setattr(accelerator, "TRIAL_SEC", 1.0 if said == "sleep 600" else 60.0)
    write(
        tmp_path / "qemu-system-x86_64", f"#!/bin/bash\n{said}; [[ $? == 0 ]] && exec sleep 600\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    accelerated, why = accelerator.find(tmp_path / "vmlinuz")
    assert accelerated == found[0]
    assert why == found[1].replace("1 s", f"{accelerator.TRIAL_SEC:.0f} s")


def test_without_kvm_there_is_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "KVM", tmp_path / "absent")
    found = accelerator.find(tmp_path / "vmlinuz")
    assert found == ("tcg", f"{tmp_path / 'absent'} does not exist")
