"""When a command's saves are complete: logs, late files, saves without a rest, odd names."""

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from outlast.base import scratch_space
from outlast.loop.command.command import Command
from outlast.loop.command.folder import Copier
from outlast.protocol import Complete, Snapshot, Warn
from outlast.spec import file_kinds as kinds
from outlast.spec.file_kinds import DEFAULT, Kind, Kinds
from outlast.spec.globs import GlobError, common_name, matches
from tests.loop import programs
from tests.loop.test_command import RUNNER, Place, place, wait_until

__all__ = ["place"]


# -- What counts


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("*.pt", "last.*", "last.pt"),
        ("ckpt-*", "*-9", "ckpt-9"),
        ("a/**", "*.pt", "a/.pt"),
        ("[0-9].x", "5.*", "5.x"),
        ("*.pt", "*.log", None),
        ("a/b", "b/a", None),
        ("a/*", "a/b/c", None),
        ("[!a].x", "a.x", None),
    ],
)
def test_two_globs_overlap_where_one_name_matches_both(
    one: str, other: str, name: str | None
) -> None:
    assert common_name(one, other) == name
    if name is not None:
        assert matches(name, [one]) and matches(name, [other])


def test_a_users_globs_precede_the_known_ones() -> None:
    assert DEFAULT.of("runs/events.out.tfevents.1") is Kind.LOG
    assert Kinds(checkpoint=("*.log",)).of("a.log") is Kind.CHECKPOINT
    assert Kinds(checkpoint=("*.pt",)).of("a.bin") is Kind.BY_PRODUCT
    assert Kinds(log=("*.bin",)).of("a/b.bin") is Kind.LOG
    assert Kinds(by_product=("cache",)).of("cache/x/y") is Kind.BY_PRODUCT
    with pytest.raises(
        GlobError, match=r"--log: glob 'last\.\*' overlaps '\*\.pt' of --checkpoint"
    ):
        Kinds(checkpoint=("*.pt",), log=("last.*",)).check()
    for bad in ("", "/abs", "../up", "[a"):
        with pytest.raises(GlobError):
            Kinds(log=(bad,)).check()


def test_overlapping_globs_are_refused_before_anything_starts(tmp_path: Path) -> None:
    words = ["--run-dir", "run", "--checkpoint", "*.pt", "--by-product", "best*", "--", "true"]
    done = programs.run(tmp_path, [*RUNNER, *words])
    assert done.returncode == 64 and "both match 'best.pt'" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_lists_every_option_and_every_glob_that_is_known(
    tmp_path: Path, option: str
) -> None:
    done = programs.run(tmp_path, [*RUNNER, option])
    assert done.returncode == 0 and not done.stderr
    words = done.stdout.split()
    for globs in (kinds.LOGS, kinds.BY_PRODUCTS, kinds.TEMPORARY):
        assert set(globs) <= set(words)
    assert {"--checkpoint", "--log", "--by-product", "--allow-no-output", "--rerun"} <= set(words)


def test_logs_alone_do_not_make_a_checkpoint(place: Place) -> None:
    """The next life of a script that refuses a folder with anything in it finds an empty one."""
    line = "mkdir $CHECKPOINT_DIR/runs; echo x > $CHECKPOINT_DIR/runs/events.out.tfevents.1; "
    line += "echo a: 1 > $CHECKPOINT_DIR/args.yaml; sleep 60"
    with place.running("--shell", "--", line) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.kill()
    assert "contains only logs and by-products (args.yaml, runs/events.out.tfevents.1)" in said
    assert not place.supervisor.of(Snapshot)


def test_globs_without_a_match_are_reported(place: Place) -> None:
    place.options += ["--checkpoint", "*.pth", "--log", "*.txt"]
    with place.running("--shell", "--", "echo 1 > $CHECKPOINT_DIR/model.pt; sleep 60") as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.kill()
    assert "no file matches *.pth (--checkpoint, outlast:checkpointFiles)" in said
    assert not place.supervisor.of(Snapshot)
    code, _, err = place.shell("echo 1 > $CHECKPOINT_DIR/a.pth")
    assert code == 0 and "glob '*.txt' (log): matched no file" in err


