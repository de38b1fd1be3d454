"""Wheels from the bucket: only those that the locked file or HEAD names."""

import copy
import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from outlast.base.retry import Patience
from outlast.bucket.head import Head
from outlast.bucket.store import MemoryStore
from outlast.supervisor import kept_wheels, subprocesses
from outlast.supervisor.environment import Builder, EnvironmentRefused, layers
from tests.log_lines import log_lines
from tests.stores import FakeClock

GOOD, EVIL = b"the wheel that was locked", b"another wheel of the same name"
SHA = hashlib.sha256(GOOD).hexdigest()
WHEEL = "harmless-1.0-py3-none-any.whl"


class Recorded:
    """As HEAD keeps it, for all machines of a run."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def digest(self, key: str) -> str | None:
        return self.kept.get(key)

    def keep(self, key: str, digest: str) -> None:
        self.kept.setdefault(key, digest)


class World:
    """A bucket, a run, and an index whose wheel is ``index``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.recorded, self.said = MemoryStore(), Recorded(), log_lines()
        self.index: bytes | None = GOOD
        self.installed: list[tuple[list[str], str]] = []
        self._folder, self._machines = folder, 0
        monkeypatch.setattr(subprocesses, "run", self._run)

    def _run(self, argv: list[str], **given: Any) -> subprocesses.Done:
        if "venv" in argv:
            (Path(argv[-1]) / "bin").mkdir(parents=True)
        elif "wheel" in argv:
            (into,) = [w.partition("=")[2] for w in argv if w.startswith("--wheel-dir=")]
            if self.index is None:
                return subprocesses.Done(1, b"No matching distribution found for harmless")
            Path(into, WHEEL).write_bytes(self.index)
        elif "install" in argv and "--requirement" in argv:
            self.installed.append((argv, Path(argv[argv.index("--requirement") + 1]).read_text()))
        return subprocesses.Done(0, b"")

    def asked(self, text: str) -> Path:
        need = self._folder / "asked" / "requirements.txt"
        need.parent.mkdir(exist_ok=True)
        need.write_text(text)
        return need

    def machine(self, need: Path, home: Path | None = None) -> None:
        """One boot; a fresh disk unless ``home`` is given."""
        self._machines += 1
        home = home or self._folder / f"home-{self._machines}"
        log = self._folder / "pip.log"
        patience = Patience(FakeClock())
        builder = Builder(home, self.store, "e/", log, patience, recorded=self.recorded)
        builder.ensure(need)

    def put(self, need: Path, files: dict[str, bytes]) -> None:
        """Someone writes the layer's zip into the bucket."""
        (layer,) = layers(need)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        self.store.put(f"e/{layer.key}.zip", packed.getvalue())

    @property
    def last(self) -> str:
        """The hash of the wheel that was installed last."""
        argv, text = self.installed[-1]
        assert "--require-hashes" in argv and "--no-index" in argv and "--no-deps" in argv
        return text.strip().rpartition("sha256:")[2]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


LOCKED = f"harmless==1.0 --hash=sha256:{SHA}\n"


def test_a_wheel_with_another_hash_than_the_lock_is_never_installed(world: World) -> None:
    need = world.asked(LOCKED)
    world.put(need, {WHEEL: EVIL})
    world.machine(need)
    assert world.last == SHA
    assert any("holds wheels whose hashes are not in the requirements" in one for one in world.said)


def test_the_locked_wheel_is_installed_from_the_bucket(world: World) -> None:
    need = world.asked(LOCKED)
    world.put(need, {WHEEL: GOOD})
    world.index = None
    world.machine(need)
    assert world.last == SHA


def test_another_wheel_beside_the_locked_one_is_refused(world: World) -> None:
    need = world.asked(LOCKED)
    world.put(need, {WHEEL: GOOD, "more-1.0-py3-none-any.whl": EVIL})
    world.index = None
    with pytest.raises(EnvironmentRefused, match="no package matches|no such|harmless"):
        world.machine(need)
    assert world.installed == []


