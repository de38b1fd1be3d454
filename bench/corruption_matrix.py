"""Damages every kind of object of a real run, and looks at what is made of it.

    python -m bench.corruption_matrix --seed 1
    python -m bench.corruption_matrix --seed 1 --peers --peer-python …

A run of the digits trainer is cut in a folder once it has several checkpoints, and another one is
finished. For each damage a copy of its bucket is taken and damaged, *through the store*, so that
the store's own checksum is right and only what Outlast adds can tell, and *below it*, as a disk
does it. Then the supervisor's own code takes the run over and restores:

    recovered   said, and the run resumes from a checkpoint that is whole
    refused     said, and nothing is trained
    harmless    nothing was damaged that a restore reads, or the state is an older true one
    RESTARTED   unsaid, from step 0 though there were checkpoints: never
    SILENT      wrong bytes were handed on: never

Recovered runs train on to their end, which must give the undisturbed bytes
(`--finish N` of them, drawn by the seed). Exit codes: 0 all detected, 1 otherwise.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.points import Point
from bench.result import Result, command_line
from bench.sites import ROOT, BenchError, FolderSite, Job, make_plan, run_to_end, scratch
from outlast.base.exits import DONE
from outlast.base.log import log_to
from outlast.bucket.boot import Act, Claim
from outlast.bucket.commit import Committer
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Head, HeadError, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Restored
from outlast.bucket.store import FolderStore, NotFound, StoreError
from outlast.cli.rehearsal.seen import read_result

FAILED = 1
LAYOUT = Layout("", "")
JOB = Job("digits", ("--limit-rows=900", "--epochs=48", "--hidden=64"), "60")
KEEP_CHAIN = 2
MISSED = ("RESTARTED", "SILENT")


@dataclass(frozen=True)
class Damage:
    """One object, spoilt in one way."""

    object: str
    how: str
    layer: str
    """`store` where the store's own checksum was made right, else `disk`."""


@dataclass(frozen=True)
class Seen:
    """The outcome of one damaged run."""

    damage: Damage
    fate: str
    said: str
    finished: bool | None = None
    """Whether the run then reached the undisturbed bytes; None if it was not tried."""


class Subject:
    """A run's folder that damaged copies are made of."""

    def __init__(self, folder: Path, work: Path, dice: random.Random) -> None:
        self.folder = folder
        self.work = work
        self.dice = dice
        self.store = FolderStore(folder)
        self.head = read_head(self.store, LAYOUT).head
        self.old_heads: list[bytes] = []

    def restored_bytes(self, store: FolderStore, head: Head) -> dict[int, dict[str, bytes]]:
        """Step to the true files of each checkpoint that the chain names."""
        found: dict[int, dict[str, bytes]] = {}
        for entry in head.chain:
            found[entry.step] = {
                item.path.removeprefix(entry.path): store.get(item.path)[0]
                for item in store.list(entry.path)
                if not item.path.endswith("MANIFEST.json")
            }
        return found


def restore(folder: Path, into: Path) -> tuple[str, Restored | None, list[str]]:
    """What the supervisor does at its start: (fate, what it restored, what it said)."""
    said: list[str] = []
    log_to(said.append)
    store = FolderStore(folder)
    head_file = HeadFile(store, LAYOUT)
    try:
        owner = read_head(store, LAYOUT).head.owner
    except (HeadError, StoreError):
        owner = "folder/unknown"
    claim = Claim(owner, 0, 0, datetime.now(UTC) + timedelta(days=1))
    try:
        decision = head_file.take_term(claim, still_member=lambda: True, forbidden_seconds=0)
        if decision.act is not Act.TAKE:
            return "refused", None, [*said, decision.message]
        found = Committer(head_file).restore(into)
    except (HeadError, RestoreError, StoreError) as error:
        return "refused", None, [*said, str(error)]
    if isinstance(found, Restored):
        return ("recovered" if found.skipped or said else "untouched"), found, said
    return "fresh", None, said