def test_names_that_no_object_can_have_are_saved_and_restored(place: Place) -> None:
    """Bytes that are no UTF-8 and a backslash; in the result, too."""
    odd = "$(printf 'caf\\351.txt') 'a\\b.bin'"
    line = f"cd $CHECKPOINT_DIR; [ -e model ] && {{ ls -b; cp {odd} $RESULT_DIR; exit; }}; "
    line += f"echo m > model; for name in {odd}; do echo odd > $name; done; ln -s a here; "
    code, _, err = place.shell(f"{line} outlast mark && exit 3")
    assert code == 3, err
    place.supervisor.resume_from()
    code, out, err = place.shell(line)
    assert code == 0, err
    assert set(out.split()) == {"a\\\\b.bin", "caf\\351.txt", "here", "model"}
    assert place.result() == {"a%5Cb.bin": "odd\n", "caf%E9.txt": "odd\n"}
    assert "no object can have this name, kept as caf%E9.txt" in err


def test_a_copy_goes_to_memory_if_the_machine_has_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system in memory may promise more than the machine has."""
    places = [tmp_path / "memory", tmp_path / "disk"]
    for folder in (*places, tmp_path / "root"):
        folder.mkdir()
    with (tmp_path / "root/model.bin").open("wb") as file:
        file.truncate(1 << 20)
    monkeypatch.setattr(scratch_space, "in_memory", lambda folder: folder == places[0])
    monkeypatch.setattr(scratch_space, "_available_memory", lambda: 3 << 19)
    taken = Copier(tmp_path / "root", places).take("snap-1")
    assert taken.folder.parent == places[1]


# -- Late files


def test_the_first_save_waits_for_files_that_arrive_late(place: Place) -> None:
    """The quiet time is 0.4 s here."""
    line = "mkdir $CHECKPOINT_DIR/checkpoint-1; cd $CHECKPOINT_DIR/checkpoint-1; echo 1 > model; "
    line += "sleep 0.7; echo 1 > trainer_state.json; sleep 60"
    with place.running("--shell", "--", line):
        wait_until(lambda: bool(place.supervisor.committed), "no snapshot")
    assert set(place.saved(0)) == {"checkpoint-1/model", "checkpoint-1/trainer_state.json"}


@pytest.mark.parametrize("numbered", [True, False])
def test_a_save_that_lacks_a_usual_file_is_not_taken(place: Place, numbered: bool) -> None:
    """Killed in between, the next attempt begins with the save before."""
    folder = "checkpoint-$i" if numbered else "last"
    line = "cd $CHECKPOINT_DIR; for i in 1 2; do "
    line += f"mkdir -p {folder}; echo $i > {folder}/model; [ -e ../seen ] && touch ../half && "
    line += f"sleep 0.7; echo $i > {folder}/state; while [ ! -e ../seen ]; do sleep 0.02; done; "
    line += "done; sleep 60"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: len(place.supervisor.committed) == 1, "no snapshot")
        (place.home / "seen").touch()
        wait_until((place.home / "half").exists, "no second save")
        wait_until(lambda: len(place.supervisor.committed) == 2, "no second snapshot")
        process.kill()
    for index in (0, 1):
        saved = place.saved(index)
        newest_of = {name.rpartition("/")[2]: text for name, text in sorted(saved.items())}
        assert newest_of == {"model": f"{index + 1}\n", "state": f"{index + 1}\n"}


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["model-00001-of-00002.safetensors"], "model-00002-of-00002.safetensors"),
        (["__0_0.distcp"], ".metadata"),
        (
            ["checkpoint-5/training_args.bin", "checkpoint-5/model"],
            "checkpoint-5/trainer_state.json",
        ),
    ],
)
def test_a_save_waits_for_files_that_its_format_names(
    place: Place, there: list[str], missing: str
) -> None:
    line = "cd $CHECKPOINT_DIR; mkdir checkpoint-5; "
    line += "; ".join(f"echo 1 > {name}" for name in there)
    line += f"; sleep 2; touch ../late; echo 1 > {missing}; sleep 60"
    with place.running("--shell", "--", line):
        wait_until((place.home / "late").exists, "the command did not continue")
        wait_until(lambda: bool(place.supervisor.committed), "no snapshot")
    assert set(place.saved(0)) == {*there, missing}


def test_a_folder_of_a_save_that_has_only_begun_is_left_out(place: Place) -> None:
    """transformers finds the newest checkpoint by its folder's name, and fails where that one holds
    no model; here the next save takes long, and a log grows meanwhile."""
    line = "cd $CHECKPOINT_DIR; mkdir checkpoint-1; echo 1 > checkpoint-1/model; "
    line += "while [ ! -e ../seen ]; do sleep 0.02; done; mkdir -p checkpoint-2/empty; "
    line += "echo {} > checkpoint-2/config.json; while :; do echo line >> history; sleep 0.1; done"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: len(place.supervisor.committed) == 1, "no snapshot")
        (place.home / "seen").touch()
        wait_until(lambda: len(place.supervisor.committed) >= 3, "no second snapshot")
        process.kill()
    assert set(place.saved()) == {"checkpoint-1/model", "history"}
    assert not (place.supervisor.committed[-1][1] / "files/checkpoint-2").exists()
    notes = json.loads((place.supervisor.committed[-1][1] / "command.json").read_text())
    assert list(notes["folders"]) == ["checkpoint-1"]


def test_saves_with_pauses_cause_no_warning(place: Place) -> None:
    line = "cd $CHECKPOINT_DIR; for i in 1 2 3; do echo $i > model.pt; "
    line += "while [ ! -e ../seen-$i ]; do sleep 0.02; done; done"
    with place.running("--shell", "--", line) as process:
        for number in (1, 2, 3):
            wait_until(
                lambda number=number: len(place.supervisor.committed) >= number, "no snapshot"
            )
            (place.home / f"seen-{number}").touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "written to again" not in err


def test_a_file_that_is_open_and_stalls_is_not_whole(place: Place) -> None:
    """The quiet time is 0.4 s; a known file is waited for longer while it is open."""
    (place.folder / "stall.py").write_text(STALL)
    with place.running("--", sys.executable, str(place.folder / "stall.py")) as process:
        wait_until(lambda: len(place.supervisor.committed) >= 2, "no snapshots")
        process.kill()
    assert [place.saved(index)["model.pt"] for index in (0, 1)] == ["1" * 100, "2" * 100]


STALL = """
import os, time
for number in (1, 2):
    with open(os.environ["CHECKPOINT_DIR"] + "/model.pt", "w") as file:
        file.write(str(number) * 50)
        file.flush()
        time.sleep(0.9 * (number - 1))
        file.write(str(number) * 50)
    time.sleep(3)
