"""Bakes and boots in a real Debian: its own apt, dpkg and Python, and no systemd at work.

The metadata server and the bucket are those of the bats tests.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from outlast.spec import startup_script
from tests.startup import debian
from tests.startup.debian import Machine

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
SUITES = ("trixie", pytest.param("bookworm", marks=pytest.mark.long))
KERNELS = ("linux-image-", "linux-headers-")

HELD = """
import fcntl, subprocess, sys, time
files = [open(name, "w") for name in sys.argv[2].split(",")]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[1]))
"""
"""Has locks as apt takes them, for so many seconds."""


class Cloud:
    """The metadata server, and what the VM's attributes are."""

    def __init__(self, folder: Path, base: str) -> None:
        self.base = base
        self._folder = folder
        for name in ("objects", "metadata/instance/attributes", "metadata/project"):
            (folder / name).mkdir(parents=True)

    def attribute(self, key: str, text: str) -> None:
        (self._folder / "metadata/instance/attributes" / key).write_text(text)

    def value(self, key: str, text: str) -> None:
        (self._folder / "metadata/instance" / key).write_text(text)

    def put(self, name: str, data: bytes) -> None:
        (self._folder / "objects" / name.replace("/", "%2F")).write_bytes(data)

    def guest_attribute(self, key: str) -> str:
        """A guest attribute; empty if none was put."""
        file = self._folder / "guest" / key
        return file.read_text() if file.exists() else ""


@pytest.fixture(params=SUITES)
def system(request: pytest.FixtureRequest) -> Path:
    try:
        return debian.root(request.param)
    except debian.Unavailable as error:
        pytest.skip(f"no {request.param} here: {error}")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    port = tmp_path / "port"
    (tmp_path / "cloud").mkdir()
    server = subprocess.Popen([sys.executable, "-I", HERE / "cloud.py", tmp_path / "cloud", port])
    try:
        while not port.exists():
            assert server.poll() is None
        yield Cloud(tmp_path / "cloud", f"http://127.0.0.1:{port.read_text()}")
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def machine(system: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Machine]:
    folder = tmp_path / "machine"
    folder.mkdir()
    environment = {
        "METADATA_BASE": f"{cloud.base}/computeMetadata/v1",
        "STORAGE_EMULATOR_HOST": cloud.base,
        "OUTLAST_COMPUTE_ENDPOINT": f"{cloud.base}/compute/v1/",
        **{name: text for name, text in os.environ.items() if name.startswith("PIP_")},
    }
    made = Machine(system, folder, environment)
    yield made
    shutil.rmtree(folder)


def bake(machine: Machine, cloud: Cloud, script: str = "", **run: str) -> None:
    """A bake of a recipe with that script, to its end."""
    cloud.attribute("outlast-bake-recipe", "0123456789abcdef")
    cloud.attribute("outlast-bake-vm", encoded("# nothing\n"))
    if script:
        cloud.attribute("outlast-bake-script", encoded(script))
    # The VM waits to be stopped, which here is its end.
    machine.write(
        "/usr/local/bin/sleep", '#!/bin/sh\n[ "$1" = infinity ] || exec /bin/sleep "$@"\n'
    )
    (machine.disk / "usr/local/bin/sleep").chmod(0o755)
    machine.write("/startup-script", startup_script.read("bake.sh"), mode=0o755)
    done = machine.run("/startup-script", **run)
    assert cloud.guest_attribute("state") == "done", (
        cloud.guest_attribute("state"),
        cloud.guest_attribute("log"),
        done.stderr,
    )
    assert done.returncode == 0


