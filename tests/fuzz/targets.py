"""What is fuzzed: files and objects from outside, and the code of ours that reads them first.

A target writes its valid files once. For each change it gets one of them in another form, puts it
where it belongs, and reads all as a user's process does. An answer is a value of the type that is
promised, or an error of ours whose sentence names a place.
"""

import collections
import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from outlast import notebook, protocol
from outlast.base.codec import Record
from outlast.base.exits import Reason, State
from outlast.base.retry import Limits, Patience
from outlast.bucket import blocks, data, goodput, history, pages, restore, rows, rungs
from outlast.bucket.errors import CommitError, RestoreError
from outlast.bucket.head import (
    Checkpoint,
    DataFingerprint,
    End,
    Head,
    HeadError,
    Lineage,
    PageRef,
    Result,
    read_head,
)
from outlast.bucket.layout import (
    AttemptEnd,
    AttemptStart,
    BootEnd,
    BootRecord,
    Choice,
    EndCopy,
    Heartbeat,
    Layout,
    Manifest,
    ManifestObject,
    RungDecision,
    RungValue,
    StopRequest,
    SweepLayout,
)
from outlast.bucket.results import fetch_result
from outlast.bucket.store import Object, StoreError, open_store
from outlast.bucket.store.memory import MemoryStore
from outlast.bucket.sweeps import SweepObjects, SweepRecord, TrialRecord, UpRecord
from outlast.cli.dev import channel, pull
from outlast.cli.errors import OperateError
from outlast.cli.rehearsal import compare
from outlast.cli.sweep.lock import LockRecord
from outlast.loop import call as calls
from outlast.loop import notes, parts, snapshot, state, verify
from outlast.loop.command.folder import Copier
from outlast.loop.errors import DoesNotFit
from outlast.loop.history import History
from outlast.spec import metrics
from outlast.spec.delivery import Git
from outlast.spec.metrics import Last
from outlast.spec.result import ResultFile, ResultManifest, result_digest
from outlast.spec.run_spec import BadSpec, RunSpec, Timeouts
from outlast.spec.sweep_rules import Goal, Rule, SweepRules
from outlast.supervisor.latest import Latest

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ONCE = Patience(limits=Limits().within(0.0))
LAYOUT = Layout("experiments/x", "0a1b2c3d")
DIGEST = "0" * 64
_ASKED = 4242424242
"""Stands in HEAD for a generation that only the store knows."""

Read = Callable[[Path], object]


@dataclass
class Target:
    """One reader."""

    name: str
    files: dict[str, bytes]
    """Valid contents by name; each is changed in turn, the others stay as they are."""
    read: Read
    """Reads a folder's files; returns a value of the type that is promised."""
    errors: tuple[type[Exception], ...]
    changed: tuple[str, ...] = field(default=())
    """The files that are changed; all of them if none is named."""

    def write(self, folder: Path, name: str, content: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for each, valid in self.files.items():
            path = folder / each
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if each == name else valid)


# A training's snapshot


def program() -> dict[str, Any]:
    """What a program builds before its first step."""
    return {
        "box": {"w": np.zeros(3), "best": None, "seen": [], "ids": set()},
        "clf": SGDClassifier(random_state=1),
        "rng": np.random.default_rng(1),
        "old": np.random.RandomState(1),
        "random": random.Random(1),
        "queue": collections.deque(maxlen=4),
        "table": collections.OrderedDict(a=1),
        "labels": np.array([None, None], object),
    }


def trained() -> dict[str, Any]:
    """The same after some steps: every kind of node that needs no other framework."""
    values = program()
    box = values["box"]
    box["w"][:] = (1.0, 2.0, 3.0)
    box["seen"] += [1, 2.5, float("nan"), b"bytes", (1, "a"), None, {3: "x", (1, 2): b"y"}]
    box["ids"] |= {1, "two", (3, 4), frozenset({5})}
    box["best"] = MLPClassifier((3,), max_iter=1)
    box["values"] = [NOW, 3 + 4j, range(3), slice(1, 2), Path("/data"), np.float32(0.5), int]
    box["kinds"] = [np.dtype("<f4"), np.dtype([("a", "<i4"), ("b", "<f8", (2,))]), np.float64]
    box["same"] = box["seen"]
    box["blob"] = b"x" * 1000
    box["masked"] = np.ma.masked_array([1.0, 2.0], [True, False])
    box["namespace"] = collections.ChainMap({"a": 1}, {"b": 2})
    box["counts"] = collections.defaultdict(int, a=1)
    rows_, labels = np.random.default_rng(2).normal(size=(8, 2)), np.array([0, 1] * 4)
    values["clf"].partial_fit(rows_, labels, classes=[0, 1])
    values["queue"].extend([1, {"a": 2}, [3]])
    values["labels"][:] = ["yes", ("a", 1)]
    values["rng"].random(3), values["old"].normal(), values["random"].random()
    return values


