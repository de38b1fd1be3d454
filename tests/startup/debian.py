"""A Debian as a VM has it on its disk, made by mmdebstrap once and kept outside the checkout, and
a machine that runs programs in it: its apt and dpkg are the real ones, its /run executes nothing.

The packages come from the mirror that this machine's own apt names.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CACHE = Path.home() / ".cache/outlast/debian"
PACKAGES = (
    "ca-certificates",
    "curl",
    "linux-image-cloud-amd64",
    "needrestart",
    "python3",
    "systemd-sysv",
    "unattended-upgrades",
)
"""What Google's image of Debian has of what the startup scripts meet."""

MAKE_SEC = 900
RUN_SEC = 300
TOOLS = ("mmdebstrap", "unshare", "chroot", "apt-get")

MACHINE = """
set -eu
root="$1" lower="$2"; shift 2
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$root/disk,workdir=$root/work" "$root/mounted"
cd "$root/mounted"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o nodev,noexec,nosuid,size="$RUN_SIZE",mode=0755 tmpfs run
mount -t tmpfs -o nosuid,nodev,size="$TMP_SIZE",mode=1777 tmpfs tmp
mkdir -p run/lock
exec chroot . "$@"
"""
"""As initramfs-tools and systemd mount them."""


class Unavailable(Exception):
    """Why there is no Debian here, in one sentence."""


def root(suite: str) -> Path:
    """The folder of a freshly made Debian of that suite, for reading only. Raises Unavailable."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is missing")
    if os.getuid() != 0:
        raise Unavailable("a root of another system needs root")
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    made = CACHE / f"{suite}-{key}"
    with _alone(CACHE / f"{suite}.lock"):
        if not made.is_dir():
            _make(suite, made)
    return made


def _make(suite: str, made: Path) -> None:
    mirror = _mirror()
    partial = made.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    done = subprocess.run(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=apt",
            f"--include={','.join(PACKAGES)}",
            suite,
            str(partial),
            f"deb {mirror} {suite} main",
        ],
        capture_output=True,
        text=True,
        timeout=MAKE_SEC,
    )
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise Unavailable(f"mmdebstrap {suite}: {(done.stderr.splitlines() or ['failed'])[-1]}")
    partial.rename(made)


def _mirror() -> str:
    """The Debian mirror of this machine's own apt."""
    wanted = ("Identifier: Packages", "Origin: Debian", "Label: Debian")
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted],
        capture_output=True,
        text=True,
    )
    if not (found := done.stdout.split()):
        raise Unavailable("this machine's apt names no mirror of Debian, or has no lists yet")
    return found[0]


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


class Machine:
    """A disk over a Debian, and programs that run on it as in a VM: alone among their processes,
    with this machine's network."""

    def __init__(self, lower: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._lower = lower
        self._folder = folder
        self.environment = environment
        self.disk = folder / "disk"
        """What this machine has written, by path."""
        for name in ("disk", "work", "mounted"):
            (folder / name).mkdir()
        self.write("/etc/resolv.conf", Path("/etc/resolv.conf").read_text())
        self.write("/etc/hosts", "127.0.0.1 localhost\n")
        # The real one would end more than this machine.
        self.write("/usr/local/bin/poweroff", "#!/bin/sh\n>/powered-off\n", mode=0o755)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.disk / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def run(
        self, *argv: str, run_size: str = "10%", tmp_size: str = "50%"
    ) -> "subprocess.CompletedProcess[str]":
        """A program's end; memory below /run and /tmp lasts as long as it."""
        return subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"),
                *("bash", "-c", MACHINE, "machine", str(self._folder), str(self._lower)),
                *("/usr/bin/env", "-i", "HOME=/root", "LANG=C.UTF-8"),
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                *(f"{name}={text}" for name, text in self.environment.items()),
                *argv,
            ],
            env={**os.environ, "RUN_SIZE": run_size, "TMP_SIZE": tmp_size},
            capture_output=True,
            text=True,
            timeout=RUN_SEC,
        )