def encoded(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


def test_a_bake_holds_the_kernel_that_is_installed(machine: Machine, cloud: Cloud) -> None:
    bake(machine, cloud)
    listed = machine.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n").stdout
    rows = [line.split() for line in listed.splitlines()]
    kernels = {name for status, name in rows if status == "installed" and name.startswith(KERNELS)}
    assert set(machine.run("apt-mark", "showhold").stdout.split()) == kernels != set()
    python = machine.disk / "opt/outlast/venv/bin/python"
    assert python.is_symlink() and (machine.disk / "opt/outlast/recipe").exists()


def test_a_recipes_script_runs_with_run_mounted_noexec(machine: Machine, cloud: Cloud) -> None:
    """Whatever it is written in, and with a lot to say."""
    script = """#!/usr/bin/python3
import os, pathlib, subprocess
assert "noexec" in pathlib.Path("/proc/mounts").read_text()
pathlib.Path("own").write_text("#!/bin/sh\\nexit 0\\n")
os.chmod("own", 0o755)
subprocess.run(["./own"], check=True)
print("x" * 4_000_000)
pathlib.Path(os.environ["OUTLAST_IMAGE"], "by-the-script").touch()
"""
    bake(machine, cloud, script, run_size="2m")
    assert (machine.disk / "opt/outlast/by-the-script").exists()
    left = [path.name for path in (machine.disk / "var/lib").glob("outlast*")]
    assert not left, "of the bake itself nothing is in the image"


def boot(
    machine: Machine,
    cloud: Cloud,
    before: str = "",
    more: Mapping[str, bytes] | None = None,
    **run: str,
) -> str:
    """The first boot of a VM whose supervisor is a stand-in, after a command; what was said.
    `more` are files of the bundle beside its own, by name."""
    bundle = machine.disk.parent / "bundle.zip"
    files = {
        str(path.relative_to(HERE / "bundle")): path.read_bytes()
        for path in sorted((HERE / "bundle").rglob("*.*"))
    }
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, data in {**files, **(more or {})}.items():
            archive.writestr(name, data)
    cloud.put("experiments/digits/bundles/bundle.zip", bundle.read_bytes())
    for key, text in {
        "bucket": "bucket",
        "prefix": "experiments/digits",
        "run": "run1",
        "resume": "0",
        "placement": "0",
        "timeouts": json.dumps({"backoff": 1, "iam_propagation": 5}),
        "bundle": "experiments/digits/bundles/bundle.zip",
        "bundle-sha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
    }.items():
        cloud.attribute(f"outlast-{key}", text)
    for key, text in {"id": "4711", "name": "digits-1", "zone": "projects/1/zones/a"}.items():
        cloud.value(key, text)
    machine.write("/act.py", "")
    machine.write("/startup-script", startup_script.read("boot.sh"), mode=0o755)
    machine.write("/held.py", HELD)
    done = machine.run("bash", "-c", f"{before}\nexec /startup-script", **run)
    assert done.returncode == 0, done.stderr
    assert (machine.disk / "seen.json").exists()
    return done.stderr


@pytest.mark.parametrize(
    "files", ["/var/lib/apt/lists/lock", "/var/lib/dpkg/lock-frontend,/var/lib/dpkg/lock"]
)
def test_a_first_boot_waits_for_apt(machine: Machine, cloud: Cloud, files: str) -> None:
    """Another apt has the lists, or dpkg, for longer than a few quick tries last."""
    said = boot(machine, cloud, f"coproc H {{ python3 /held.py 8 {files}; }}; read -r <&${{H[0]}}")
    assert "installing python3-venv" in said
    assert ("another process has the lock" in said) == ("lists" in files)


def wheel_of(name: str) -> tuple[str, bytes]:
    """A package that holds one module, with its file name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}.py", "x = 1\n")
        about = f"{name}-1.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{about}/WHEEL", tag)
        archive.writestr(f"{about}/RECORD", "")
    return f"{name}-1-py3-none-any.whl", buffer.getvalue()


def pin(file: str, data: bytes) -> bytes:
    name, version = file.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n".encode()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """An index of one package, its address; and the bundle's files: its pin, and pip's wheel."""
    (pip,) = (HERE.parent.parent / "requirements").glob("pip-*.whl")
    file, data = wheel_of("tiny")
    folder = tmp_path / "index" / "tiny"
    folder.mkdir(parents=True)
    (folder / file).write_bytes(data)
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{file}">{file}</a>')
    bundle = {
        f"requirements/{pip.name}": pip.read_bytes(),
        "requirements/vm.txt": pin(file, data),
    }
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    server = subprocess.Popen(
        [*command, "--directory", tmp_path / "index"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    said = re.search(r"port (\d+)", server.stdout.readline())
    assert said is not None
    try:
        yield f"http://127.0.0.1:{said[1]}", bundle
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_boot_needs_no_apt(
    system: Path,
    machine: Machine,
    cloud: Cloud,
    index: tuple[str, dict[str, bytes]],
    tmp_path: Path,
) -> None:
    """The first asks the index for its packages; a later VM has them from the bucket."""
    address, bundle = index
    no_apt = "chmod 000 /usr/bin/apt-get; export PIP_INDEX_URL="
    said = boot(machine, cloud, no_apt + address, bundle)
    assert "python3-venv" not in said
    python = "/var/lib/outlast/venv/bin/python"
    probe = "import tiny; print(tiny.x)"
    assert machine.run(python, "-c", probe).stdout == "1\n"
    assert "pip" in machine.run("/var/lib/outlast/venv/bin/pip", "--version").stdout

    (tmp_path / "later").mkdir()
    later = Machine(system, tmp_path / "later", machine.environment)
    said = boot(later, cloud, no_apt + "http://127.0.0.1:1", bundle)
    assert "the packages are in the bucket already" in said and "python3-venv" not in said
    assert later.run(python, "-c", probe).stdout == "1\n"
    shutil.rmtree(tmp_path / "later")


def test_a_first_boot_completes_an_interrupted_installation(machine: Machine, cloud: Cloud) -> None:
    said = boot(machine, cloud, "mkdir -p /var/lib/dpkg/updates; : >/var/lib/dpkg/updates/0001")
    assert "an earlier installation was cut" in said


def test_a_first_boot_needs_no_room_in_memory(machine: Machine, cloud: Cloud) -> None:
    """/tmp is a few hundred kilobytes: less than pip itself is, unpacked."""
    boot(machine, cloud, tmp_size="300k", run_size="2m")
