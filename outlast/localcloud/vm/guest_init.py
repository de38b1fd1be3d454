"""Process 1 of a local VM: runs the startup script, adopts orphans, ends with the cloud.

    guest_init.py ROOT GRACE_SEC MEMORY_MB

`hypervisor` starts it as a separate script, in the guest's environment. Standard library only,
because it must start in milliseconds. It reads commands, one per line, from its standard input
(`stop`, `stop GRACE_SEC`, `kill`) and from ROOT/run/initctl (`poweroff`, from the guest's own
`poweroff`). It reports one word per line on its standard output (`running`, `stopping`). It ends
when a stop or kill has left no process of the VM. The end of its input means that the cloud has
ended: then it kills all processes and deletes the disk too.

It also enforces the VM's limits: the VM has no kernel for that, and control groups need rights that
an ordinary account seldom has. It checks the memory of the VM's processes, more often as they come
closer to the limit, and kills as the kernel of a machine of this size would. MEMORY_MB 0: no limit.
"""

import ctypes
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
METADATA_TRIES = 50
METADATA_RETRY_SEC = 0.1
SIGNAL_ROUND_SEC = 0.005

# Seconds from a `poweroff` to the first signal, so that the command and its caller can still
# return.
POWEROFF_DELAY_SEC = 0.1

# An upper bound of how fast memory fills, and the shortest and longest time between two looks.
FILL_MB_PER_SEC = 4096
LOOK_SEC = (0.05, 2.0)
MAX_PROCESSES = 4096
KERNEL = "kernel"

# Name prefix of a VM's folders in /tmp and in memory.
TEMPORARY_PREFIX = "outlast-vm-"

MOUNTS = Path(__file__).with_name("guest_mounts.py")
USER_ATTRIBUTE = "outlast-trainer-user"
"""Attribute that is set if the VM has users besides root."""


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, except ended ones that are not reaped yet."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := read_stat(int(entry))) and stat[0] not in "ZX":
            children.setdefault(stat[1], []).append(int(entry))
    found: set[int] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.add(child)
            pending.append(child)
    return found


def read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process; None if it no longer exists."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends the signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze_all(find: Callable[[], set[int]]) -> set[int]:
    """Stops every process that `find` returns; returns all of them. A process may start another one
    before its signal arrives, so this repeats until no new one is found."""
    stopped: set[int] = set()
    while running := find() - stopped:
        signal_all(running, signal.SIGSTOP)
        stopped |= running
        time.sleep(SIGNAL_ROUND_SEC)
    return stopped


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kills every process that `find` returns at one moment, like a power cut. If they were killed
    one by one, a parent could see its child's death and still write a reaction to it."""
    while frozen := freeze_all(find):
        signal_all(frozen, signal.SIGKILL)
        time.sleep(SIGNAL_ROUND_SEC)


def resident_kb(pid: int) -> int:
    """A process's memory in kB, including shared memory; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return 0


def used_kb(pids: Iterable[int]) -> int:
    """The exact memory of processes together in kB, each page counted once; slow."""
    used = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            used += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return used


def kill_largest(pids: Iterable[int]) -> tuple[int, str] | None:
    """Kills the largest process, as the kernel does when memory is full. Returns its pid and the
    kernel's message; None if there is none.

    The process has ended when this returns: only then is its memory free."""
    largest = max(pids, key=resident_kb, default=None)
    if largest is None:
        return None
    size = resident_kb(largest)
    try:
        with open(f"/proc/{largest}/comm") as file:
            name = file.read().strip()
        os.kill(largest, signal.SIGKILL)
    except OSError:
        return None
    while (stat := read_stat(largest)) and stat[0] not in "ZX":
        time.sleep(0.001)
    return largest, f"Out of memory: Killed process {largest} ({name}) anon-rss:{size}kB"


def delete_disk(root: Path) -> None:
    """Deletes a VM's root folder, and its folders in memory and in /tmp."""
    import shutil

    with suppress(OSError):
        memory = Path(os.readlink(root / "dev/shm")).parent
        if memory.name.startswith(TEMPORARY_PREFIX):
            shutil.rmtree(memory, ignore_errors=True)
    real = root.resolve()
    if root.is_symlink():
        root.unlink()
    if real.parent.name.startswith(TEMPORARY_PREFIX):
        real = real.parent
    shutil.rmtree(real, ignore_errors=True)


