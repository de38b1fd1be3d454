"""Process 1 of a local VM: runs the startup script, adopts every orphan, ends with the cloud.

    guest_init.py ROOT GRACE_SEC MEMORY_MB

`hypervisor` starts it as a separate script, in the guest's environment; standard library only, for
it must start in milliseconds. It reads one command a line on its standard input
(`stop`, `stop GRACE_SEC`, `kill`) and on ROOT/run/initctl (`poweroff`, from the guest's own
`poweroff`). It reports one word a line on its standard output (`running`, `stopping`). It ends when
no process of the VM is left. The end of its input means that the cloud has gone: then it kills, and
deletes the disk too.

It also is the VM's limits, since the VM has no kernel to be them, and as control groups need
rights that a person's account seldom has: it looks at what the VM's processes use, the more often
the closer that comes, and kills as the kernel of a machine of this size would. MEMORY_MB 0: none.
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

# From a `poweroff` to the first signal: the command, and who called it, may still return.
POWEROFF_DELAY_SEC = 0.1

# How much faster memory can be filled than is worth looking for; the longest and the shortest look.
FILL_MB_PER_SEC = 4096
LOOK_SEC = (0.05, 2.0)
MAX_PROCESSES = 4096
KERNEL = "kernel"

# Names of folders outside a VM's own that belong to it.
TEMPORARY_PREFIX = "outlast-vm-"

USERS = Path(__file__).with_name("guest_users.py")
USER_ATTRIBUTE = "outlast-trainer-user"
"""Is set if the VM has users beside root."""


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, those that have ended but are not yet reaped left out."""
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
    """State letter and parent of a process; None once it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends the signal to each that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze_all(find: Callable[[], set[int]]) -> set[int]:
    """Stops every process that `find` finds; returns them. One may start another before its own
    signal arrives: until no new one is found."""
    stopped: set[int] = set()
    while running := find() - stopped:
        signal_all(running, signal.SIGSTOP)
        stopped |= running
        time.sleep(SIGNAL_ROUND_SEC)
    return stopped


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kills every process that `find` finds, as a power cut does: at one moment. Were they killed
    one by one, a parent would live to see its child die, and go on to write what it makes of it."""
    while frozen := freeze_all(find):
        signal_all(frozen, signal.SIGKILL)
        time.sleep(SIGNAL_ROUND_SEC)


def resident_kb(pid: int) -> int:
    """Memory that a process has, with all that it shares."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return 0


def used_kb(pids: Iterable[int]) -> int:
    """Memory of processes together, each page once; slow, exact."""
    used = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            used += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return used


def kill_largest(pids: Iterable[int]) -> tuple[int, str] | None:
    """What the kernel does out of memory; its pid and words, None if there is nothing to kill.

    The victim has ended when this returns: memory is free only then.
    """
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
    """Deletes a VM's root folder, and what lies for it in memory and in /tmp."""
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
    """The one instance in this process."""

    def __init__(self, root: Path, grace_sec: float, memory_mb: int) -> None:
        self._root = root
        self._grace_sec = grace_sec
        self._memory_mb = memory_mb
        self._look_at = 0.0
        """When to look at the limits again, monotonic."""
        self._script = 0
        """Pid of the startup script; 0 when it has ended or never was."""
        self._script_folder: Path | None = None
        self._term_at: float | None = None
        """When a stop under way begins with its signal, monotonic."""
        self._kill_at: float | None = None
        """When a stop under way becomes a kill, monotonic."""
        self._orphaned = False
        """Whether the cloud has gone, so that this process has to clean up."""
        self._serial = os.open(
            root / "dev/ttyS0", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        )

    def run(self) -> None:
        """The whole life of the VM."""
        # Orphans of the guest become our children, so that none leaves the tree.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        control = os.path.join(self._root, "run/initctl")
        os.mkfifo(control, 0o600)
        # Open for writing too: so the pipe never ends, and a writer never waits for us.
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
        """Kills what is above the VM's limits; seconds until the next look."""
        below = descendants(os.getpid())
        if len(below) > MAX_PROCESSES:
            youngest = sorted(below, key=_start_time)[MAX_PROCESSES:]
            self._log(f"fork rejected: {len(below)} processes, at most {MAX_PROCESSES}", KERNEL)
            signal_all(youngest, signal.SIGKILL)
            return LOOK_SEC[0]
        if not self._memory_mb:
            return LOOK_SEC[1]
        used_mb = sum(map(resident_kb, below)) / 1024  # what is shared counts more than once
        if used_mb > self._memory_mb:
            used_mb = used_kb(below) / 1024
        if used_mb > self._memory_mb and (killed := kill_largest(below)):
            self._log(killed[1], KERNEL)
        left_sec = (self._memory_mb - used_mb) / FILL_MB_PER_SEC
        return min(max(left_sec, LOOK_SEC[0]), LOOK_SEC[1])

    def _start_script(self) -> None:
        """What the guest agent does: the attribute to a file, the file to bash."""
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
        if attributes.get(USER_ATTRIBUTE) and not os.geteuid():
            argv = [sys.executable, "-I", "-S", str(USERS), *self._places(), "--", *argv]
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
        """What the VM's other users must reach: its disk and memory, and what it runs."""
        links = (self._root / "dev/shm", self._root / "opt/outlast")
        places = (self._root, *(link for link in links if link.exists()), sys.executable, USERS)
        return [str(place) for place in places]

    def _attributes(self) -> dict[str, str]:
        """The VM's attributes, from its metadata server."""
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
        """Begins to go down: SIGTERM to everything, SIGKILL when the grace has passed."""
        if self._kill_at is not None:
            return
        self._term_at = time.monotonic() + delay_sec
        self._kill_at = self._term_at + grace_sec
        self._set_system_state("stopping")
        self._report("stopping")
        self._log("System is going down.")

    def _reap(self) -> bool:
        """Collects what has ended; True if no process is left."""
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
        self._log("Finished running startup scripts.")
        if self._script_folder:
            with suppress(OSError):
                (self._script_folder / "startup-script").unlink()
                self._script_folder.rmdir()

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
        with suppress(OSError):  # the cloud has gone; the end of our input will say so
            os.write(1, f"{word}\n".encode())

    def _log(self, text: str, who: str = "google_metadata_script_runner") -> None:
        os.write(self._serial, f"{who}[{os.getpid()}]: {text}\n".encode())


def _start_time(pid: int) -> int:
    """Of a process, in ticks; one that has gone counts as the first."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def main() -> None:
    """Runs as the VM's first process until the VM has gone."""
    os.umask(0o022)  # a machine's own, not that of the one who serves the local cloud
    Init(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])).run()


if __name__ == "__main__":
    main()
