"""Finds out whether this machine runs QEMU's machines by KVM or has to emulate them.

/dev/kvm may be there, and open, and still run no guest: within another virtual machine, KVM's
emulation fails in the kernel's first instructions. Only a trial boot shows it."""

import os
import subprocess
import time
from pathlib import Path
from typing import Literal

Accelerator = Literal["kvm", "tcg"]

QEMU = "qemu-system-x86_64"
KVM = Path("/dev/kvm")
TRIAL_SEC = 1.0
"""Seconds of the trial boot in which a kernel under KVM says its version; it takes about 0.3."""
SIGN = b"Linux version"


def find(kernel: Path) -> tuple[Accelerator, str]:
    """The accelerator, and why it is not KVM if it is not. Boots the kernel for a second."""
    if not KVM.exists():
        return "tcg", f"{KVM} does not exist"
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "tcg", f"{KVM} may not be opened by this user"
    command = [QEMU, "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-no-reboot"]
    command += ["-display", "none", "-serial", "stdio", "-kernel", str(kernel)]
    command += ["-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as trial:
        try:
            return _judge(trial)
        finally:
            trial.kill()


def _judge(trial: "subprocess.Popen[bytes]") -> tuple[Accelerator, str]:
    assert trial.stdout
    os.set_blocking(trial.stdout.fileno(), False)
    said, deadline = b"", time.monotonic() + TRIAL_SEC
    while SIGN not in said and time.monotonic() < deadline:
        said += trial.stdout.read() or b""
        if b"internal error" in said or trial.poll() is not None:
            break
        time.sleep(0.02)
    if SIGN in said:
        return "kvm", ""
    errors = [line for line in said.decode(errors="replace").splitlines() if "rror" in line]
    why = errors[0].strip() if errors else f"no kernel started in {TRIAL_SEC:.0f} s"
    return "tcg", f"the trial boot failed: {why}"