class Init:
    """The VM's first process."""

    def __init__(self, root: Path, grace_sec: float, memory_mb: int) -> None:
        self._root = root
        self._grace_sec = grace_sec
        self._memory_mb = memory_mb
        self._look_at = 0.0
        """Monotonic time of the next look at the limits."""
        self._script = 0
        """Pid of the startup script; 0 if it has ended or never ran."""
        self._script_folder: Path | None = None
        self._term_at: float | None = None
        """Monotonic time at which the current stop sends its signal."""
        self._kill_at: float | None = None
        """Monotonic time at which the current stop kills."""
        self._orphaned = False
        """Whether the cloud has ended, so that this process must clean up."""
        self._serial = os.open(
            root / "dev/ttyS0", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        )

    def run(self) -> None:
        """Runs the VM until no process of it is left."""
        # Orphans of the guest become children of this process, so that none leaves the tree.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        control = os.path.join(self._root, "run/initctl")
        os.mkfifo(control, 0o600)
        # Opened for writing too, so that the pipe never ends and a writer never waits.
        requests = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

        self._set_system_state("running")
        self._report("running")
        self._start_script()
        poller = select.poll()
        for descriptor in (0, requests, wakeup_read):
            poller.register(descriptor, select.POLLIN)
        while True:
            due = self._look_at
            for moment in (self._term_at, self._kill_at):
                due = due if moment is None else min(due, moment)
            timeout_ms = max(0, int((due - time.monotonic()) * 1000) + 1)
            ready = {descriptor for descriptor, _ in poller.poll(timeout_ms)}
            if 0 in ready:
                commands = [line.split() for line in os.read(0, 4096).splitlines()]
                if not commands:
                    self._orphaned = True
                    break
                if [b"kill"] in commands:
                    break
                for word, *grace_sec in commands:
                    if word == b"stop":
                        self._stop(delay_sec=0.0, grace_sec=float(*grace_sec or [self._grace_sec]))
            if requests in ready and b"poweroff" in os.read(requests, 4096).split():
                self._stop(delay_sec=POWEROFF_DELAY_SEC, grace_sec=self._grace_sec)
            if wakeup_read in ready:
                os.read(wakeup_read, 4096)
            empty = self._reap()
            now = time.monotonic()
            if self._term_at is not None and now >= self._term_at:
                self._term_at = None
                signal_all(descendants(os.getpid()), signal.SIGTERM)
            if self._kill_at is not None and (empty or now >= self._kill_at):
                break
            if now >= self._look_at:
                self._look_at = time.monotonic() + self._hold_limits()
        self._kill_all()
        if self._orphaned:
            delete_disk(self._root)

    def _hold_limits(self) -> float:
        """Kills processes above the VM's limits; returns the seconds until the next look."""
        below = descendants(os.getpid())
        if len(below) > MAX_PROCESSES:
            youngest = sorted(below, key=_start_time)[MAX_PROCESSES:]
            self._log(f"fork rejected: {len(below)} processes, at most {MAX_PROCESSES}", KERNEL)
            signal_all(youngest, signal.SIGKILL)
            return LOOK_SEC[0]
        if not self._memory_mb:
            return LOOK_SEC[1]
        used_mb = sum(map(resident_kb, below)) / 1024  # counts shared memory more than once
        if used_mb > self._memory_mb:
            used_mb = used_kb(below) / 1024
        if used_mb > self._memory_mb and (killed := kill_largest(below)):
            self._log(killed[1], KERNEL)
        left_sec = (self._memory_mb - used_mb) / FILL_MB_PER_SEC
        return min(max(left_sec, LOOK_SEC[0]), LOOK_SEC[1])

    def _start_script(self) -> None:
        """Runs the startup script as the guest agent does: writes the attribute to a file, and
        starts it with bash."""
        try:
            attributes = self._attributes()
        except OSError as error:
            self._log(f"metadata server: {error}; no startup script was run")
            return
        script = attributes.get("startup-script", "").lstrip()
        if not script:
            self._log("No startup scripts to run.")
            return
        folder = Path(tempfile.mkdtemp(prefix="metadata-scripts", dir=self._root / "tmp"))
        file = folder / "startup-script"
        file.write_text(script)
        file.chmod(0o755)
        self._log("Starting startup scripts (version rehearsal).")
        os.chdir(self._root)
        null = os.open(os.devnull, os.O_RDONLY)
        self._script_folder = folder
        argv = ["/bin/bash", "-c", str(file)]
        if not os.geteuid():
            places = self._places() if attributes.get(USER_ATTRIBUTE) else []
            run, tmp = str(self._root / "run"), str(self._root / "tmp")
            size = f"{self._memory_mb // 2}m" if self._memory_mb else "50%"
            mounts = [str(MOUNTS), run, tmp, size, *places]
            argv = [sys.executable, "-I", "-S", *mounts, "--", *argv]
        self._script = os.posix_spawn(
            argv[0],
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, self._serial, 1),
                (os.POSIX_SPAWN_DUP2, self._serial, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
        os.close(null)

    def _places(self) -> list[str]:
        """The paths that the VM's other users must reach: its disk, its memory and its programs."""
        links = (self._root / "dev/shm", self._root / "opt/outlast")
        places = (self._root, *(link for link in links if link.exists()), sys.executable, MOUNTS)
        return [str(place) for place in places]

    def _attributes(self) -> dict[str, str]:
        """Reads the VM's attributes from its metadata server. Raises OSError."""
        import http.client
        import json

        for left in reversed(range(METADATA_TRIES)):
            connection = http.client.HTTPConnection(os.environ["GCE_METADATA_HOST"], timeout=10)
            try:
                connection.request(
                    "GET",
                    "/computeMetadata/v1/instance/attributes/?recursive=true&alt=json",
                    headers={"Metadata-Flavor": "Google"},
                )
                answer = connection.getresponse()
                if answer.status == 200:
                    return json.loads(answer.read())
                problem = OSError(f"answered {answer.status}")
            except (OSError, http.client.HTTPException) as error:
                problem = OSError(str(error))
            finally:
                connection.close()
            if not left:
                raise problem
            time.sleep(METADATA_RETRY_SEC)
        raise AssertionError("unreachable")

    def _stop(self, delay_sec: float, grace_sec: float) -> None:
        """Starts a shutdown: SIGTERM to every process, and SIGKILL after the grace period."""
        if self._kill_at is not None:
            return
        self._term_at = time.monotonic() + delay_sec
        self._kill_at = self._term_at + grace_sec
        self._set_system_state("stopping")
        self._report("stopping")
        self._log("System is going down.")

    def _reap(self) -> bool:
        """Reaps ended processes; returns whether no process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._script:
                self._end_script(os.waitstatus_to_exitcode(status))

    def _end_script(self, exit_code: int) -> None:
        self._script = 0
        if exit_code:
            said = f"exit status {exit_code}" if exit_code > 0 else f"signal {-exit_code}"
            self._log(f'Script "startup-script" failed with error: {said}')
        if self._script_folder:
            with suppress(OSError):
                (self._script_folder / "startup-script").unlink()
                self._script_folder.rmdir()
        self._log("Finished running startup scripts.")

    def _kill_all(self) -> None:
        while not self._gone():
            kill_all(partial(descendants, os.getpid()))
            time.sleep(SIGNAL_ROUND_SEC)

    def _gone(self) -> bool:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return False
        return True

    def _set_system_state(self, state: str) -> None:
        file = self._root / "run/system-state"
        file.with_suffix(".new").write_text(state + "\n")
        file.with_suffix(".new").replace(file)

    def _report(self, word: str) -> None:
        with suppress(OSError):  # the cloud has ended, and so will the input
            os.write(1, f"{word}\n".encode())

    def _log(self, text: str, who: str = "google_metadata_script_runner") -> None:
        os.write(self._serial, f"{who}[{os.getpid()}]: {text}\n".encode())


def _start_time(pid: int) -> int:
    """The start time of a process in ticks; 0 if it no longer exists."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def main() -> None:
    """Runs as the VM's first process until the VM has ended."""
    os.umask(0o022)  # a machine's default, not that of the cloud's owner
    Init(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])).run()


if __name__ == "__main__":
    main()
