"""Parent of a VM's QEMU: keeps all its processes below itself, and ends them with the cloud.

    qemu_parent.py LIFELINE FOLDER -- QEMU ARGUMENTS …

`qemu_guest` starts it as a separate script. QEMU gets its input and output, which speak QMP.
LIFELINE is the number of the end of a pipe that this process reads. When that pipe ends, the cloud
has ended, however it did: then QEMU is killed and FOLDER, with the VM's disk, deleted. QEMU starts
a helper for each connection of the guest to its metadata server; this process adopts them. Standard
library only, because it must start in milliseconds.

Exit code: that of QEMU; 128 and its signal's number after a signal."""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(argv: list[str]) -> int:
    """Runs QEMU to its end."""
    lifeline, folder, command = int(argv[0]), argv[1], argv[argv.index("--") + 1 :]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(lifeline, False)
    qemu = subprocess.Popen(
        command,
        restore_signals=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    # So that the cloud reads the end of QMP when QEMU ends, and QEMU has the input alone.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    ended = os.pidfd_open(qemu.pid)
    poller = select.poll()
    for descriptor in (lifeline, ended):
        poller.register(descriptor, select.POLLIN)
    orphaned = lifeline in {descriptor for descriptor, _ in poller.poll()}
    if orphaned:
        qemu.kill()
    code = qemu.wait()
    _end_helpers()
    if orphaned:
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_helpers() -> None:
    """Kills what is left below this process."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