NOTES: dict[str, Any] = {
    "evaluations": 2,
    "best": {"loss": {"value": 0.5, "step": 2}},
    "unchanged": {"changed": ["w"], "rebound": {}},
    "drawn": [],
    "unsaved": {},
    "over": "early",
}


def _snapshot(work: Path) -> Target:
    values = trained()
    begun = state.survey(program())
    saved = snapshot.Saved(5, NOTES, *state.capture_all(values, begun))
    snapshot.write(work / "s", saved)
    files = {name: (work / "s" / name).read_bytes() for name in ("state.json", "arrays.bin")}
    history = History()
    history.add(1, {"loss": 0.7})
    history.add(2, {"loss": 0.5})
    history.write(work / "s")
    files["evaluations-000000.jsonl"] = (work / "s" / "evaluations-000000.jsonl").read_bytes()

    def read(folder: Path) -> object:
        found = snapshot.read(folder)
        notes.check(found.loop, calls.NOTES, "state.json")
        mine = program()
        state.restore_all(mine, found.nodes, found.blobs)
        verify.check(mine, found)
        History().read(folder, found.loop)
        return found

    return Target("state.json", files, read, (DoesNotFit,))


def _model(work: Path) -> Target:
    rows_, labels = np.random.default_rng(2).normal(size=(8, 2)), np.array([0, 1] * 4)
    model = MLPClassifier((3,), random_state=1)
    model.partial_fit(rows_, labels, classes=[0, 1])
    snapshot.write_values(work / "model.json", {"model": model, "more": trained()["box"]})
    files = {name: (work / name).read_bytes() for name in ("model.json", "model.bin")}

    def read(folder: Path) -> object:
        found = snapshot.read_values(folder / "model.json")
        assert isinstance(found, dict)
        return found

    return Target("model.json", files, read, (DoesNotFit,))


def _part(work: Path) -> Target:
    body = {"step": 5, "why": "", "history": {"evaluations": 0, "best": NOTES["best"]}}
    files = {"part.json": json.dumps(body).encode()}

    def read(folder: Path) -> object:
        return parts.read(folder).step + 1

    return Target("part.json", files, read, (DoesNotFit,))


def _command(work: Path) -> Target:
    for name, content in {"ckpt/a.bin": b"abc", "ckpt/b.bin": b"def", "log.txt": b"l"}.items():
        (work / "live" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "live" / name).write_bytes(content)
    (work / "live" / "latest").symlink_to("ckpt/b.bin")
    (work / "live" / "empty").mkdir()
    (work / "copies").mkdir()
    taken = Copier(work / "live", [work / "copies"]).take("one")
    files = {
        str(path.relative_to(taken.folder)): path.read_bytes()
        for path in taken.folder.rglob("*")
        if path.is_file()
    }

    def read(folder: Path) -> object:
        root = folder / "root"
        root.mkdir()
        (folder / "places").mkdir()
        return Copier(root, [folder / "places"]).put_back(folder).said

    return Target("command.json", files, read, (DoesNotFit,), ("command.json",))


# Records of the bucket


