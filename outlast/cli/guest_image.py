"""Guest images: what the local cloud's VMs boot from with `--guest vm`.

    python -m outlast.cli.guest_image [--debian 12|13]    what `make guest-image` runs; as root
    prepare(FILE)                                         `--guest-image FILE`: another cloud image

A guest image is a folder with a disk, the kernel and the initial RAM disk of the system on it, and
`guest.json`. QEMU boots the kernel itself, so that the local cloud can pass a VM's environment on
its command line. Folders are in the cache (outlast/cli/parts.py), named by what they were made
from; each appears complete or not at all.

Two are made for a release of Debian: a stock system with Google's guest agent, as the images of
debian-cloud have it, and `outlast`, the same with the supervisor's packages baked in, which is what
the family `outlast` of the local cloud's project stands for.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outlast.cli.parts import (
    REQUIREMENTS,
    Progress,
    SetupError,
    cache_dir,
    digest,
    draft_beside,
    lock,
    made_whole,
    run,
)

RELEASES = {"12": "bookworm", "13": "trixie"}
"""Debian's code name by its release."""
DEFAULT_RELEASE = "13"
FORMAT = 1
"""Part of the name of every image; raise it when the steps below make another one."""
BAKED = "outlast"
RECORD = "guest.json"
PACKAGES = (
    *("linux-image-cloud-amd64", "systemd-sysv", "systemd-resolved", "dbus", "iproute2"),
    *("ca-certificates", "curl", "python3", "sudo", "openssh-server", "unattended-upgrades"),
    "google-guest-agent",
)
"""What the images of debian-cloud have and a guest of Outlast may meet."""
RUN_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "socat": "socat",
}
"""Programs that run a VM, and Debian's package of each."""
BUILD_TOOLS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "chroot": "coreutils"}
FILE_TOOLS = {"debugfs": "e2fsprogs", "sfdisk": "fdisk"}
PASSED = frozenset(
    (
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT"),
        *("PIP_RETRIES", "PIP_CERT"),
    )
)
"""Variables of the operator's shell that the guest gets, for pip."""
LEAST_FREE_GB = 4
DISK_SIZE = "10G"
"""As debian-cloud's images."""
MIRROR = "http://deb.debian.org/debian"
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
X86_ROOT = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
X86_64 = 62
"""`e_machine` of an ELF file for x86-64."""
MACHINES = {40: "Arm", 183: "Arm", 3: "32-bit x86", 243: "RISC-V"}