def flip(data: bytes, dice: random.Random) -> bytes:
    """One bit of it, anywhere."""
    at = dice.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[at // 8] ^= 1 << (at % 8)
    return bytes(changed)


def cut(data: bytes, dice: random.Random) -> bytes:
    """Less of it."""
    return data[: dice.randrange(len(data))]


def spoil(folder: Path, damage: Damage, data: bytes | None) -> None:
    """Write `data`, None for no object, in the way of the damage's layer."""
    store = FolderStore(folder)
    found = store.stat(damage.object)
    if damage.layer == "store":
        if data is None:
            store.delete(damage.object, generation=found.generation)
        else:
            store.put(damage.object, data, if_generation_match=found.generation)
        return
    blob = (folder / damage.object).resolve()
    if data is None:
        blob.unlink()
    else:
        blob.write_bytes(data)


def cases(subject: Subject) -> list[tuple[str, Damage, bytes | None]]:
    """(kind of object, damage, its new bytes) of everything that is tried."""
    store, dice, made = subject.store, subject.dice, []
    newest, before = subject.head.chain[-1], subject.head.chain[-2]
    names = [item.path for item in store.list(newest.path)]
    data = {path: store.get(path)[0] for path in [*names, LAYOUT.head]}
    for path in names:
        kind = path.removeprefix(newest.path)
        for layer in ("store", "disk"):
            made += [
                (kind, Damage(path, "bit flip", layer), flip(data[path], dice)),
                (kind, Damage(path, "truncated", layer), cut(data[path], dice)),
                (kind, Damage(path, "emptied", layer), b""),
                (kind, Damage(path, "missing", layer), None),
            ]
        older = before.path + kind
        swapped = store.get(older)[0]
        how = "swapped manifest" if kind == "MANIFEST.json" else "of another checkpoint"
        made.append((kind, Damage(path, how, "store"), swapped))
        others = [other for other in names if other != path]
        made.append((kind, Damage(path, "swapped objects", "store"), data[dice.choice(others)]))
    head = LAYOUT.head
    for layer in ("store", "disk"):
        made += [
            ("HEAD", Damage(head, "truncated", layer), cut(data[head], dice)),
            ("HEAD", Damage(head, "garbage", layer), dice.randbytes(400)),
            ("HEAD", Damage(head, "emptied", layer), b""),
            ("HEAD", Damage(head, "missing", layer), None),
        ]
    made.append(("HEAD", Damage(head, "bit flip", "disk"), flip(data[head], dice)))
    made += [("HEAD", Damage(head, "stale", "store"), old) for old in subject.old_heads]
    return made


def judge_case(subject: Subject, index: int, damage: Damage, data: bytes | None) -> Seen:
    """Damage a copy, restore from it, compare what is handed on with what was committed."""
    folder = subject.work / f"case-{index:04d}"
    shutil.copytree(subject.folder, folder, symlinks=True)
    spoil(folder, damage, data)
    into = subject.work / f"into-{index:04d}"
    fate, found, said = restore(folder, into)
    if found is not None:
        true = subject.restored_bytes(subject.store, subject.head)
        got = {
            path.relative_to(into).as_posix(): path.read_bytes()
            for path in into.rglob("*")
            if path.is_file()
        }
        if got != true.get(found.step):
            fate = "SILENT"
        elif fate == "untouched":
            fate = "harmless"
        shutil.rmtree(into)
    elif fate == "fresh":
        fate = "RESTARTED"
    return Seen(damage, fate, said[-1] if said else "")


def finish(subject: Subject, index: int, digest: str) -> bool:
    """Whether the trainer's own command brings the damaged run to the undisturbed bytes."""
    case = subject.work / f"case-{index:04d}"
    folder = subject.work / f"finish-{index:04d}"
    folder.mkdir()
    case.rename(folder / "run")
    command = [JOB.python, "-m", "outlast.trainers", JOB.trainer, *JOB.flags]
    command += [f"--run-dir={folder / 'run'}", f"--checkpoint-every={JOB.checkpoint_every}"]
    if run_to_end(command, folder, {}, None) != DONE:
        return False
    store = FolderStore(folder / "run")
    found = read_result(store, read_head(store, LAYOUT).head)
    return found.digest == digest


def make_subject(work: Path, dice: random.Random) -> tuple[Subject, str]:
    """A run that was cut with several checkpoints, the HEADs that it had, and the digest that the
    undisturbed one has."""
    baseline = FolderSite(JOB, work).baseline()
    folder = work / "subject"
    point = Point(0, "folder", "SIGKILL", "machine", "final upload", 1, 0.0)
    plan = make_plan(folder / "plan", point)
    old: list[bytes] = []
    command = [JOB.python, "-m", "outlast.trainers", JOB.trainer, *JOB.flags]
    command += [f"--run-dir={folder / 'run'}", f"--checkpoint-every={JOB.checkpoint_every}"]
    watching = _Heads(folder / "run" / "HEAD", old)
    with watching:
        run_to_end(command, folder, {}, plan)
    subject = Subject(folder / "run", work, dice)
    if len(subject.head.chain) < KEEP_CHAIN:
        raise BenchError("digits: the cut run has fewer than two checkpoints; try again")
    now = subject.store.get(LAYOUT.head)[0]
    before = [head for head in old if head != now]
    subject.old_heads = [*before[:1], *before[1:][-2:]]  # the first has no checkpoint yet
    return subject, baseline.digest


class _Heads:
    """Keeps each content that a HEAD has had."""

    def __init__(self, path: Path, into: list[bytes]) -> None:
        import threading

        self._path, self._into, self._ended = path, into, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            try:
                data = self._path.read_bytes()
            except OSError:
                continue
            if data and (not self._into or self._into[-1] != data):
                self._into.append(data)


def result_cases(work: Path, dice: random.Random) -> list[tuple[str, Seen]]:
    """The finished run's result, spoilt in each of its files and read by `fetch_result`."""
    folder = work / "folder-baseline" / "run"
    store = FolderStore(folder)
    head = read_head(store, LAYOUT).head
    assert head.end is not None and head.end.result is not None
    prefix, seen = head.end.result.path, []
    spoilers: list[tuple[str, Callable[[bytes], bytes | None]]] = [
        ("bit flip", lambda data: flip(data, dice)),
        ("truncated", lambda data: cut(data, dice)),
        ("missing", lambda data: None),
    ]
    for item in list(store.list(prefix)):
        for how, change in spoilers:
            for layer in ("store", "disk"):
                copy = work / "result-copy"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(folder, copy, symlinks=True)
                damage = Damage(item.path, how, layer)
                spoil(copy, damage, change(store.get(item.path)[0]))
                try:
                    digest = read_result(FolderStore(copy), head).digest
                except (StoreError, NotFound, OSError):
                    digest = None
                fate = "refused" if digest is None else "SILENT"
                seen.append((f"result: {item.path.removeprefix(prefix)}", Seen(damage, fate, "")))
    return seen


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.corruption_matrix", __doc__)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--flips", type=int, default=20, help="further bit flips, anywhere")
    made.add_argument("--finish", type=int, default=6, help="damaged runs to train to their end")
    made.add_argument("--peers", action="store_true", help="flip the peers' files, too")
    made.add_argument("--peer-flips", type=int, default=40, help="of each kind of file")
    made.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    made.add_argument("--keep", type=Path, help="folder for the damaged runs")
    return made


