"""The supervisor as a process, with a real trainer, the fake cloud and a folder for a bucket."""

import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.base import exits
from outlast.base.exits import Reason, State
from outlast.bucket.head import Head, HeadLost, read_head
from outlast.bucket.layout import AttemptEnd, BootEnd, Layout, StopRequest
from outlast.bucket.records import read_record
from outlast.bucket.rows import read_rows
from outlast.bucket.store import FolderStore
from outlast.spec import bundle as bundles
from outlast.supervisor import on_computer
from tests.supervisor.fake_cloud import FakeCloud, fake_cloud

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.py")
TRAINER = Path(__file__).with_name("counting_trainer.py")
LAYOUT = Layout("experiments/first", "0123456789")
TIMEOUTS = (
    '{"backoff":0.05,"failure_grace":0.3,"heartbeat":0.2,"iam_propagation":1,"notice":10,'
    '"stall":60,"stop":10,"successor_silence":60}'
)
ATTRIBUTES = {
    "outlast-bucket": "runs",
    "outlast-prefix": LAYOUT.prefix,
    "outlast-run": LAYOUT.run,
    "outlast-resume": "0",
    "outlast-placement": "0",
    "outlast-owner": "organization/outlast/first",
    "outlast-trainer": "count",
    "outlast-deadline": "2099-01-01T00:00:00Z",
    "outlast-checkpoint-every": "5",
    "outlast-timeouts": TIMEOUTS,
}
ALL_STEPS = list(range(1, 21))
WAIT_SEC = 60.0
"""A machine that is busy with other things makes an environment slowly."""


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: did not happen in {WAIT_SEC:.0f} s"
        time.sleep(0.01)
    return found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of this checkout, unpacked, with one more trainer in it."""
    folder = tmp_path_factory.mktemp("bundle")
    packed = bundles.pack(ROOT, {"outlast/trainers/count.py": TRAINER.read_bytes()})
    zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
    return folder


class Machines:
    """Boots supervisors one after the other on one bucket."""

    def __init__(self, cloud: FakeCloud, folder: Path, bundle: Path) -> None:
        self.cloud = cloud
        self.folder = folder
        self.bundle = bundle
        self.bucket = folder / "bucket"
        self.gate = folder / "gate"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.store = FolderStore(self.bucket)
        shims = folder / "shims"
        shims.mkdir()
        for name, text in (
            ("poweroff", 'touch "$OUTLAST_ROOT/off"'),
            ("systemctl", "echo running"),
        ):
            (shims / name).write_text(f"#!/bin/sh\n{text}\n")
            (shims / name).chmod(0o755)

    def boot(
        self, *, group: str = "group", full: bool = False, **changes: str
    ) -> "subprocess.Popen[bytes]":
        number = str(len(self.processes) + 1)
        root = self.root(len(self.processes))
        for name in ("proc/sys/kernel/random", "dev/shm", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text(f"boot-{number}\n")
        (root / "dev/ttyS0").touch()
        environment = {key: value for key, value in changes.items() if key.isupper()}
        attributes = {key: value for key, value in changes.items() if not key.isupper()}
        self.cloud.boot(group, number, {**ATTRIBUTES, **attributes})
        if full:  # the boot disk, on which the log of a supervisor and that of its trainer lie
            (root / "stderr").symlink_to("/dev/full")
            (root / "var/log/outlast").mkdir(parents=True)
            (root / "var/log/outlast/trainer-000001.log").symlink_to("/dev/full")
        with (root / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), "vm"],
                cwd=self.bundle,
                stderr=stderr,
                env={
                    "PATH": f"{self.folder / 'shims'}:{os.environ['PATH']}",
                    "PYTHONPATH": str(self.bundle),
                    "OUTLAST_BUNDLE_DIR": str(self.bundle),
                    "OUTLAST_ROOT": str(root),
                    "STORE": str(self.bucket),
                    "FROZEN": str(self.folder / "frozen"),
                    **self.cloud.environment(),
                    **environment,
                },
            )
        self.processes.append(process)
        return process

    def root(self, index: int) -> Path:
        return self.folder / f"vm{index}"

    def serial(self, index: int) -> str:
        return (self.root(index) / "dev/ttyS0").read_text()

    def events(self, index: int) -> list[str]:
        """Those of the lines of JSON on the serial port."""
        lines = [line for line in self.serial(index).splitlines() if line.startswith("{")]
        return [json.loads(line)["outlastEvent"] for line in lines]

    def is_off(self, index: int) -> bool:
        return (self.root(index) / "off").exists()

    def trainer_at_gate(self) -> int:
        """The pid of the trainer that waits in its step."""
        waiting = self.gate.with_suffix(".waiting")
        wait_until(lambda: waiting.exists() and waiting.read_text(), "the trainer reaches its gate")
        pid = int(waiting.read_text())
        waiting.unlink()
        return pid

    def wait_frozen(self, process: "subprocess.Popen[bytes]") -> None:
        """Until it has stopped itself; a SIGCONT before that would be lost."""
        stat = Path(f"/proc/{process.pid}/stat")

        def is_stopped() -> bool:
            return stat.read_text().rpartition(")")[2].split()[0] == "T"

        wait_until(lambda: (self.folder / "frozen").exists() and is_stopped(), "the freeze")

    @property
    def head(self) -> Head:
        return read_head(self.store, LAYOUT).head

    def committed(self) -> list[int]:
        try:
            return [entry.step for entry in self.head.chain]
        except HeadLost:
            return []

    def end_of(self, term: int) -> AttemptEnd:
        end = read_record(self.store, LAYOUT.attempt_end(term), AttemptEnd)
        assert end is not None
        return end

    def logs_of(self, term: int) -> dict[str, str]:
        """The files that an attempt left in LOG_DIR."""
        folder = f"{LAYOUT.attempts}{term:06d}/logs/"
        items = [item.path for item in self.store.list(folder)]
        return {path.removeprefix(folder): self.store.get(path)[0].decode() for path in items}

    def check_finished(self) -> None:
        """Done, each step exactly once, the result as an undisturbed run has it."""
        head = self.head
        assert head.state is State.DONE and head.end is not None and head.end.result is not None
        rows = read_rows(self.store, LAYOUT, head)
        assert [row["step"] for row in rows] == ALL_STEPS
        assert [row["sum"] for row in rows] == [n * (n + 1) // 2 for n in ALL_STEPS]
        assert self.store.get(head.end.result.path + "sum.txt")[0] == b"210"
        assert self.store.get(head.end.result.path + "strays.txt")[0] == b""

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path) -> Iterator[Machines]:
    with fake_cloud(monkeypatch) as cloud:
        machines = Machines(cloud, tmp_path, bundle)
        try:
            yield machines
        finally:
            machines.close()


def kill(trainer: int) -> None:
    """Kills a trainer, unless it has ended already because its supervisor has."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(trainer, signal.SIGKILL)


