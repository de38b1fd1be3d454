"""``outlast train`` in a run folder, or on a checkpoint, that someone else prepared: nothing
outside the folder changes, and the command does not begin with what was planted."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from outlast.bucket.head import Checkpoint, Head
from outlast.bucket.layout import Manifest, ManifestObject
from outlast.bucket.store import open_store
from tests.loop import programs
from tests.loop.test_local import PROGRAM

TRAIN = """
import json, os, subprocess, sys, time
open(os.environ["CHECKPOINT_DIR"] + "/w", "w").write("1")
if not os.path.exists("again"):
    subprocess.check_call([sys.executable, "-m", "outlast.cli", "mark"])
    open("again", "w").close()
    sys.exit(3)
open(os.environ["RESULT_DIR"] + "/m", "w").write(json.__file__)
"""
PAYLOAD = b"import os; open(os.path.expanduser('~/PWNED'), 'w').close(); loads = dumps = None"


class Victim:
    """A home with a project in it whose training was cut after its first checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project, self.run = folder / "home", folder / "project", folder / "run"
        self.home.mkdir()
        (self.home / "lake").mkdir()
        (self.home / "lake/keep").write_text("precious")
        for name in ("checkpoint", "result", "places", "data"):
            (self.home / "lake" / name).mkdir()
            (self.home / "lake" / name / "thesis").write_text("years of work")
        self.project.mkdir()
        (self.project / "train.py").write_text(TRAIN)

    def train(self) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "outlast.cli", "train", "--run-dir", str(self.run)]
        argv += ["--", sys.executable, "train.py"]
        env = {**os.environ, "HOME": str(self.home), "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(
            argv, cwd=self.project, env=env, capture_output=True, text=True, timeout=100
        )

    def all_of_home(self) -> dict[str, str]:
        """Names of everything but the cache, with contents and where links lead."""
        found = {}
        for path in sorted(self.home.rglob("*")):
            name = str(path.relative_to(self.home))
            said = os.readlink(path) if path.is_symlink() else ""
            if not name.startswith(".cache"):
                found[name] = path.read_text() if path.is_file() else said
        return found

    def plant(self, notes: dict[str, Any], files: dict[str, bytes]) -> None:
        """Put a checkpoint before the run's own, as anyone with write access to its prefix can."""
        store = open_store(str(self.run))
        data, at = store.get("HEAD")
        head, folder, objects = Head.from_json(data), "t000001/s000000000009-evil0/", []
        whole = {"format": 1, "said": "mark", "ended": False, "learned": {}, "odd": {}}
        whole |= {"folders": {}, "links": {}, "modes": {}, "times": {}, **notes}
        for name, content in {"command.json": json.dumps(whole).encode(), **files}.items():
            put = store.put(folder + name, content)
            digest = blake3(content).hexdigest()
            objects.append(ManifestObject(name, put.size, put.crc32c, digest, put.generation))
        manifest = Manifest("", 1, 9, (), 0, tuple(objects)).to_json()
        put = store.put(f"{folder}MANIFEST.json", manifest)
        kept = Checkpoint(folder, put.generation, blake3(manifest).hexdigest(), 1, 9, ())
        news = replace(head, chain=(*head.chain, kept)).to_json()
        store.put("HEAD", news, if_generation_match=at.generation)


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.mark.parametrize("how", ["folders", "links", "a relative link", "files", "times"])
def test_a_planted_checkpoint_changes_nothing_outside_its_folder(victim: Victim, how: str) -> None:
    assert victim.train().returncode == 3
    planted = {
        "folders": {"folders": {"../../../home/made": [1, 1, 0o755]}},
        "links": {"links": {str(victim.project / "json.py"): "payload.py"}},
        "a relative link": {"links": {"../../../project/json.py": "../run/live/payload.py"}},
        "files": {"odd": {"../../../project/json.py": "000000"}},
        "times": {"times": {"../../../home/lake/keep": [1, 1]}},
    }[how]
    times = {"payload.py": [1, 1], **planted.pop("times", {})}
    victim.plant({"times": times, **planted}, {"files/payload.py": PAYLOAD, "odd/000000": PAYLOAD})
    before = victim.all_of_home()
    ended = victim.train()
    assert "Traceback" not in ended.stderr and "command.json" in ended.stderr, ended.stderr
    assert ended.returncode not in (0, 3)
    assert victim.all_of_home() == before
    assert sorted(path.name for path in victim.project.iterdir()) == ["again", "train.py"]


@pytest.mark.parametrize("life", [1, 2])
def test_a_working_folder_that_is_a_link_is_neither_emptied_nor_removed(
    victim: Victim, life: int
) -> None:
    if life == 2:
        assert victim.train().returncode == 3
    victim.run.mkdir(exist_ok=True)
    (victim.run / "live").symlink_to(victim.home / "lake")
    before = victim.all_of_home()
    ended = victim.train()
    assert ended.returncode == 64 and "live: is a link" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr and victim.all_of_home() == before


@pytest.mark.parametrize("name", ["command.tmp", "command.json"])
def test_notes_of_a_command_are_not_written_through_a_link(victim: Victim, name: str) -> None:
    victim.run.mkdir()
    (victim.run / name).symlink_to(victim.home / "lake/keep")
    assert victim.train().returncode == 3
    assert (victim.home / "lake/keep").read_text() == "precious"


@pytest.mark.parametrize("owner", ["folder/a/\0x", f"folder/a/{'y' * 300}", "folder/x/.."])
def test_a_stale_run_is_set_aside_under_a_name_that_it_does_not_choose(
    tmp_path: Path, owner: str
) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    argv = [sys.executable, "walk.py", str(tmp_path / "run")]
    assert programs.run(tmp_path, [*argv, "1.0"], FAIL_AT="1").returncode == 1
    store = open_store(str(tmp_path / "run"))
    head = {**json.loads(store.get("HEAD")[0]), "owner": owner, "chain": [], "lineage": []}
    store.put("HEAD", json.dumps(head).encode())
    again = programs.run(tmp_path, [*argv, "2.0"])
    assert again.returncode == 0, again.stderr
    (aside,) = tmp_path.glob("run.*")
    assert aside.name == f"run.{head['nonce'][:6]}"