HOSTS = """\
127.0.0.1 localhost
169.254.169.254 metadata.google.internal metadata
"""
FILES = {
    "etc/hosts": HOSTS,
    "etc/fstab": "/dev/vda / ext4 errors=remount-ro,x-systemd.growfs 0 1\n",
    "etc/systemd/network/20-wired.network": (
        "[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    ),
    # As on Compute Engine, where the serial port shows what the startup script says.
    "etc/systemd/journald.conf.d/console.conf": (
        "[Journal]\nForwardToConsole=yes\nTTYPath=/dev/ttyS0\nMaxLevelConsole=info\n"
    ),
}
ENABLED = (
    *("systemd-networkd", "systemd-resolved", "google-guest-agent"),
    *("google-startup-scripts", "google-shutdown-scripts"),
)
QUIETED = ("unattended-upgrades.service", "apt-daily.timer", "apt-daily-upgrade.timer")
"""Units that a bake turns off (bake::keep_still)."""


@dataclass(frozen=True)
class Source:
    """What the images of a release are made from."""

    release: str
    mirror: str
    certificates: tuple[Path, ...]
    """Authorities that the guest trusts besides Debian's: those that this machine's administrator
    has added."""

    @classmethod
    def of_machine(cls, release: str) -> "Source":
        """What this machine uses itself: the mirror of `GUEST_MIRROR` or of apt, and the
        certificates of its administrator."""
        mirror = os.environ.get("GUEST_MIRROR") or _mirror_of_apt() or MIRROR
        added = Path("/usr/local/share/ca-certificates")
        certificates = tuple(sorted(added.rglob("*.crt"))) if added.is_dir() else ()
        return cls(release, mirror, certificates)

    def folder(self, name: str) -> Path:
        """The folder of the image `stock` or `outlast`."""
        files = [*self.certificates]
        if name == BAKED:
            files += [REQUIREMENTS / "vm.txt", REQUIREMENTS / "pip.txt"]
        made_of = [FORMAT, self.release, self.mirror, PACKAGES, FILES, ENABLED, QUIETED, DISK_SIZE]
        found = digest(*files, salt=json.dumps(made_of))
        return cache_dir() / "guest" / f"debian-{self.release}-{name}-{found}"


def families(release: str = DEFAULT_RELEASE) -> dict[str, Path]:
    """The guest images that were made here, by their project and family. Raises SetupError if
    those of the release were not, or if QEMU is missing."""
    check_tools(RUN_TOOLS)
    source = Source.of_machine(release)
    found = {f"debian-cloud/debian-{each}": _stock(each) for each in RELEASES}
    images = {family: folder for family, folder in found.items() if folder.is_dir()}
    baked = source.folder(BAKED)
    if not baked.is_dir() or f"debian-cloud/debian-{release}" not in images:
        raise SetupError(
            f"guest image of Debian {release}: is not made here; run `make guest-image` as root, "
            "or name a cloud image with --guest-image."
        )
    return {**images, f"outlast-rehearsal/{BAKED}": baked}


def families_of(file: Path) -> dict[str, Path]:
    """The families of `families` and of Ubuntu, all with the image of this file. Raises
    SetupError."""
    folder = prepare(file)
    names = [f"debian-cloud/debian-{release}" for release in RELEASES]
    names += ["ubuntu-os-cloud/ubuntu-2404-lts-amd64", f"outlast-rehearsal/{BAKED}"]
    return dict.fromkeys(names, folder)


def _stock(release: str) -> Path:
    return Source.of_machine(release).folder("stock")


def operator_variables() -> dict[str, str]:
    """What this shell says about package indexes and proxies, for the guest's pip and apt."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    }


def check_tools(tools: Mapping[str, str]) -> None:
    """Raises SetupError with the packages of the programs that are missing."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        packages = " ".join(sorted({tools[tool] for tool in missing}))
        raise SetupError(
            f"{', '.join(missing)}: not on PATH; install {packages} with your system's package "
            "manager."
        )


def _mirror_of_apt() -> str:
    """The first mirror of Debian in apt's sources, where this machine runs Debian."""
    try:
        if "\nID=debian" not in "\n" + Path("/etc/os-release").read_text():
            return ""
        files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
        for file in files:
            text = file.read_text() if file.is_file() else ""
            found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+/debian)/?(?:\s|$)", text, re.M)
            if found:
                return found[1]
    except OSError:
        pass
    return ""


# ------------------------------------------------------------------------------- images of Debian


def make(release: str, progress: Progress) -> dict[str, Path]:
    """Makes the images of a release that are missing; returns the folders by name. Raises
    SetupError."""
    source = Source.of_machine(release)
    folders = {name: source.folder(name) for name in ("stock", BAKED)}
    with lock("guest", progress):
        if not all(folder.is_dir() for folder in folders.values()):
            _check_machine()
            with _system(source, progress) as root:
                _pack(root, folders["stock"], f"debian-{release}", progress)
                _bake(root, progress)
                _pack(root, folders[BAKED], f"debian-{release}", progress)
    return folders


def _check_machine() -> None:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"{platform.system()} on {platform.machine()}: guest images are made on Linux on "
            "x86-64 only."
        )
    check_tools({**RUN_TOOLS, **BUILD_TOOLS})
    if os.geteuid():
        raise SetupError("make guest-image: must run as root, as it installs a system in a folder.")
    cache_dir().mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(cache_dir()).free / 1e9
    if free_gb < LEAST_FREE_GB:
        raise SetupError(
            f"{cache_dir()}: {free_gb:.1f} GB free, must be {LEAST_FREE_GB} GB for guest images; "
            "free some, or name another folder in OUTLAST_CACHE."
        )


@contextmanager
def _system(source: Source, progress: Progress) -> Iterator[Path]:
    """A stock system in a folder, which is deleted at the end."""
    name = RELEASES[source.release]
    with draft_beside(source.folder("stock")) as folder:
        root = folder / "root"
        packages = f"--include={','.join(PACKAGES)}"
        command = ["mmdebstrap", "--mode=root", "--variant=important", packages, name, str(root)]
        line = f"deb {source.mirror} {name} main"
        run([*command, line], progress, f"guest image: installing Debian {source.release}")
        root.chmod(0o755)
        for path, text in FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        trusted = root / "usr/local/share/ca-certificates"
        trusted.mkdir(parents=True, exist_ok=True)
        for file in source.certificates:
            shutil.copyfile(file, trusted / file.name)
        _within(root, ["update-ca-certificates"], progress)
        _within(root, ["systemctl", "enable", *ENABLED], progress)
        (root / "etc/machine-id").write_text("")
        yield root


