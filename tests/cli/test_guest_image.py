"""Guest images: what is missing is said in a sentence; a cloud image's file is taken apart."""

import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.base.folders import PACKAGE
from outlast.cli import guest_image
from outlast.cli.app import cli
from outlast.cli.commands.guests import guest_variables
from outlast.cli.errors import EngineError
from outlast.cli.guest_image import RELEASES, Source, families, families_of, main, prepare
from outlast.cli.parts import SetupError

ROOT = PACKAGE.parent
FILE_TOOLS = pytest.mark.skipif(
    not all(map(shutil.which, ("qemu-img", "mke2fs", "debugfs", "sfdisk"))),
    reason="qemu-utils, e2fsprogs and fdisk are not installed",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without images, and programs that are all there."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OUTLAST_CACHE", str(folder))
    return folder


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    assert main([]) == 1
    return capsys.readouterr().err


def test_missing_programs_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    assert sentence(capsys).startswith(
        "qemu-system-x86_64, qemu-img, socat, mmdebstrap, mke2fs, chroot: not on PATH; install "
        "coreutils e2fsprogs mmdebstrap qemu-system-x86 qemu-utils socat"
    )
    with pytest.raises(SetupError, match="qemu-img, socat: not on PATH"):
        families()
    (tmp_path / "guest.json").write_text("{}")
    with pytest.raises(SetupError, match="qemu-img, socat: not on PATH"):
        families_of(tmp_path)


@pytest.mark.usefixtures("tools")
def test_only_root_makes_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert sentence(capsys).startswith("make guest-image: must run as root")


@pytest.mark.usefixtures("tools")
def test_a_full_disk_is_said_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    left = shutil.disk_usage(cache.parent)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: left)
    assert f"{cache}: 1.0 GB free, must be 4 GB" in sentence(capsys)
    assert not (cache / "guest").exists()


@pytest.mark.usefixtures("tools")
def test_a_disk_that_fills_up_leaves_no_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device", "disk.raw")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(guest_image, "run", full)
    said = sentence(capsys)
    assert said == "guest image: No space left on device (disk.raw); nothing was kept.\n"
    assert not list((cache / "guest").iterdir())


@pytest.mark.usefixtures("tools")
def test_images_of_the_made_releases_are_found() -> None:
    with pytest.raises(SetupError, match="is not made here; run `make guest-image` as root"):
        families()
    for release in RELEASES:
        for name in ("stock", "outlast"):
            Source.of_machine(release).folder(name).mkdir(parents=True)
    found = families()
    assert found == {
        "debian-cloud/debian-12": Source.of_machine("12").folder("stock"),
        "debian-cloud/debian-13": Source.of_machine("13").folder("stock"),
        "outlast-rehearsal/outlast": Source.of_machine("13").folder("outlast"),
    }


def test_an_image_is_named_by_what_it_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUEST_MIRROR", "http://one.example/debian")
    one = Source.of_machine("13").folder("stock")
    monkeypatch.setenv("GUEST_MIRROR", "http://other.example/debian")
    assert Source.of_machine("13").folder("stock") != one
    assert Source.of_machine("13").folder("outlast") != Source.of_machine("13").folder("stock")


def disk(folder: Path, machine: int, *, agent: bool) -> Path:
    """A cloud image: a partition with the least of a system, for a processor of this number."""
    root = folder / "root"
    for name in ("boot", "etc", "usr/bin", "usr/lib"):
        (root / name).mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "boot/vmlinuz-6.8").write_text("kernel")
    (root / "boot/initrd.img-6.8").write_text("initrd")
    (root / "usr/bin/bash").write_bytes(b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little"))
    if agent:
        (root / "usr/bin/google_metadata_script_runner").touch()
    file, whole = folder / "file-system", folder / "disk.raw"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, file, "16M"], check=True)
    with whole.open("wb") as target:
        target.truncate(32 << 20)
    table = "label: gpt\nstart=2048, size=32768, type=linux\n"
    subprocess.run(["sfdisk", "-q", whole], input=table, text=True, check=True)
    with whole.open("r+b") as target:
        target.seek(2048 * 512)
        target.write(file.read_bytes())
    image = folder / "cloud.img"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", whole, image], check=True)
    return image


@FILE_TOOLS
def test_a_cloud_image_gets_its_kernel_out_and_the_metadata_servers_name_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("qemu-system-x86_64", "socat"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
    folder = prepare(disk(tmp_path, 62, agent=True))
    assert (folder / "vmlinuz").read_text() == "kernel"
    assert (folder / "initrd.img").read_text() == "initrd"
    record = (folder / "guest.json").read_text()
    assert '"system": "ubuntu-24.04"' in record and '"root": "/dev/vda1"' in record
    command = ["debugfs", "-R", "cat /etc/hosts", f"{folder / 'disk.raw'}?offset={2048 * 512}"]
    hosts = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert hosts == "127.0.0.1 localhost\n169.254.169.254 metadata.google.internal metadata\n"
    assert prepare(folder) == folder
    assert set(families_of(folder).values()) == {folder}


@FILE_TOOLS
@pytest.mark.parametrize(
    ("machine", "agent", "why"),
    [
        (183, True, "is a system for Arm; must be one for x86-64."),
        (62, False, "has no Google guest agent"),
    ],
)
def test_a_cloud_image_that_cannot_be_a_guest_is_refused(
    machine: int,
    agent: bool,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    monkeypatch.setattr(guest_image, "RUN_TOOLS", {})
    file = disk(tmp_path, machine, agent=agent)
    with pytest.raises(SetupError, match=why):
        prepare(file)
    assert not list((cache / "guest").iterdir())


def test_what_is_not_an_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_image, "RUN_TOOLS", {})
    with pytest.raises(SetupError, match="must be a file with a cloud image, raw or qcow2"):
        prepare(tmp_path / "none.qcow2")
    if all(map(shutil.which, ("qemu-img", "debugfs", "sfdisk"))):
        (tmp_path / "text").write_text("no disk\n" * 1000)
        with pytest.raises(SetupError, match=r"has no ext4 partition with a system"):
            prepare(tmp_path / "text")


@pytest.mark.parametrize(
    "words",
    [
        ["rehearse", "--guest", "vm"],
        ["cloud", "start", "--guest", "vm"],
        ["rehearse", "--guest-image", "none.img"],
    ],
)
def test_a_command_without_an_image_says_what_to_do(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guest_image, "RUN_TOOLS", {})
    monkeypatch.setattr(guest_image, "FILE_TOOLS", {})
    # A cloud that were started in spite of it would be below the project.
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code != 0
    assert isinstance(done.exception, EngineError), done.exception
    assert "make guest-image" in str(done.exception) or "must be a file" in str(done.exception)


def test_a_vm_gets_what_this_shell_says_about_indexes_and_proxies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("PIP_FIND_LINKS", "/a/folder/of/this/machine")
    found = guest_variables("vm")
    assert found["PIP_INDEX_URL"] == "https://index.example/simple"
    assert found["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert "PIP_FIND_LINKS" not in found
    assert guest_variables("process") == {}