def test_a_run_is_killed_interrupted_and_finished(machines: Machines) -> None:
    """SIGKILL of everything, then SIGTERM in mid-commit, then to the end."""
    gate = {"outlast-arg-gate": str(machines.gate)}
    first = machines.boot(**gate)
    trainer = machines.trainer_at_gate()
    wait_until(lambda: 5 in machines.committed(), "a commit")
    os.kill(first.pid, signal.SIGKILL)
    kill(trainer)

    gate["outlast-arg-gate-at"] = "14"
    second = machines.boot(**gate, FREEZE=r"put .*/t000002/s.*/MANIFEST")
    machines.wait_frozen(second)
    machines.trainer_at_gate()
    second.send_signal(signal.SIGTERM)
    second.send_signal(signal.SIGCONT)
    wait_until(lambda: "the trainer has" in machines.serial(1), "the trainer is asked to stop")
    machines.gate.touch()
    assert second.wait(60) == 75
    assert machines.is_off(1) and "deleteInstances" not in machines.cloud.calls
    end = machines.end_of(2)
    assert end.reason is Reason.INTERRUPTED and end.committed is not None

    third = machines.boot(**gate)
    assert third.wait(60) == 0
    assert machines.is_off(2) and machines.cloud.groups["group"] == []
    machines.check_finished()
    assert "resumes at step" in machines.serial(2)
    # A cut takes what was in LOG_DIR since its last upload; a stop and the end take nothing.
    kept = [machines.logs_of(term) for term in (1, 2, 3)]
    assert kept == [{}, {f"run-{LAYOUT.run}": "14"}, {f"run-{LAYOUT.run}": "20"}]
    events = [machines.events(vm) for vm in range(3)]
    assert events == [["running"], ["lost", "running", "interrupted"], ["running", "done"]]