def _bake(root: Path, progress: Progress) -> None:
    """Installs the supervisor's packages as a bake does. pip runs in the system, because a
    requirement may depend on its Python; it uses the package index of this shell."""
    folder, wheels, own = root / "opt/outlast", root / "tmp/wheels", "/opt/outlast/venv/bin/python"
    folder.mkdir(parents=True)
    wheels.mkdir()
    for file in (REQUIREMENTS / "vm.txt", *REQUIREMENTS.glob("pip-*.whl")):
        shutil.copy(file, wheels)
    _within(root, ["python3", "-m", "venv", "--without-pip", "/opt/outlast/venv"], progress)
    # The image's /tmp: only this build is in it.
    wheel = f"/tmp/wheels/{next(wheels.glob('pip-*.whl')).name}"  # noqa: S108
    install = [own, f"{wheel}/pip", "install", "--quiet", "--disable-pip-version-check"]
    _within(root, [*install, "--no-index", "--no-deps", wheel], progress)
    names = root / "run/systemd/resolve/stub-resolv.conf"  # what /etc/resolv.conf leads to
    names.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile("/etc/resolv.conf", names)
    install += ["--require-hashes", "-r", "/tmp/wheels/vm.txt"]  # noqa: S108
    _within(root, install, progress, "guest image: installing the supervisor's packages")
    _within(root, ["systemctl", "disable", *QUIETED], progress)
    shutil.rmtree(root / "run/systemd")
    shutil.rmtree(wheels)
    run(["chmod", "-R", "a+rX,a-w", str(folder)], progress, "guest image: sealing")


def _within(root: Path, command: Sequence[str], progress: Progress, what: str = "") -> None:
    """Runs a command in the system's root."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        **operator_variables(),
    }
    text = what or f"guest image: {command[0]}"
    run(["chroot", str(root), *command], progress, text, env=environment)


def _pack(root: Path, target: Path, system: str, progress: Progress) -> None:
    """Makes the disk of an image from the system's root."""
    for kept in ("etc/.updated", "var/.updated"):  # or systemd updates its caches at each boot
        (root / kept).touch()
    with made_whole(target) as draft:
        disk = ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(draft / "disk.raw"), DISK_SIZE]
        run(disk, progress, f"guest image: {target.name}")
        for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd.img", "initrd.img-*")):
            shutil.copyfile(max((root / "boot").glob(pattern)), draft / name)
        _record(draft, system, "disk.raw", "/dev/vda")


def _record(folder: Path, system: str, disk: str, root: str) -> None:
    record = {"system": system, "disk": disk, "format": "raw", "root": root}
    (folder / RECORD).write_text(json.dumps(record))


# ------------------------------------------------------------------------- another cloud image


def prepare(file: Path) -> Path:
    """The guest image of a cloud image's file, raw or qcow2: a copy of its disk, to which the name
    of the metadata server is added, with its kernel. Needs no root. Raises SetupError unless the
    file is a disk with a system for x86-64 and Google's guest agent."""
    what = f"--guest-image {file}"
    check_tools(RUN_TOOLS)
    if file.is_dir() and (file / RECORD).is_file():
        return file
    if not file.is_file():
        raise SetupError(f"{what}: must be a file with a cloud image, raw or qcow2.")
    check_tools(FILE_TOOLS)
    found = file.stat()
    key = digest(salt=f"{FORMAT} {file.resolve()} {found.st_size} {found.st_mtime_ns}")
    target = cache_dir() / "guest" / f"file-{key}"
    progress = Progress()
    with lock("guest", progress):
        if not target.is_dir():
            with made_whole(target) as draft:
                _unpack(file, draft, what, progress)
    return target


