"""A command's checkpoint folder: which files are copied, and when; two saves never mix."""

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from outlast.loop.command import folder as folders
from outlast.loop.command.flow import FlowWatch
from outlast.loop.command.folder import Changed, Copier
from outlast.loop.command.listing import NO_FLOW, Stillness, look
from outlast.loop.command.results import tidy_result
from outlast.loop.errors import DoesNotFit
from outlast.spec.file_kinds import DEFAULT, Kind


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "checkpoint"


@pytest.fixture
def copier(root: Path) -> Copier:
    return Copier(root, [root.parent / "work"])


def age(path: Path, seconds: float = 100.0) -> None:
    """Set a file's own time back; its change time stays."""
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


@pytest.mark.parametrize(
    "name",
    [
        *("model.pt.tmp", "tmp-checkpoint-500/model.safetensors", ".tmp1234", "a.tmp.77"),
        *("shard.part", "model.bin.incomplete", "x.crdownload", "notes.txt~", ".nfs0001"),
        *("ckpt-1_temp/part-0", "ckpt.tempstate99", "step_5.orbax-checkpoint-tmp-17/d"),
    ],
)
def test_names_of_unfinished_files_do_not_count_as_checkpoints(name: str) -> None:
    assert DEFAULT.of(name) is Kind.TEMPORARY


@pytest.mark.parametrize(
    "name",
    [
        *("last.ckpt", "checkpoint-500/model.safetensors", "latest.weights.h5", ".metadata"),
        *("training_metadata.json", "template.json", "temp.npy", "checkpoint", "state.db"),
    ],
)
def test_other_names_count_as_checkpoints(name: str) -> None:
    assert DEFAULT.of(name) is Kind.CHECKPOINT


def test_all_files_are_restored_as_they_were(root: Path, copier: Copier, tmp_path: Path) -> None:
    (root / "sub/empty").mkdir(parents=True)
    (root / "sub/weights.bin").write_bytes(b"w" * 1000)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "last").symlink_to("sub/weights.bin")
    (root / "here").symlink_to(root / "sub")
    (root / "half.tmp").write_text("half")
    age(root / "sub/weights.bin")
    taken = copier.take("snap-1", said="mark")
    assert taken.folder == tmp_path / "work/snap-1" and taken.copied == 1010

    again = tmp_path / "again"
    again.mkdir()
    assert Copier(again, [tmp_path / "work"]).put_back(taken.folder).said == "mark"
    assert (again / "sub/empty").is_dir() and not (again / "half.tmp").exists()
    assert (again / "last").read_bytes() == b"w" * 1000
    assert os.readlink(again / "here") == "sub"  # was absolute, and its folder has moved
    assert os.access(again / "run.sh", os.X_OK)
    times = [(place / "sub/weights.bin").stat().st_mtime_ns for place in (root, again)]
    assert times[0] == times[1]  # the newest by time is the newest again