@pytest.mark.parametrize(
    "freeze",
    [
        {"FREEZE": r"put .*/t000001/s.*/(arrays|state)"},
        # The next write is HEAD's.
        {"FREEZE": r"put .*/t000001/s.*/MANIFEST", "FREEZE_AFTER": "1"},
    ],
    ids=["mid-upload", "mid-commit"],
)
def test_a_frozen_vm_is_fenced_when_it_wakes(machines: Machines, freeze: dict[str, str]) -> None:
    """The frozen VM is no longer in the group; its work after SIGCONT changes nothing."""
    gate = {"outlast-arg-gate": str(machines.gate), "outlast-arg-gate-at": "15"}
    old = machines.boot(**gate, **freeze)
    machines.wait_frozen(old)
    new = machines.boot(**gate)
    wait_until(lambda: machines.head.term == 2, "the take-over")
    os.kill(old.pid, signal.SIGCONT)
    assert old.wait(60) == 76
    assert machines.is_off(0) and new.poll() is None
    assert machines.end_of(1).reason is Reason.FENCED
    assert all(entry.term == 2 for entry in machines.head.chain)
    machines.gate.touch()
    assert new.wait(60) == 0
    machines.check_finished()
    assert all(entry.term == 2 for entry in machines.head.chain)


def test_a_vm_that_is_killed_between_a_stop_request_and_the_commit(machines: Machines) -> None:
    """The request outlives it: the next VM ends the run at the last commit, without a trainer."""
    gate = {"outlast-arg-gate": str(machines.gate), "outlast-arg-gate-at": "14"}
    first = machines.boot(**gate, FREEZE=r"put .*/s0*14-.*/MANIFEST")
    trainer = machines.trainer_at_gate()
    wait_until(machines.committed, "a commit")
    request = StopRequest(0, 60.0, machines.store.now())
    machines.store.put(LAYOUT.stop_request(0), request.to_json(), if_generation_match=0)
    wait_until(lambda: "the trainer has" in machines.serial(0), "the trainer is asked to stop")
    machines.gate.touch()
    machines.wait_frozen(first)
    committed = machines.committed()[-1]
    os.kill(first.pid, signal.SIGKILL)
    kill(trainer)
    assert machines.head.state is State.OPEN and committed < 14

    second = machines.boot(**gate)
    assert second.wait(60) == 0
    head = machines.head
    assert (head.state, head.term, head.step) == (State.STOPPED, 1, committed)
    assert machines.is_off(1) and machines.cloud.groups["group"] == []
    assert "resumes at step" not in machines.serial(1)
    # A resume continues from there.
    third = machines.boot(**gate, **{"outlast-resume": "1"})
    assert third.wait(60) == 0
    machines.check_finished()


def test_a_killed_trainer_counts_as_out_of_memory_and_a_retry_resumes(machines: Machines) -> None:
    gate = {"outlast-arg-gate": str(machines.gate)}
    vm = machines.boot(**gate, **{"outlast-retries-failures": "1"})
    trainer = machines.trainer_at_gate()
    wait_until(lambda: 5 in machines.committed(), "a commit")
    os.kill(trainer, signal.SIGKILL)
    machines.gate.touch()
    assert vm.wait(60) == 0
    machines.check_finished()
    end = machines.end_of(1)
    assert (end.reason, end.exit) == (Reason.OUT_OF_MEMORY, 137)
    assert machines.head.failures == 1


def test_a_failed_trainers_output_is_kept(machines: Machines) -> None:
    vm = machines.boot(**{"outlast-arg-crash-at": "7"})
    assert vm.wait(60) == 0
    head = machines.head
    assert head.state is State.FAILED and machines.is_off(0)
    end = machines.end_of(1)
    assert end.reason is Reason.USER_FAILED and "crashed as asked" in end.message
    assert any("RuntimeError" in line for line in end.stderr)
    log, _ = machines.store.get(LAYOUT.log_piece(1, 0))
    assert b"RuntimeError: crashed as asked" in log


def test_a_trainer_outside_the_bundle_is_refused(machines: Machines) -> None:
    vm = machines.boot(**{"outlast-trainer": "absent"})
    assert vm.wait(60) == exits.USAGE  # as every VM of this template
    end = read_record(machines.store, LAYOUT.boot_end("1", "boot-1"), BootEnd)
    assert end is not None and end.reason is Reason.SETUP_FAILED
    assert "outlast.trainers.absent" in end.message and "not in the bundle" in end.message