def _unpack(file: Path, folder: Path, what: str, progress: Progress) -> None:
    disk = folder / "disk.raw"
    convert = ["qemu-img", "convert", "-O", "raw", str(file), str(disk)]
    run(convert, progress, f"guest image: copying {file.name}")
    partitions = _partitions(disk)
    opened = [_FileSystem(disk, start, number) for number, start in partitions]
    root = next((each for each in opened if each.has("/etc/os-release")), None)
    if root is None:
        raise SetupError(f"{what}: has no ext4 partition with a system (/etc/os-release).")
    release = root.read("/usr/lib/os-release") or root.read("/etc/os-release")
    machine = int.from_bytes(_elf(root, folder)[18:20], "little")
    if machine != X86_64:
        name = MACHINES.get(machine, f"another processor ({machine})")
        raise SetupError(f"{what}: is a system for {name}; must be one for x86-64.")
    if not root.has("/usr/bin/google_metadata_script_runner"):
        raise SetupError(
            f"{what}: has no Google guest agent (google_metadata_script_runner), which runs the "
            "startup script; choose an image for Compute Engine."
        )
    for name, prefix in (("vmlinuz", "vmlinuz-"), ("initrd.img", "initrd.img-")):
        for each in opened:
            for path in ("/boot", "/"):
                names = [entry for entry in each.list(path) if entry.startswith(prefix)]
                if names and not (folder / name).exists():
                    each.dump(f"{path.rstrip('/')}/{max(names)}", folder / name)
        if not (folder / name).exists():
            raise SetupError(f"{what}: has no {prefix}* in /boot; choose another image.")
    text = root.read("/etc/hosts")
    if "metadata.google.internal" not in text:
        root.write("/etc/hosts", text + HOSTS.splitlines()[1] + "\n", folder)
    system = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', release, re.M))
    number = f"/dev/vda{root.number}" if root.number else "/dev/vda"
    _record(folder, f"{system.get('ID')}-{system.get('VERSION_ID')}", disk.name, number)


def _elf(root: "_FileSystem", folder: Path) -> bytes:
    """The start of a program of the system."""
    draft = folder / "program"
    root.dump("/usr/bin/bash", draft)
    found = draft.read_bytes()[:64] if draft.exists() else b""
    draft.unlink(missing_ok=True)
    return found.ljust(64, b"\0")


def _partitions(disk: Path) -> list[tuple[int, int]]:
    """The number and first byte of each partition; a disk without a table counts as one with number
    0."""
    done = subprocess.run(["sfdisk", "--json", str(disk)], capture_output=True, text=True)
    try:
        table = json.loads(done.stdout)["partitiontable"]
        sector = int(table.get("sectorsize", 512))
        return [
            (int(found[1]), int(each["start"]) * sector)
            for each in table["partitions"]
            if (found := re.search(r"(\d+)$", each["node"]))
        ]
    except (ValueError, KeyError):
        return [(0, 0)]


class _FileSystem:
    """An ext4 file system in a disk's file, read and written without mounting it."""

    def __init__(self, disk: Path, start: int, number: int) -> None:
        self._name = f"{disk}?offset={start}" if start else str(disk)
        self.number = number

    def has(self, path: str) -> bool:
        """Whether a path exists."""
        return "Inode:" in self._ask(f"stat {path}")

    def read(self, path: str) -> str:
        """The text of a file; empty if it does not exist."""
        return self._ask(f"cat {path}")

    def list(self, path: str) -> "list[str]":
        """The names in a folder."""
        lines = (line.split("/") for line in self._ask(f"ls -p {path}").splitlines())
        return [parts[5] for parts in lines if len(parts) > 6]

    def dump(self, path: str, target: Path) -> None:
        """Copies a file out."""
        self._ask(f"dump {path} {target}")

    def write(self, path: str, text: str, folder: Path) -> None:
        """Replaces a file."""
        draft = folder / "written"
        draft.write_text(text)
        self._ask(f"rm {path}", write=True)
        self._ask(f"write {draft} {path}", write=True)
        draft.unlink()

    def _ask(self, request: str, *, write: bool = False) -> str:
        command = ["debugfs", *(["-w"] if write else []), "-R", request, self._name]
        done = subprocess.run(command, capture_output=True)
        return done.stdout.decode(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the images; returns the exit code."""
    parser = argparse.ArgumentParser(prog="guest-image", description=__doc__)
    parser.add_argument("--debian", choices=sorted(RELEASES), default=DEFAULT_RELEASE)
    options = parser.parse_args(argv)
    try:
        for name, folder in make(options.debian, Progress()).items():
            print(f"guest image of Debian {options.debian}, {name}: {folder}", flush=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"guest image: {error.strerror}{where}; nothing was kept.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