def main(argv: Sequence[str]) -> int:
    """Damage everything once."""
    args, result = parser().parse_args(argv), Result("bench.corruption_matrix", argv)
    dice = random.Random(args.seed)
    try:
        with scratch(args.keep) as work:
            seen, finished = _ours(work, dice, args)
            theirs = _peers(work, args) if args.peers else []
    except BenchError as error:
        print(f"corruption matrix: {error}", file=sys.stderr)
        return 69
    lines = _summary(seen)
    result.table(f"Corruption matrix, seed {args.seed}", lines)
    result.say(f"trained on from a damaged bucket to the undisturbed bytes: {finished}")
    missed = [(kind, one) for kind, one in seen if one.fate in MISSED]
    for kind, one in missed:
        result.say(f"{one.fate}: {kind}: {one}")
    if theirs:
        result.table("\nThe peers' files with one bit flipped", theirs)
    good, of = finished.split(" of ")
    return result.end(args.json, FAILED if missed or good != of else DONE)


def _ours(
    work: Path, dice: random.Random, args: argparse.Namespace
) -> tuple[list[tuple[str, Seen]], str]:
    subject, digest = make_subject(work, dice)
    every = cases(subject)
    paths = [item.path for item in subject.store.list(subject.head.chain[-1].path)]
    for _ in range(args.flips):
        path = dice.choice(paths)
        data = flip(subject.store.get(path)[0], dice)
        kind = path.removeprefix(subject.head.chain[-1].path)
        every.append((kind, Damage(path, "bit flip", dice.choice(("store", "disk"))), data))
    seen = [
        (kind, judge_case(subject, index, damage, data))
        for index, (kind, damage, data) in enumerate(every)
    ]
    # HEAD names the term that the restore above took: the trainer's command takes the next one.
    able = [i for i, (_, one) in enumerate(seen) if one.fate in ("recovered", "harmless")]
    chosen = dice.sample(able, min(args.finish, len(able)))
    reached = sum(finish(subject, index, digest) for index in chosen)
    return [*seen, *result_cases(work, dice)], f"{reached} of {len(chosen)}"