def _records() -> dict[type[Record], Record]:
    ref = PageRef(LAYOUT.page(1, DIGEST), 3, DIGEST, 0, 1, 1, 1)
    kept = Checkpoint(LAYOUT.snapshot(1, 5, "0a1b"), 4, DIGEST, 1, 5, ("best",), "fold", 2)
    part = ManifestObject("arrays.bin", 3, "AAAAAA==", DIGEST, 5, "arrays.bin", 0)
    file = ResultFile("model.json", 3, DIGEST)
    value = RungValue("0a1b2c3d", 10, 9, 0.5, 0.75, None)
    return {
        type(record): record
        for record in (
            BootRecord("1", "b", "vm", "z", 0, 1, NOW),
            BootEnd("1", "b", next(iter(Reason)), "fetch", 1, "m", NOW),
            AttemptStart(
                *(1, 0, 0, "vm", "1", "b", "z", "m", "i", "t", {"a": [1]}, {"v": "1"}, 0, None, NOW)
            ),
            AttemptEnd(
                *(1, next(iter(Reason)), State.OPEN, 1, 5, 5, "m", ("l",), 0.5, NOW, False),
                {"loss": Last(5, 0.5)},
            ),
            Heartbeat(
                1, 5, 9, "train", 0.5, 5, 1.5, ({"step": 5},), NOW, 1.0, ("w",), {}, "", ("l",)
            ),
            Manifest(
                "0a1b2c3d", 1, 5, ("best",), 5, (part, replace(part, name="state.json", file=None))
            ),
            ResultManifest.of([file]),
            StopRequest(0, 480.0, NOW),
            SweepRecord("lr", {"parameters": {"lr": [1, 2]}}, ("0a1b2c3d4e",), DIGEST, NOW),
            TrialRecord("0a1b2c3d4e", 1, {"learning-rate": 0.1}, False),
            UpRecord("0a1b2c3d4e", 1.5, 2.0, NOW),
            LockRecord("me", "host", 7, "0a1b", NOW),
            value,
            RungDecision("0a1b2c3d", 10, Choice.STOP, 1, {"eta": 4}, 0.5, None, (value,), "worse"),
            EndCopy("r", 0, 1, State.DONE, Reason.DONE, 0, 5, "p", DIGEST, NOW),
            pages.ChainPage("0a1b2c3d", 1, (kept,), (ref,)),
            pages.LineagePage("0a1b2c3d", 1, (Lineage(1, 0),), (ref,)),
            blocks.Block("0a1b2c3d", 0, (blocks.Entry(1, "end", "{}", NOW.isoformat()),)),
            Head(
                *("vm/1/b", 0, 1, 2, State.DONE),
                End(Reason.DONE, 0, 5, Result(LAYOUT.result(2), 7, DIGEST), "early"),
                *(NOW, NOW, (kept,), (Lineage(1, 0),), 0, 0),
                (DataFingerprint("gs://b/d", 1, 2, "AAAAAA=="),),
                *("0a", ref, replace(ref, level=1)),
            ),
        )
    }


def _record(kind: type[Record], valid: Record) -> Target:
    def read(folder: Path) -> object:
        text = (folder / f"{kind.__name__}.json").read_bytes()
        found = kind.from_json(text)
        assert type(found) is kind and kind.from_json(found.to_json()) == found
        return found

    files = {f"{kind.__name__}.json": valid.to_json()}
    return Target(kind.__name__, files, read, (ValueError,))