def test_unlocked_wheels_are_recorded_once_and_changed_ones_refused_by_name(world: World) -> None:
    need = world.asked("harmless\n")
    world.machine(need)
    good = hashlib.sha256(GOOD).hexdigest()
    assert world.last == good and len(world.recorded.kept) == 1
    world.machine(need)
    assert world.last == good
    world.put(need, {WHEEL: EVIL})
    said = (
        "the bucket has other wheels of the requirements than this run started with .*outlast:rerun"
    )
    with pytest.raises(EnvironmentRefused, match=said):
        world.machine(need)
    assert len(world.installed) == 2


def test_an_index_with_changed_wheels_is_refused_by_name(world: World) -> None:
    need = world.asked("harmless\n")
    world.machine(need)
    for found in list(world.store.list("e/")):
        world.store.delete(found.path, generation=found.generation)
    world.machine(need)  # the same bytes again
    for found in list(world.store.list("e/")):
        world.store.delete(found.path, generation=found.generation)
    world.index = EVIL
    with pytest.raises(EnvironmentRefused, match="the index has other wheels of the requirements"):
        world.machine(need)


def test_wheels_on_the_disk_are_checked_in_the_same_way(world: World, tmp_path: Path) -> None:
    """A trainer is root on its VM, and the disk may outlive it."""
    for text in (LOCKED, "harmless\n"):
        need, home = world.asked(text), tmp_path / f"disk-{len(text)}"
        world.machine(need, home)
        shutil.rmtree(home / "user-venv")
        (wheel,) = (home / "wheels").glob(f"*/{WHEEL}")
        wheel.write_bytes(EVIL)
        world.machine(need, home)
        assert world.last == SHA and wheel.read_bytes() == GOOD


@pytest.mark.parametrize(
    "name",
    ["../x.whl", "/tmp/outlast-hostile.whl", "..\\x.whl", "a/b.whl", "x.py", "-r.whl", "x\n.whl"],
)
def test_a_kept_zip_holds_only_wheels_with_plain_names(
    world: World, tmp_path: Path, name: str
) -> None:
    need = world.asked("harmless\n")
    world.put(need, {name: EVIL})
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(EnvironmentRefused, match="may hold wheels only"):
        world.machine(need)
    assert not Path("/tmp/outlast-hostile.whl").exists()
    assert sorted(set(os.listdir(tmp_path)) - set(before)) in (["home-1"], ["home-1", "pip.log"])


@pytest.mark.parametrize("how", ["deflated", "overlapping"])
def test_a_kept_zip_that_expands_is_refused(world: World, tmp_path: Path, how: str) -> None:
    need = world.asked("harmless\n")
    (layer,) = layers(need)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(WHEEL, bytes(50_000_000) if how == "deflated" else b"x" * 100)
        if how == "overlapping":  # many names of the same stored bytes
            (first,) = archive.infolist()
            first.compress_type = zipfile.ZIP_STORED
            for number in range(200):
                other = copy.copy(first)
                other.filename = f"a{number}-1.0-py3-none-any.whl"
                other.file_size = 1_000_000
                archive.filelist.append(other)
    world.store.put(f"e/{layer.key}.zip", packed.getvalue())
    with pytest.raises(EnvironmentRefused, match=r"bytes, but \d+ when unpacked"):
        world.machine(need)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 5_000_000


def test_head_keeps_a_digest_once() -> None:
    from tests.bucket.test_hostile_records import head

    first = head().with_wheels("a" * 64, "1" * 64)
    assert first.with_wheels("a" * 64, "2" * 64) == first
    again = Head.from_json(first.with_wheels("b" * 64, "2" * 64).to_json())
    assert (again.wheels_of("a" * 64), again.wheels_of("b" * 64)) == ("1" * 64, "2" * 64)
    assert b"wheels" not in head().to_json()


def test_the_digest_is_of_names_and_bytes(tmp_path: Path) -> None:
    for name in ("b.whl", "a.whl"):
        (tmp_path / name).write_bytes(name.encode())
    lines = [
        f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a.whl", "b.whl")
    ]
    found = kept_wheels.digest_of(tmp_path.glob("*.whl"))
    assert found == hashlib.sha256("".join(lines).encode()).hexdigest()
