"""The benches themselves, small: they see what holds, and they see what does not."""

import json
import random
import sys
from pathlib import Path

import pytest

from bench import corruption_matrix, kill_matrix, zombie_matrix
from bench.peers import PeerSite
from bench.points import Point
from bench.sites import BenchError, Job
from outlast.base.exits import DONE, USAGE
from outlast.bucket.store import FolderStore, MemoryStore, Object

SMALL = ("--flags", "--epochs=2 --step-ms=1 --limit-rows=200", "--checkpoint-every", "4")


def test_a_killed_dummy_is_found_whole_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--trainer", "dummy", "--points", "2", "--seed", "5", "--where", "folder", *SMALL]
    assert kill_matrix.main([*arguments, "--json", str(tmp_path / "out.json")]) == DONE
    found = json.loads((tmp_path / "out.json").read_bytes())["verdicts"]["dummy"]
    assert [one["point"]["phase"] for one in found] == ["setup", "step"]
    assert all(one["hit"] and one["resumed"] and one["equal"] for one in found)
    assert "equal bytes %" in capsys.readouterr().out


def test_a_trainer_that_does_not_exist_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert kill_matrix.main(["--trainer", "digit"]) == USAGE
    assert "known are" in capsys.readouterr().err


def test_one_that_cannot_be_measured_takes_no_other_figures_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setitem(kill_matrix.peers.JOBS, "broken", (str(script), "step"))
    ours = ["--trainer", "dummy", "--points", "1", "--where", "folder", *SMALL]
    figures = tmp_path / "out.json"
    assert kill_matrix.main([*ours, "--peer", "broken", "--json", str(figures)]) == 69
    assert list(json.loads(figures.read_bytes())["verdicts"]) == ["dummy"]
    said = capsys.readouterr()
    assert "kill matrix: broken: " in said.err and "dummy" in said.out


@pytest.mark.parametrize("flag", ["--python", "--peer-python"])
def test_an_interpreter_and_a_folder_are_found_from_where_the_command_is_typed(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "venv").symlink_to(sys.prefix, target_is_directory=True)
    script = tmp_path / "peers" / "job.py"
    script.parent.mkdir()
    script.write_text(FORGETFUL)
    monkeypatch.setitem(kill_matrix.peers.JOBS, "job", (str(script), "step"))
    monkeypatch.chdir(tmp_path)
    what = ["--peer", "job"] if flag == "--peer-python" else ["--trainer", "dummy"]
    measured = [*what, "--points", "1", "--peer-points", "1", "--where", "folder", *SMALL]
    python = Path("venv/bin") / Path(sys.executable).name
    assert kill_matrix.main([*measured, flag, str(python), "--keep", "kept"]) == DONE
    # What does not exist is a sentence.
    assert kill_matrix.main([*measured, flag, "venv/bin/none"]) == 69
    assert f"{tmp_path / 'venv/bin/none'}: cannot be started" in capsys.readouterr().err


FORGETFUL = """
import json, pathlib, sys
import bench_probe
folder = pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "starts.jsonl", "a") as file:
    file.write('{"step": 0}\\n')
for step in range(1, 6):
    with bench_probe.phase("step"), open(folder / "rows.jsonl", "a") as rows:
        rows.write(json.dumps({"step": step}) + "\\n")
with bench_probe.phase("snapshot"):
    pass
with bench_probe.phase("final upload"):
    (folder / "final.json").write_text(json.dumps({"digest": str(len(list(folder.glob("*"))))}))
    bench_probe.time.sleep(5 if bench_probe.probe and bench_probe.probe.plan else 0)
"""


def test_a_job_that_starts_from_scratch_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import peers

    script = tmp_path / "peers" / "forgetful.py"
    script.parent.mkdir()
    # Restarted without the probe's folder on its path, as a peer's script may be.
    quiet = "import contextlib, types\ntry:\n  import bench_probe\nexcept ImportError:\n  "
    quiet += "bench_probe = types.SimpleNamespace(phase=lambda n: contextlib.nullcontext(), "
    quiet += "probe=None, time=__import__('time'))\n"
    script.write_text(quiet + FORGETFUL.replace("import bench_probe\n", ""))
    monkeypatch.setitem(peers.JOBS, "forgetful", (str(script), "step"))
    site = PeerSite("forgetful", kill_matrix.sys.executable, tmp_path / "runs")
    baseline = site.baseline()
    assert len(baseline.rows) == 5
    point = Point(0, "folder", "SIGKILL", "trainer", "final upload", 1, 0.0)
    verdict = site.inject(point, baseline)
    assert verdict.hit and not verdict.resumed
    assert (verdict.duplicate, verdict.missing, verdict.lost) == (5, 0, 5)


class Lax(MemoryStore):
    """Takes stale writes."""

    def put(self, path: str, data, *, if_generation_match: int | None = None) -> Object:
        return super().put(path, data)


def test_zombies_are_not_counted_over_a_store_that_cannot_fence(tmp_path: Path) -> None:
    zombie_matrix.prove_stale_writes_are_refused(FolderStore(tmp_path / "probe"))
    with pytest.raises(BenchError, match="accepted a stale creation"):
        zombie_matrix.prove_stale_writes_are_refused(Lax())


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> corruption_matrix.Subject:
    """A real run, cut with several checkpoints."""
    folder = tmp_path_factory.mktemp("corruption")
    with pytest.MonkeyPatch.context() as patch:
        job = Job("dummy", ("--epochs=24",), "60")
        patch.setattr(corruption_matrix, "JOB", job)
        made, digest = corruption_matrix.make_subject(folder, random.Random(2))
    assert digest and made.old_heads
    return made


def test_damage_to_every_kind_of_object_is_reported(subject: corruption_matrix.Subject) -> None:
    found: dict[str, set[str]] = {}
    for index, (kind, damage, data) in enumerate(corruption_matrix.cases(subject)):
        if damage.how in ("bit flip", "missing", "garbage", "swapped manifest"):
            seen = corruption_matrix.judge_case(subject, index, damage, data)
            found.setdefault(kind, set()).add(seen.fate)
    assert found.pop("HEAD") == {"refused"}
    assert set(found) >= {"MANIFEST.json", "state.json"}
    assert all(fates == {"recovered"} for fates in found.values())


def test_a_restore_that_does_not_hash_would_be_seen(
    subject: corruption_matrix.Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: bytes that are handed on unchecked are SILENT, not harmless."""
    newest = subject.head.chain[-1]

    def blind(folder: Path, into: Path):
        store = FolderStore(folder)
        for item in store.list(newest.path):
            if not item.path.endswith("MANIFEST.json"):
                target = into / item.path.removeprefix(newest.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(store.get(item.path)[0])
        restored = corruption_matrix.Restored(into, newest.step, newest, ())
        return "untouched", restored, []

    monkeypatch.setattr(corruption_matrix, "restore", blind)
    path = newest.path + "arrays.bin"
    data = corruption_matrix.flip(subject.store.get(path)[0], subject.dice)
    damage = corruption_matrix.Damage(path, "bit flip", "store")
    assert corruption_matrix.judge_case(subject, 9999, damage, data).fate == "SILENT"