def test_code_from_anywhere_else_is_refused(machines: Machines, tmp_path: Path) -> None:
    """An image with its own outlast."""
    elsewhere = tmp_path / "other-bundle"
    elsewhere.mkdir()
    vm = machines.boot(OUTLAST_BUNDLE_DIR=str(elsewhere))
    assert vm.wait(60) == exits.USAGE
    end = read_record(machines.store, LAYOUT.boot_end("1", "boot-1"), BootEnd)
    assert end is not None and "must come from the bundle" in end.message


def test_a_full_boot_disk_ends_no_training(machines: Machines) -> None:
    """Neither the supervisor's nor the trainer's output can be written."""
    vm = machines.boot(full=True)
    assert vm.wait(60) == 0
    machines.check_finished()
    assert machines.end_of(1).reason is Reason.DONE and machines.is_off(0)
    assert "done at step 20" in machines.serial(0)


def test_a_crash_outside_an_attempt_leaves_its_reason(machines: Machines) -> None:
    """The last line is what the boot's record says."""
    vm = machines.boot(CRASH="yes")
    assert vm.wait(60) == 1
    said = (machines.root(0) / "stderr").read_text()
    assert "Traceback (most recent call last)" in said
    last = said.splitlines()[-1]
    assert (
        last
        == "outlast: the supervisor crashed: ZeroDivisionError: integer division or modulo by zero"
    )


def test_an_incomplete_spec_is_reported(machines: Machines) -> None:
    vm = machines.boot(**{"outlast-owner": ""})
    assert vm.wait(60) == 64
    assert "outlast-owner: missing" in machines.serial(0)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_folders_of_killed_supervisors_are_removed(temporary: Path) -> None:
    """Folders of living supervisors and all other folders stay."""
    killed, held = on_computer.make_work()
    (killed / "snapshot").mkdir()
    (killed / "snapshot" / "arrays").write_bytes(b"x")
    os.close(held)
    living, held = on_computer.make_work()
    strangers = temporary / "strangers"
    strangers.mkdir()
    (strangers / "kept").touch()
    link = temporary / f"{on_computer.WORK_PREFIX}link"
    link.symlink_to(strangers)
    try:
        on_computer.drop_left_work()
        assert sorted(temporary.iterdir()) == sorted([living, strangers, link])
        assert (strangers / "kept").exists()
    finally:
        os.close(held)
    on_computer.drop_left_work()
    assert not living.exists()


def test_another_users_folders_are_left_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, held = on_computer.make_work()
    os.close(held)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(work).st_uid + 1)
    on_computer.drop_left_work()
    assert work.exists()


def test_work_that_was_removed_before_its_lock_is_recreated(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At either instant: before it is opened, and between that and the lock."""
    made, locked = [], []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def mkdtemp(**kwargs: Any) -> str:
        made.append(Path(make(**kwargs)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    def flock(file: int, how: int) -> None:
        lock(file, how)
        locked.append(file)
        if len(locked) == 1:
            made[-1].rmdir()

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(fcntl, "flock", flock)
    work, held = on_computer.make_work()
    os.close(held)
    assert len(made) == 3 and len(locked) == 2
    assert list(temporary.iterdir()) == [work] == made[2:]


def test_two_at_once_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second takes the term; the first ends fenced and says so."""
    gate = tmp_path / "gate"
    program = (
        f"import sys; sys.path.insert(0, {str(TRAINER.parent)!r})\n"
        "import counting_trainer, outlast, functools\n"
        "outlast.train = functools.partial(outlast.train, run_dir=sys.argv[1], name='count')\n"
        "sys.exit(counting_trainer.main(sys.argv[2:]))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run"), f"--gate={gate}"]
    environment = {**os.environ, "PYTHONPATH": str(Path(outlast.__file__).parents[1])}
    layout = Layout("", "")
    store = FolderStore(tmp_path / "run")

    def term() -> int:
        try:
            return read_head(store, layout).head.term
        except HeadLost:
            return 0

    first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    second = None
    try:
        waiting = gate.with_suffix(".waiting")
        wait_until(waiting.exists, "the first reaches its gate")
        second = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        wait_until(lambda: term() == 2, "the second takes the term")
        # Held still, it cannot end the run before the first has looked.
        os.kill(second.pid, signal.SIGSTOP)
        gate.touch()
        _, said = first.communicate(timeout=120)
        assert first.returncode != 0 and b"fenced" in said
        os.kill(second.pid, signal.SIGCONT)
        second.communicate(timeout=120)
        assert second.returncode == 0
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    head = read_head(store, layout).head
    assert head.state is State.DONE and head.term == 2
    assert [row["step"] for row in read_rows(store, layout, head)] == ALL_STEPS