@pytest.mark.parametrize("by_file", [False, True])
def test_the_oldest_folder_by_time_stays_the_oldest(
    root: Path, copier: Copier, tmp_path: Path, by_file: bool
) -> None:
    """transformers.Trainer deletes the oldest of its checkpoints by the time of their folders."""
    steps = (30, 4, 100, 20)
    for number, step in enumerate(steps):
        folder = root / f"checkpoint-{step}/sub"
        folder.mkdir(parents=True)
        (folder / "model").write_text(str(step))
        for path in (folder, folder.parent):
            os.utime(path, ns=(number * 10**9, number * 10**9))
    (root / "checkpoint-4").chmod(0o700)
    chosen = [f"checkpoint-{step}/sub/model" for step in steps] if by_file else None
    taken = copier.take("snap-1", folders=chosen)
    again = tmp_path / "again"
    again.mkdir()
    Copier(again, [tmp_path / "work"]).put_back(taken.folder)
    by_time = sorted(again.iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
    assert [folder.name for folder in by_time] == [f"checkpoint-{step}" for step in steps]
    assert [folder.stat().st_mtime_ns for folder in by_time] == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert (again / "checkpoint-4").stat().st_mode & 0o777 == 0o700


def test_the_newest_file_by_change_time_stays_the_newest(
    root: Path, copier: Copier, tmp_path: Path
) -> None:
    """``max(paths, key=os.path.getctime)``: no program can set that time, so the order is kept."""
    names = [f"step-{step}/model" for step in (7, 100, 20, 3)] + ["b.pt", "a.pt"]
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        before = root.stat().st_ctime_ns
        while root.stat().st_ctime_ns == before:  # the clock has ticks
            os.utime(root)
        (root / name).write_text(name)
    taken = copier.take("snap-1")
    again = tmp_path / "again"
    again.mkdir()
    Copier(again, [tmp_path / "work"]).put_back(taken.folder)
    assert sorted(names, key=lambda name: (again / name).stat().st_ctime_ns) == names
    folders = sorted((path for path in again.iterdir() if path.is_dir()), key=os.path.getctime)
    assert [folder.name for folder in folders] == ["step-7", "step-100", "step-20", "step-3"]


@pytest.mark.parametrize("times", [1, 1000])
def test_a_log_rewritten_during_the_copy_is_whole_or_left_out(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Such as a CSV that pandas writes again after each epoch."""
    (root / "model").write_text("m")
    (root / "results.csv").write_text("epoch,loss\n1,0.5\n")
    copied, count = folders._copy_bytes, 0

    def rewrite(source, copy, limit=None):
        nonlocal count
        copied(source, copy, limit)
        if limit is not None and count < times:
            count += 1
            (root / "results.csv").write_text(f"epoch,loss,accuracy\n{count},0.5,0.1\n")

    monkeypatch.setattr(folders, "_copy_bytes", rewrite)
    taken = copier.take("snap-1")
    found = {path.name: path.read_text() for path in (taken.folder / "files").iterdir()}
    log = {"results.csv": "epoch,loss,accuracy\n1,0.5,0.1\n"} if times == 1 else {}
    assert found == {"model": "m", **log}


def test_a_trainers_snapshot_does_not_fit_a_command(copier: Copier, tmp_path: Path) -> None:
    (tmp_path / "snap").mkdir()
    (tmp_path / "snap/state.json").write_text("{}")
    with pytest.raises(DoesNotFit, match="not a command's"):
        copier.put_back(tmp_path / "snap")


def test_a_copy_shares_nothing_with_the_commands_files(root: Path, copier: Copier) -> None:
    (root / "a").write_text("before")
    taken = copier.take("snap-1")
    with (root / "a").open("r+") as file:  # written over in place
        file.write("behind")
    assert (taken.folder / "files/a").read_text() == "before"


def test_unchanged_files_are_linked_and_changed_ones_copied(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "big").write_bytes(b"b" * 5000)
    (root / "small").write_bytes(b"s" * 10)
    # The files were left alone for long: the test does not wait for that.
    monkeypatch.setattr(folders, "SETTLED_NS", -(10**9))
    first = copier.take("snap-1")
    (root / "small").write_bytes(b"t" * 10)
    (root / "new").write_bytes(b"n")
    second = copier.take("snap-2")
    assert (first.copied, second.copied) == (5010, 11)
    assert (first.folder / "files/big").stat().st_ino == (second.folder / "files/big").stat().st_ino
    assert (second.folder / "files/small").read_bytes() == b"t" * 10
    assert copier.take("snap-3").copied == 0


def test_a_file_that_was_just_written_proves_nothing(root: Path, copier: Copier) -> None:
    """A second write within the file system's clock tick would look like none."""
    (root / "a").write_bytes(b"1")
    assert copier.take("snap-1").copied == 1
    assert copier.take("snap-2").copied == 1


def test_a_file_written_over_with_its_old_time_is_copied_again(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "SETTLED_NS", -(10**9))
    (root / "a").write_bytes(b"old!")
    age(root / "a")
    before = (root / "a").stat()
    copier.take("snap-1")
    (root / "a").write_bytes(b"new!")
    os.utime(root / "a", ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert (copier.take("snap-2").folder / "files/a").read_bytes() == b"new!"


@pytest.mark.parametrize("how", ["grows", "is deleted", "is replaced", "gets a neighbour"])
def test_a_change_during_the_copy_voids_it(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for name in ("a", "b"):
        (root / name).write_text(name)
    copied = folders._copy_bytes

    def meddle(source, copy, limit=None):
        copied(source, copy, limit)
        if how == "grows":
            with (root / "b").open("a") as file:
                file.write("more")
        elif how == "is deleted":
            (root / "b").unlink(missing_ok=True)
        elif how == "is replaced":
            (root / "b.tmp").write_text("c")
            os.replace(root / "b.tmp", root / "b")
        else:
            (root / "c").write_text("c")

    monkeypatch.setattr(folders, "_copy_bytes", meddle)
    with pytest.raises(Changed):
        copier.take("snap-1")
    assert not [path for path in (root.parent / "work").iterdir() if "snap-1" in path.name]
    monkeypatch.setattr(folders, "_copy_bytes", copied)
    assert (copier.take("snap-1").folder / "files/a").read_text() == "a"


def test_a_file_that_became_a_folder_during_the_copy_voids_it(root: Path, copier: Copier) -> None:
    (root / "model").write_text("1")
    before = look(root)
    (root / "model").unlink()
    (root / "model").mkdir()
    (root / "model/weights").write_text("2")
    with pytest.raises(Changed):
        copier.take("snap-1", before=before)
    taken = copier.take("snap-1")
    assert (taken.folder / "files/model/weights").read_text() == "2"


def test_a_file_written_over_with_its_old_time_is_a_change(root: Path) -> None:
    """As by tar with a fixed time, or touch -d."""
    (root / "model").write_text("1")
    age(root / "model")
    then = (root / "model").stat().st_mtime_ns
    still = Stillness(0.0, look(root))
    assert still.still_sec(5.0, look(root)) == 5.0
    changed_ns = (root / "model").stat().st_ctime_ns
    while (root / "model").stat().st_ctime_ns == changed_ns:  # the clock of files has ticks
        (root / "model").write_text("2")
        os.utime(root / "model", ns=(then, then))
    assert still.still_sec(9.0, look(root)) == 0.0
    assert still.still_sec(12.0, look(root)) == 3.0


@pytest.mark.parametrize(
    ("pieces", "seconds", "flows"),
    [
        ([b"a\n", b"b\n"], 2.0, True),
        ([b"\r 1%", b"\r 2%"], 2.0, True),
        # As a buffer of a program writes it, in blocks: only after six times as long.
        ([b"a\nb", b"b\nc"], 2.0, False),
        ([b"a\nb", b"b\nc"], 8.0, True),
        # A model that is being written.
        ([b"\0\n", b"\1\n"], 8.0, False),
        ([b"abcdef"], 8.0, False),
    ],
)
def test_growing_text_is_recognised(
    root: Path, pieces: list[bytes], seconds: float, flows: bool
) -> None:
    watch = FlowWatch(root, 1.0)
    flow = NO_FLOW
    for look_number in range(int(seconds / 0.25)):
        with (root / "file").open("ab") as file:
            file.write(pieces[look_number % len(pieces)])
        flow = watch.observe(look_number * 0.25, look(root))
    assert flow.holds("file") is flows


def test_a_log_rotation_during_the_copy_never_mixes_files(root: Path, copier: Copier) -> None:
    """Pairs of files, each of one save, written and rotated as fast as can be."""
    ended = threading.Event()

    def rotate() -> None:
        rng, number = random.Random(1), 0
        while not ended.is_set():
            number += 1
            for half in ("left", "right"):
                (root / f"{half}-{number}.tmp").write_text(f"{number}" * 500)
                os.replace(root / f"{half}-{number}.tmp", root / f"{half}-{number}")
            for half in ("left", "right"):
                (root / f"{half}-{number - 1}").unlink(missing_ok=True)
            ended.wait(rng.choice([0, 0.002, 0.01]))

    writer = threading.Thread(target=rotate)
    writer.start()
    taken = voided = 0
    try:
        while taken < 20 or voided < 20:
            before = look(root)
            try:
                snap = copier.take(f"snap-{taken}", before=before)
            except Changed:
                voided += 1
                continue
            taken += 1
            found = {path.name: path.read_text() for path in (snap.folder / "files").iterdir()}
            assert set(found) == set(before.chosen().files)
            assert all(text == name.rpartition("-")[2] * 500 for name, text in found.items())
    finally:
        ended.set()
        writer.join()


def test_a_growing_log_delays_no_save_and_is_copied_up_to_its_end(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "model").write_text("m")
    (root / "train.log").write_text("one\n")
    copied = folders._copy_bytes

    def grow(source, copy, limit=None):
        with (root / "train.log").open("a") as file:
            file.write("two\n")
        copied(source, copy, limit)

    monkeypatch.setattr(folders, "_copy_bytes", grow)
    still = Stillness(0.0, look(root))
    taken = copier.take("snap-1")
    assert (taken.folder / "files/train.log").read_text() == "one\n"
    assert still.still_sec(5.0, look(root)) == 5.0
    (root / "model").write_text("mm")
    assert still.still_sec(6.0, look(root)) == 0.0


def test_a_growing_temporary_file_means_an_unfinished_save(root: Path) -> None:
    (root / "a").write_text("a")
    still = Stillness(0.0, look(root))
    (root / "b.tmp").write_text("b")
    assert still.still_sec(1.0, look(root)) == 0.0
    assert still.still_sec(3.0, look(root)) == 2.0


def test_complete_is_the_last_file_of_its_folder(root: Path, copier: Copier) -> None:
    for number in (1, 2, 3):
        (root / f"save-{number}").mkdir()
        (root / f"save-{number}/model").write_text(str(number))
        age(root / f"save-{number}/model")
        if number < 3:
            (root / f"save-{number}/COMPLETE").touch()
    listing = look(root)
    assert listing.says_complete
    assert set(listing.complete_folders()) == {"save-1", "save-2"}
    taken = copier.take("snap-1", folders=listing.complete_folders())
    assert sorted(path.name for path in (taken.folder / "files").iterdir()) == ["save-1", "save-2"]
    (root / "save-2/model").write_text("written over")  # newer than its COMPLETE
    age(root / "save-2/COMPLETE")
    assert set(look(root).complete_folders()) == {"save-1"}


def test_a_lack_of_room_is_reported_with_both_sizes(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_bytes(b"a" * 4096)
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(folders.NoRoom, match=r"4096 bytes does not fit: .* has 100 bytes free"):
        copier.take("snap-1")


def test_a_snapshot_too_large_for_the_first_folder_goes_to_the_next(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "memory", tmp_path / "disk"]
    free = {places[0]: 1000, places[1]: 10_000}
    for place in places:
        place.mkdir()
    monkeypatch.setattr(
        folders.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free[path]})
    )
    monkeypatch.setattr(folders, "SETTLED_NS", -(10**9))
    copier = Copier(root, places)
    (root / "a").write_bytes(b"a" * 400)
    assert copier.take("snap-1").folder == places[0] / "snap-1"
    (root / "b").write_bytes(b"b" * 600)
    taken = copier.take("snap-2")  # only once more, and the command needs memory, too
    assert (taken.folder, taken.copied) == (places[1] / "snap-2", 1000)
    assert [path.name for path in places[0].iterdir()] == ["snap-1"]
    free[places[1]] = 100
    assert copier.take("snap-3").copied == 0  # all linked
    (root / "a").write_bytes(b"c" * 800)
    with pytest.raises(folders.NoRoom):
        copier.take("snap-4")


def test_bytes_are_copied_if_the_kernel_refuses_to_copy(
    root: Path, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    (root / "a").write_bytes(os.urandom(1 << 20))
    taken = copier.take("snap-1")
    assert (taken.folder / "files/a").read_bytes() == (root / "a").read_bytes()


def test_a_result_holds_only_plain_files(tmp_path: Path) -> None:
    result = tmp_path / "result"
    result.mkdir()
    (result / "model").write_text("m")
    (result / "best").symlink_to("model")
    (result / "gone").symlink_to("nowhere")
    (result / "RESULT.json").write_text("{}")
    os.mkfifo(result / "pipe")
    said = tidy_result(result)
    found = {path.name: path.read_text() for path in result.iterdir() if not path.is_symlink()}
    assert found == {"model": "m", "best": "m", "command-RESULT.json": "{}"}
    assert len(said) == 2 and "gone" in said[1] and "command-RESULT.json" in said[0]