time.sleep(60)
"""


# -- Saves that come closer than the quiet time


SAVER = """
import os, sys, time
folder, how = os.environ["CHECKPOINT_DIR"], sys.argv[1]
os.chdir(folder)
def write(name, text):
    with open(name, "w") as file:
        file.write(text)
for number in range(1, 400):
    text = f"{number}\\n" * 2000
    if how == "rename":
        write("last.pt.tmp", text); os.replace("last.pt.tmp", "last.pt")
    elif how == "in place":
        write("last.pt", text)
    elif how == "numbered":
        write(f"ckpt-{number}.pt", text)
    elif how == "ranks":
        for rank in range(4):
            write(f"rank{rank}.pt", text); time.sleep(0.5)
    elif how == "rotated":
        write(f"ckpt-{number}.pt", text)
        if number > 1: os.unlink(f"ckpt-{number - 1}.pt")
    elif how == "pointer":
        write(f"ckpt-{number}.pt", text); time.sleep(0.3)
        write("latest.tmp", f"ckpt-{number}.pt"); os.replace("latest.tmp", "latest")
    elif how == "pair":
        write("model.pt", text); time.sleep(0.3); write("optimizer.pt", text)
    elif how == "folders":
        os.mkdir(f"checkpoint-{number}")
        write(f"checkpoint-{number}/model", text); time.sleep(0.2)
        write(f"checkpoint-{number}/state", text)
    time.sleep(0.8)
"""


@pytest.mark.parametrize(
    "how", ["rename", "in place", "numbered", "ranks", "rotated", "pointer", "pair", "folders"]
)
def test_saves_without_a_rest_are_kept_once_the_next_one_begins(place: Place, how: str) -> None:
    (place.folder / "saver.py").write_text(SAVER)
    place.options[place.options.index("--checkpoint-quiet-sec") + 1] = "1.5"
    with place.running("--", sys.executable, str(place.folder / "saver.py"), how) as process:
        wait_until(lambda: len(place.supervisor.committed) >= 3, "no snapshots")
        process.kill()
    for index in range(3):
        saved = place.saved(index)
        for name, text in saved.items():
            if name != "latest":
                assert text == text.split("\n")[0].join(["", "\n"]) * 2000, name
        numbers = {int(text.split("\n")[0]) for name, text in saved.items() if name != "latest"}
        if how in ("pair", "ranks"):
            assert len(numbers) == 1 and len(saved) == (2 if how == "pair" else 4)
        if how == "pointer":
            assert saved["latest"] == f"ckpt-{max(numbers)}.pt"
        if how == "folders":
            folders = {name.split("/")[0] for name in saved}
            assert set(saved) == {f"{one}/{of}" for one in folders for of in ("model", "state")}


def test_a_file_that_only_grows_delays_no_save(place: Place) -> None:
    """A file with an unknown name is kept up to its current end."""
    line = "cd $CHECKPOINT_DIR; echo m > model; while :; do echo line >> history; sleep 0.1; done"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: len(place.supervisor.committed) >= 2, "no snapshot")
        process.kill()
    saved = place.saved()
    assert saved["model"] == "m\n" and set(saved["history"].splitlines()) == {"line"}


STUDY = """
import os, sqlite3, time
study = sqlite3.connect(os.environ["CHECKPOINT_DIR"] + "/study.db")
study.execute("create table if not exists trials (number int)")
for number in range(400):
    with study:
        study.execute("insert into trials values (?)", (number,))
        study.execute("insert into trials values (?)", (number,))
    time.sleep(0.02)
