"""The trainer's own user: what it owns, what it must not reach, and how this is ensured.

The supervisor is root. With `outlast:trainerUser: own` its trainer is a user without any right on
the VM: it writes to its own folders, and the kernel gives it no way to the metadata server, where
every process of a VM may ask for the token of the VM's service account. DNS, which the same address
answers, stays open.

    TrainerUserRefused this machine cannot run a trainer in this way; one sentence for people
"""

import contextlib
import ctypes
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.supervisor import no_new_privs

UID = 61000
"""Id of the user and its group. systemd leaves it free: it assigns 61184 to 65519 itself."""
NAME = "outlast-trainer"
METADATA_ADDRESSES = {"-4": "169.254.169.254", "-6": "fd20:ce::254"}
DNS_PRIORITY, PROHIBIT_PRIORITY = "60", "61"
"""Priorities of the rules, before those of any network manager."""
TOOL_SEC = 30.0
ASK_SEC = 5.0

_ASK = """
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
request = urllib.request.Request(sys.argv[1], headers={"Metadata-Flavor": "Google"})
try:
    opener.open(request, timeout=float(sys.argv[2])).close()
except urllib.error.HTTPError as error:
    print("answered", error.code)
except Exception as error:
    print("refused", getattr(error, "reason", error))
else:
    print("answered", 200)
"""


class TrainerUserRefused(Exception):
    """This machine cannot run the trainer as its own user."""


@dataclass(frozen=True)
class TrainerUser:
    """A user without rights that a trainer runs as; the supervisor must be root."""

    home: Path
    uid: int = UID

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell programs their user."""
        return {"HOME": str(self.home), "USER": NAME, "LOGNAME": NAME}

    def make(self, folder: Path) -> None:
        """Creates a folder of the trainer's; an existing one that another user owns is emptied
        first. The folders above it stay the supervisor's."""
        with contextlib.suppress(FileNotFoundError):
            if folder.lstat().st_uid != self.uid:
                folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.give(folder)

    def give(self, path: Path) -> None:
        """Gives one file or folder to the trainer, but not its content."""
        os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def hand_over(self, folder: Path) -> None:
        """Gives a folder of the supervisor's to the trainer, with its content."""
        # A folder comes after its content: once the trainer owns it, it may replace the content.
        for path, _, files in os.walk(folder, topdown=False):
            for name in files:
                self.give(Path(path, name))
            self.give(Path(path))

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command line for a command of the user's, so that it can gain no rights. The caller
        starts it as ``uid``."""
        return [sys.executable, "-I", "-S", no_new_privs.__file__, *argv]

    @contextlib.contextmanager
    def sight(self) -> Iterator[None]:
        """Lets this thread open only the files that the user may open. It must not create sockets
        inside: they would be the user's, and blocked like the user's own."""
        libc = ctypes.CDLL(None)
        libc.setfsgid(self.uid)
        libc.setfsuid(self.uid)
        try:
            yield
        finally:
            libc.setfsuid(0)
            libc.setfsgid(0)

    def prepare(self, metadata_url: str) -> None:
        """Creates the system's user, blocks its way to the metadata server, and checks that it is
        blocked. ``metadata_url``: an address of that server that answers. Raises
        TrainerUserRefused."""
        os.setgroups([])  # `sight` keeps this process's groups, and the user has none
        self._make_known()
        # Creates the devices for which CUDA calls a set-user-ID program, which cannot help this
        # user.
        if shutil.which("nvidia-modprobe"):
            _run("nvidia-modprobe", "-u", "-c=0")
        self._cut_off()
        self._try(metadata_url)
        self.make(self.home)

    def _make_known(self) -> None:
        """Gives the user a name, which some programs need (ssh)."""
        try:
            known = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            options = ["--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin"]
            _run("useradd", *options, f"--uid={self.uid}", f"--home-dir={self.home}", NAME)
            return
        if known != NAME:
            raise TrainerUserRefused(
                f"user id {self.uid}: belongs to {known} on this image, must be free for the"
                " trainer's user; remove that user from the image, or set outlast:trainerUser to"
                " root"
            )

    def _cut_off(self) -> None:
        for family, address in METADATA_ADDRESSES.items():
            if family == "-6" and not _has_ipv6():
                continue
            whose = ["protocol", "kernel", "uidrange", f"{self.uid}-{self.uid}", "to", address]
            rules = (
                ["pref", DNS_PRIORITY, *whose, "ipproto", "tcp", "dport", "53", "lookup", "main"],
                ["prohibit", "pref", PROHIBIT_PRIORITY, *whose, "ipproto", "tcp"],
            )
            for rule in rules:
                said = _run("ip", family, "rule", "add", *rule)
                if said and "File exists" not in said:
                    raise TrainerUserRefused(
                        f"trainer's user {self.uid}: cannot be cut off from the metadata server"
                        f" (ip rule: {said}); choose an image with iproute2, or set"
                        " outlast:trainerUser to root"
                    )

    def _try(self, metadata_url: str) -> None:
        argv = [sys.executable, "-I", "-S", "-c", _ASK, metadata_url, str(ASK_SEC)]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TOOL_SEC,
                cwd="/",
                check=False,
                user=self.uid,
                group=self.uid,
                extra_groups=[],
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TrainerUserRefused(
                f"trainer's user {self.uid}: cannot run {sys.executable} ({error}); let every user"
                " run it, or set outlast:trainerUser to root"
            ) from None
        said = done.stdout.strip()
        if not said.startswith("refused"):
            what = said or f"no result, exit code {done.returncode}: {done.stderr.strip()[-200:]}"
            raise TrainerUserRefused(
                f"trainer's user {self.uid}: must get no answer from the metadata server, but got"
                f" one ({what}); set outlast:trainerUser to root to train anyway"
            )


def _has_ipv6() -> bool:
    try:
        return bool(Path("/proc/net/if_inet6").read_text().strip())
    except OSError:
        return False


def _run(*argv: str) -> str:
    """Runs a tool; returns its error, empty if it succeeded."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_SEC,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
