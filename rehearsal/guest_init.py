"""Process 1 of a local VM: runs the startup script, adopts every orphan, ends with the cloud.

    guest_init.py ROOT GRACE_SEC

Started by `rehearsal.guest` as a script of its own, in the guest's environment; standard library
only, for it must start in milliseconds. It reads one command a line on its standard input (`stop`,
`kill`) and on ROOT/run/initctl (`poweroff`, from the guest's own `poweroff`). It reports one word a
line on its standard output (`running`, `stopping`). It ends when no process of the VM is left. The
end of its input means that the cloud has gone: then it kills, and deletes the disk too.
"""

import ctypes
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
METADATA_TRIES = 50
METADATA_RETRY_SEC = 0.1
KILL_ROUND_SEC = 0.01

# From a `poweroff` to the first signal: the command, and who called it, may still return.
POWEROFF_DELAY_SEC = 0.1

# Names of folders outside a VM's own that belong to it.
TEMPORARY_PREFIX = "outlast-vm-"


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


def delete_disk(root: Path) -> None:
    """Deletes a VM's root folder, and what lies for it in memory and in /tmp."""
    import shutil

    with suppress(OSError):
        memory = Path(os.readlink(root / "dev/shm"))
        if memory.name.startswith(TEMPORARY_PREFIX):
            shutil.rmtree(memory, ignore_errors=True)
    real = root.resolve()
    if root.is_symlink():
        root.unlink()
    shutil.rmtree(real, ignore_errors=True)


class Init:
    """The one instance in this process."""

    def __init__(self, root: Path, grace_sec: float) -> None:
        self._root = root
        self._grace_sec = grace_sec
        self._script = 0
        """Pid of the startup script; 0 when it has ended or never was."""
        self._script_folder: Path | None = None
        self._term_at: float | None = None
        """When a stop under way begins with its signal, monotonic."""
        self._kill_at: float | None = None
        """When a stop under way becomes a kill, monotonic."""
        self._orphaned = False
        """Whether the cloud has gone, and nobody else clears away."""
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
            due = self._kill_at if self._term_at is None else self._term_at
            timeout_ms = None
            if due is not None:
                timeout_ms = max(0, int((due - time.monotonic()) * 1000) + 1)
            ready = {descriptor for descriptor, _ in poller.poll(timeout_ms)}
            if 0 in ready:
                commands = os.read(0, 4096).split()
                if not commands:
                    self._orphaned = True
                    break
                if b"kill" in commands:
                    break
                if b"stop" in commands:
                    self._stop(delay_sec=0.0)
            if requests in ready and b"poweroff" in os.read(requests, 4096).split():
                self._stop(delay_sec=POWEROFF_DELAY_SEC)
            if wakeup_read in ready:
                os.read(wakeup_read, 4096)
            empty = self._reap()
            now = time.monotonic()
            if self._term_at is not None and now >= self._term_at:
                self._term_at = None
                signal_all(descendants(os.getpid()), signal.SIGTERM)
            if self._kill_at is not None and (empty or now >= self._kill_at):
                break
        self._kill_all()
        if self._orphaned:
            delete_disk(self._root)

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
        self._script = os.posix_spawn(
            "/bin/bash",
            ["/bin/bash", "-c", str(file)],
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

    def _stop(self, delay_sec: float) -> None:
        """Begins to go down: SIGTERM to everything, SIGKILL when the grace has passed."""
        if self._kill_at is not None:
            return
        self._term_at = time.monotonic() + delay_sec
        self._kill_at = self._term_at + self._grace_sec
        self._set_system_state("stopping")
        self._report("stopping")
        self._log("System is going down.")

    def _reap(self) -> bool:
        """Collects what has ended; True where no process is left."""
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
            signal_all(descendants(os.getpid()), signal.SIGKILL)
            time.sleep(KILL_ROUND_SEC)

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

    def _log(self, text: str) -> None:
        os.write(self._serial, f"google_metadata_script_runner[{os.getpid()}]: {text}\n".encode())


def main() -> None:
    """Runs as the VM's first process until the VM has gone."""
    Init(Path(sys.argv[1]), float(sys.argv[2])).run()


if __name__ == "__main__":
    main()