"""


def test_a_database_is_copied_between_two_transactions(place: Place) -> None:
    (place.folder / "study.py").write_text(STUDY)
    with place.running("--", sys.executable, str(place.folder / "study.py")) as process:
        wait_until(lambda: len(place.supervisor.committed) >= 2, "no snapshot")
        process.kill()
    _, folder = place.supervisor.committed[-1]
    assert [path.name for path in (folder / "files").iterdir()] == ["study.db"]
    study = sqlite3.connect(folder / "files/study.db")
    counts = study.execute("select count(*) from trials group by number").fetchall()
    study.close()
    assert counts and set(counts) == {(2,)}


# -- What an exit code means


def test_a_failure_before_a_pipe_fails_the_line(place: Place) -> None:
    code, _, err = place.shell("python3 -c 'raise SystemExit(3)' 2>&1 | tee $CHECKPOINT_DIR/t.txt")
    assert code == 3 and not place.supervisor.of(Complete), err


PIPED = "python train.py --lr 1 | tee train.log\n"


@pytest.mark.parametrize(
    ("name", "text", "warned"),
    [
        ("run.sh", f"#!/bin/bash\n{PIPED}", PIPED.strip()),
        ("run.sh", "torchrun \\\n  train.py 2>&1 |\\\n  grep -v warn\n", "torchrun train.py 2>&1"),
        ("run", f"#!/usr/bin/env -S bash -e\n{PIPED}", PIPED.strip()),
        ("run.sh", "./train |& tee log\n", "./train |& tee log"),
        ("run.sh", f"#!/bin/bash\nset -eo pipefail\n{PIPED}", ""),
        ("run.sh", f"{PIPED}exit ${{PIPESTATUS[0]}}\n", ""),
        ("run.sh", "n=$(python -c 'print(1)' | tail -n 1)\npython train.py || exit 3\n", ""),
        ("run.sh", "#!/bin/bash\npython train.py  # python a.py | tee log\nls | head\n", ""),
        ("run", f"#!/usr/bin/env python3\n# {PIPED}print('a | tee b')\n", ""),
    ],
)
def test_a_script_whose_pipe_hides_a_crash_is_named(
    tmp_path: Path, name: str, text: str, warned: str
) -> None:
    (tmp_path / name).write_text(text)
    said = list(Command(("bash", name)).lost_failures(tmp_path))
    assert len(said) == bool(warned)
    assert all(f"command: {name} has " in each and warned in each for each in said)
    assert not list(Command(("bash", "-o", "pipefail", name)).lost_failures(tmp_path))


def test_a_crash_behind_a_pipe_after_a_save_is_a_failure(place: Place) -> None:
    (place.folder / "source").mkdir()
    (place.folder / "source/run.sh").write_text(
        "#!/bin/bash\n{ echo 1 > $CHECKPOINT_DIR/a; outlast mark; false; } | tee train.log\n"
    )
    place.options += ["--source", str(place.folder / "source")]
    code, _, err = place.run("--", "bash", "run.sh")
    assert code == 1 and "warning: command: run.sh has " in err
    assert "no pipefail" in place.supervisor.of(Warn)[0].message
    assert place.saved() == {"a": "1\n"} and not place.supervisor.of(Complete)


def test_a_script_that_hides_a_crash_does_not_complete_the_run(place: Place) -> None:
    """As LMFlow's run_finetune.sh: the last line is a pipe, and nothing asks for its failure."""
    script = "#!/bin/bash\nmkdir -p out logs\nfalse 2>&1 | tee logs/train.log\n"
    (place.folder / "run.sh").write_text(script)
    place.options += ["--source", str(place.folder / "source")]
    (place.folder / "source").mkdir()
    (place.folder / "source/run.sh").write_text(script)
    code, _, err = place.run("--", "./run.sh")
    assert code == 1 and not place.supervisor.of(Complete), err