class _Bucket(MemoryStore):
    """The files of a folder as a run's objects; what HEAD names by a digest has that digest."""

    def fill(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(str(path.relative_to(folder)), path.read_bytes())


def _run(work: Path) -> Target:
    """A whole run: HEAD, records of attempts, a block, rows, and all that people ask of it."""
    records = _records()
    head = records[Head]
    assert isinstance(head, Head)
    head = replace(head, older_chain=None, older_lineage=None, term=2)
    files = {
        LAYOUT.head: head.to_json(),
        LAYOUT.attempt_start(1): records[AttemptStart].to_json(),
        LAYOUT.attempt_end(1): records[AttemptEnd].to_json(),
        LAYOUT.heartbeat(2): replace(records[Heartbeat], term=2).to_json(),  # type: ignore[type-var]
        LAYOUT.boot("1", "b"): records[BootRecord].to_json(),
        LAYOUT.boot_end("1", "c"): records[BootEnd].to_json(),
        LAYOUT.records_block(0): records[blocks.Block].to_json(),
        LAYOUT.metrics_piece(
            1, 0
        ): b'{"step":1,"loss":0.5}\n{"step":5,"loss":"NaN","part":"fold"}\n',
    }

    def read(folder: Path) -> object:
        store = _Bucket()
        store.fill(folder)
        found = read_head(store, LAYOUT).head
        read_back = history.read(store, LAYOUT)
        assert read_back is not None and isinstance(read_back.step, int)
        goodput.of(read_back), [attempt.as_json() for attempt in read_back.attempts]
        history.read_boots(store, LAYOUT)
        rows.read_rows(store, LAYOUT, found)
        return found

    return Target("a run", files, read, (StoreError, HeadError, CommitError, ValueError))


def _pages(work: Path) -> Target:
    """Pages that HEAD names with the digest that they have."""
    records = _records()
    page = replace(records[pages.ChainPage], before=())  # type: ignore[type-var]
    line = replace(records[pages.LineagePage], before=())  # type: ignore[type-var]
    files = {"chain.json": page.to_json(), "lineage.json": line.to_json()}
    plain = records[Head]
    assert isinstance(plain, Head)

    def read(folder: Path) -> object:
        store, refs = MemoryStore(), []
        for name in files:
            content = (folder / name).read_bytes()
            digest = blake3(content).hexdigest()
            path = LAYOUT.page(1, digest)
            put: Object = store.put(path, content)
            refs.append(PageRef(path, put.generation, digest, 0, 1, 1, 1))
        head = replace(plain, older_chain=refs[0], older_lineage=refs[1])
        kept = pages.kept(store, LAYOUT, head)
        assert all(isinstance(each, Checkpoint) for each in kept.chain)
        with contextlib.suppress(pages.PageLost):
            collections.deque(pages.lineage(store, LAYOUT, head), 0)
        return kept

    return Target("pages", files, read, (StoreError,))


def _folder_run(work: Path) -> Target:
    """A run's folder as `outlast.open` gives it to people, with its result."""
    model = b'{"format":1,"values":{"model":[1,2]},"arrays":[]}\n'
    table = b'{"step":[1,2],"loss":[0.5,null]}\n'
    inside = {"model.json": model, "model.bin": b"", "metrics.json": table}
    manifest = ResultManifest.of(
        ResultFile(name, len(text), hashlib.sha256(text).hexdigest())
        for name, text in inside.items()
    )
    layout = Layout("", "")
    head = _records()[Head]
    assert isinstance(head, Head)
    kept = replace(head.chain[0], path=layout.snapshot(1, 5, "0a1b"), part="", before=0)
    end = replace(head.end, result=Result(layout.result(2), _ASKED, manifest.digest))  # type: ignore[type-var]
    head = replace(head, chain=(kept,), end=end, older_chain=None, older_lineage=None)
    files = {
        "HEAD": head.to_json(),
        layout.result_manifest(2): manifest.to_json(),
        **{layout.result(2) + name: text for name, text in inside.items()},
        layout.metrics_piece(1, 0): b'{"step":1,"loss":0.5}\n',
    }

    def read(folder: Path) -> object:
        store = open_store(str(folder / "run"))
        made = {}
        for name in [name for name in files if name != "HEAD"]:
            made[name] = store.put(name, (folder / name).read_bytes()).generation
        # Only the store knows the generation that HEAD names.
        read_back = str(made[layout.result_manifest(2)]).encode()
        store.put("HEAD", (folder / "HEAD").read_bytes().replace(str(_ASKED).encode(), read_back))
        opened = notebook.open_run(str(folder / "run"))
        repr(opened), opened.state, opened.step, repr(opened.checkpoints()), opened.rows()
        repr(opened.metrics())
        return opened

    errors = (OperateError,)
    return Target("outlast.open", files, read, errors, ("HEAD", layout.metrics_piece(1, 0)))


def _checkpoint(work: Path) -> Target:
    """A checkpoint as a VM gets it: HEAD names the manifest with the digest that it has."""
    inside = {"arrays.bin": b"a" * 80, "log/state.json": b"{}"}
    folder = LAYOUT.snapshot(1, 5, "0a1b")
    parts = [
        ManifestObject(name, len(text), "AAAAAA==", blake3(text).hexdigest(), 1, None, 0)
        for name, text in inside.items()
    ]
    valid = Manifest("0a1b2c3d", 1, 5, ("best",), 5, tuple(parts))
    files = {"MANIFEST.json": valid.to_json(), **inside}

    def read(place: Path) -> object:
        store = MemoryStore()
        made = {name: store.put(folder + name, text).generation for name, text in inside.items()}
        text = (place / "MANIFEST.json").read_bytes()
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            body = json.loads(text)
            for part in body["objects"]:  # only the store knows them
                part["generation"] = made.get(part["name"], 1)
            text = json.dumps(body).encode()
        put = store.put(f"{folder}MANIFEST.json", text)
        kept = Checkpoint(folder, put.generation, blake3(text).hexdigest(), 1, 5, ())
        reader = restore.Reader(store, ONCE, lambda: None)
        return reader.read(kept, place / "restored")[0]

    return Target("a checkpoint", files, read, (StoreError, RestoreError), ("MANIFEST.json",))


def _result(work: Path) -> Target:
    """A result as it is fetched: HEAD names the digest that the manifest has."""
    inside = {"model.json": b"[1,2]", "plots/loss.svg": b"<svg/>"}
    valid = ResultManifest.of(
        ResultFile(name, len(text), hashlib.sha256(text).hexdigest())
        for name, text in inside.items()
    )
    files = {"RESULT.json": valid.to_json(), **inside}

    def read(place: Path) -> object:
        store, folder = MemoryStore(), LAYOUT.result(1)
        for name, content in inside.items():
            store.put(folder + name, content)
        text, digest = (place / "RESULT.json").read_bytes(), valid.digest
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
            body = json.loads(text)
            digest = result_digest([ResultFile(**each) for each in body["files"]])
            text = json.dumps({**body, "digest": digest}).encode()
        put = store.put(f"{folder}RESULT.json", text)
        (place / "into").mkdir()
        return fetch_result(
            store, Result(folder, put.generation, digest), place / "into", patience=ONCE
        )

    return Target("a result", files, read, (StoreError,), ("RESULT.json",))


def _compared(work: Path) -> Target:
    """Files of two results that are compared, in all formats that are read for it."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    made = []
    for number in (1, 2):
        folder = work / f"{number}"
        folder.mkdir()
        snapshot.write_values(folder / "model.json", {"a": np.arange(number, 3.0), "b": number})
        np.save(folder / "a.npy", np.arange(4.0) + number)
        np.savez(folder / "b.npz", w=np.arange(4) * number, v=np.eye(2))
        tensors = len(header).to_bytes(8, "little") + header + bytes([number]) * 8
        (folder / "c.safetensors").write_bytes(tensors)
        (folder / "log.txt").write_bytes(b"one\n%d\n" % number)
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    files, baseline = made

    def read(folder: Path) -> object:
        found = {name: (folder / name).read_bytes() for name in files}
        pairs = [{"model.json": found["model.json"], name: found[name]} for name in files]
        return [compare.difference(pair, baseline) for pair in pairs]  # a few files are shown

    return Target("compared", files, read, ())


def _table(work: Path) -> Target:
    files = {"metrics.json": b'{"step":[1,2],"loss":[0.5,null],"f1":["NaN",1]}\n'}

    def read(folder: Path) -> object:
        found = metrics.read_table((folder / "metrics.json").read_bytes())
        metrics.last_values(found)
        return found

    return Target("metrics.json", files, read, (ValueError,))


def _listing(work: Path) -> Target:
    found = DataFingerprint("gs://b/d", 1, 3, "AAAAAA==")
    files = {"listing.json": b'{"files":[["a",1,"AAAAAA=="],["b",2,"AAAAAA=="]]}'}

    def read(folder: Path) -> object:
        store = MemoryStore()
        path = LAYOUT.data_listing(found.size, found.crc32c)
        store.put(path, (folder / "listing.json").read_bytes())
        listed = data.Listings(store, LAYOUT).read(found)
        assert listed is None or isinstance(listed, list | tuple)
        return listed or ()

    return Target("data listing", files, read, (StoreError,))


def _latest(work: Path) -> Target:
    files = {"rows.jsonl": b'{"step":1,"loss":0.5}\n{"step":2,"loss":"NaN"}\n'}

    def read(folder: Path) -> object:
        latest = Latest(folder / "rows.jsonl")
        latest.read()
        return latest.rows, latest.metrics

    return Target("a trainer's rows", files, read, ())


def _messages(work: Path) -> Target:
    said = (
        protocol.encode(protocol.Snapshot("1", "/tmp/s", 5, ["best"], 100)),
        protocol.encode(protocol.Error("m", "trainer", ["l"])),
    )
    files = {f"{i}.json": text for i, text in enumerate(said)}

    def read(folder: Path) -> object:
        return [protocol.decode((folder / name).read_bytes()) for name in files]

    return Target("protocol", files, read, (protocol.ProtocolError,))


def _dev(work: Path) -> Target:
    """What the agent on a VM sends, and the files that it lists."""
    files = {
        "ready.json": json.dumps({"kind": "ready", "files": [["a/b", 1, DIGEST]]}).encode(),
        "piece.json": b'{"kind":"piece","size":3}',
    }

    def read(folder: Path) -> object:
        found = [channel.decode((folder / name).read_bytes()) for name in files]
        return pull._checked(found[0].get("files")), found

    return Target("outlast dev", files, read, (channel.Lost, OperateError))


def _metadata(work: Path) -> Target:
    """An instance's metadata, of which a template's author chose each value."""
    spec = RunSpec(
        *("experiments/x", "0a1b2c3d", 0, 1, "o/p/s", "digits", NOW),
        args={"epochs": "5"},
        timeouts=Timeouts(keep=5.0),
        command=("python3", "train.py"),
        command_options={"checkpoint-when": "quiet"},
        data=("gs://b/d",),
        git=Git("https://h.example/x", "0" * 40),
        secret_env={"KEY": "projects/p/secrets/s/versions/latest"},
        bucket="b",
        sweep_rules=SweepRules("lr", "loss", Goal.MIN, Rule.HALVING, min_step=10),
        content={"trainer": "digits"},
        billed={"spot": True},
        budget_dollars=5.0,
        hour_prices={"n2-standard-2": 0.1},
    )
    files = {key: text.encode() for key, text in spec.to_metadata().items()}

    def read(folder: Path) -> object:
        given = {name: (folder / name).read_bytes().decode(errors="replace") for name in files}
        found = RunSpec.from_metadata(given)
        assert RunSpec.from_metadata(found.to_metadata()) == found
        found.to_json()
        return found

    return Target("metadata", files, read, (BadSpec,))


def _sweep(work: Path) -> Target:
    """A sweep's objects: those of the operator, the values and the decisions."""
    records, trial = _records(), "0a1b2c3d4e"
    layout = SweepLayout("lr")
    mine = replace(records[RungValue], run=trial)  # type: ignore[type-var]
    objects = SweepObjects(MemoryStore(), "lr")
    files = {
        f"{objects.root}SWEEP.json": records[SweepRecord].to_json(),
        f"{objects.root}trials/{trial}.json": records[TrialRecord].to_json(),
        f"{objects.root}up/{trial}.json": records[UpRecord].to_json(),
        layout.value(10, "1a1b2c3d4e"): replace(mine, run="1a1b2c3d4e").to_json(),
        layout.value(10, trial): mine.to_json(),
        layout.decision(10, trial): replace(records[RungDecision], run=trial).to_json(),  # type: ignore[type-var]
    }
    assert isinstance(mine, RungValue)

    def read(folder: Path) -> object:
        store = _Bucket()
        store.fill(folder)
        found = SweepObjects(store, "lr")
        asked, trials, ups = found.record(), found.trials(), found.ups()
        decided = rungs.decisions_of(store, layout, trial, patience=ONCE)
        before = rungs.values_before(store, layout, mine, patience=ONCE)
        return asked, trials, ups, decided, before

    return Target("a sweep", files, read, (StoreError,))


_MAKERS: tuple[Callable[[Path], Target], ...] = (
    *(_snapshot, _snapshot, _model, _model, _part, _command, _run, _pages, _folder_run),
    *(_checkpoint, _result, _compared, _table, _listing, _latest, _messages),
    *(_dev, _metadata, _sweep),
)
"""The largest formats stand here twice: they are changed as often as two others."""


def targets(work: Path) -> Iterator[Target]:
    """All readers, their valid files made below ``work``."""
    for number, make in enumerate(_MAKERS):
        folder = work / f"{number:02d}"
        folder.mkdir(parents=True)
        yield make(folder)
    for kind, valid in _records().items():
        yield _record(kind, valid)