def _summary(seen: Sequence[tuple[str, Seen]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kind, one in seen:
        groups[kind, one.damage.how][one.fate] += 1
    lines = []
    for (kind, how), fates in [*groups.items(), (("all", "all"), Counter(o.fate for _, o in seen))]:
        total = sum(fates.values())
        missed = sum(fates[fate] for fate in MISSED)
        lines.append(
            {
                "object": kind,
                "damage": how,
                "cases": total,
                "recovered": fates["recovered"],
                "refused": fates["refused"],
                "harmless": fates["harmless"],
                "RESTARTED": fates["RESTARTED"],
                "SILENT": fates["SILENT"],
                "detected or harmless %": round(100 * (total - missed) / total, 1),
            }
        )
    return lines


FORMATS = ("torch.save", "safetensors", "torch dcp", "orbax", "keras .weights.h5", "xgboost .ubj")
PEER_SEC = 90.0
"""A loader that takes longer over a flipped bit hangs."""


def _peers(work: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    script = Path(__file__).parent / "peers" / "flips.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = []
    for name in FORMATS:
        fates: list[str] = []
        while len(fates) < args.peer_flips:
            command = [args.peer_python, str(script), "--dir", str(work / "flips")]
            command += ["--format", name, "--seed", str(args.seed), "--start", str(len(fates))]
            command += ["--flips", str(args.peer_flips)]
            printed, error = _lines_of(command, environment)
            if not printed and not fates:
                raise BenchError(f"{script.name} {name}: {error}")
            fates += printed
            if len(fates) < args.peer_flips:
                fates.append("crashed")
        count = Counter(fates)
        lines.append(
            {
                "saved by": name,
                "flips": len(fates),
                "refused": count["refused"],
                "crashed or hung": count["crashed"],
                "loaded unchanged": count["unchanged"],
                "other numbers, silently": count["silent"],
            }
        )
    return lines


def _lines_of(command: Sequence[str], environment: dict[str, str]) -> tuple[list[str], str]:
    """What a command printed, also one that crashed or hung; and its last word of an error."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, error = process.communicate(timeout=PEER_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
    return out.split(), (error.strip().splitlines() or ["it said nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
