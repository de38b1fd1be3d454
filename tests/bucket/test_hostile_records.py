"""Records that someone else wrote: no text in them leads to a path outside, and they cause no
deletions."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import outlast
from outlast.base import exits
from outlast.base.codec import Record, canonical_json
from outlast.base.exits import Reason, State
from outlast.bucket import pages
from outlast.bucket.data import DataError, Listings, parse_url
from outlast.bucket.errors import BadSnapshot
from outlast.bucket.fetch import cached_result
from outlast.bucket.head import (
    Checkpoint,
    DataFingerprint,
    End,
    Head,
    HeadUnreadable,
    PageRef,
    Result,
    read_head,
)
from outlast.bucket.layout import (
    AttemptStart,
    BootRecord,
    Choice,
    Heartbeat,
    Layout,
    Manifest,
    RungDecision,
    RungValue,
)
from outlast.bucket.results import put_result
from outlast.bucket.store import MemoryStore, StoreError, open_store
from outlast.spec.result import ResultFile, ResultManifest

NOW = datetime(2026, 11, 27, tzinfo=UTC)
LAYOUT = Layout("experiments/mine", "run1")
DIGEST = "0" * 64


def head(**changed: Any) -> Head:
    fields: dict[str, Any] = {
        "owner": "folder/local/x",
        "resume": 0,
        "placement": 0,
        "term": 1,
        "state": State.OPEN,
        "end": None,
        "started": NOW,
        "deadline": NOW + timedelta(days=1),
        "chain": (),
        "lineage": (),
        "failures": 0,
        "no_progress": 0,
        "data": None,
        "nonce": "n",
    }
    return Head(**{**fields, **changed})


def done(digest: str, path: str = "t000001/result/") -> Head:
    return head(state=State.DONE, end=End(Reason.DONE, 0, 10, Result(path, 1, digest)))


@pytest.fixture
def precious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home/Documents"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "home/.cache/outlast"))
    return folder


@pytest.mark.parametrize("kind", ["absolute", "relative", "with its cache", "short", "capital"])
def test_a_results_digest_cannot_be_a_path(precious: Path, tmp_path: Path, kind: str) -> None:
    digest = {
        "absolute": str(precious),
        "relative": "../../../Documents",
        "with its cache": "../../../Documents",
        "short": "0" * 63,
        "capital": "A" * 64,
    }[kind]
    if kind == "with its cache":
        (tmp_path / "home/.cache/outlast/results").mkdir(parents=True)
    run = tmp_path / "run"
    open_store(str(run)).put("HEAD", done(digest).to_json())
    with pytest.raises(Exception, match=r"end.result.digest .*must be 64 hexadecimal digits"):
        outlast.open(f"{run}/").result()
    argv = [sys.executable, "-m", "outlast.supervisor", "fetch", str(run)]
    argv += ["--into", str(tmp_path / "cache")]
    ended = subprocess.run(argv, capture_output=True, text=True)
    assert ended.returncode == exits.USAGE and "Traceback" not in ended.stderr
    assert "must be 64 hexadecimal digits" in ended.stderr
    assert (precious / "thesis.tex").read_text() == "years of work"


def test_a_result_itself_with_such_a_digest_is_refused(precious: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be 64 hexadecimal digits"):
        cached_result(MemoryStore(), Result("r/", 1, str(precious)), tmp_path / "cache")
    assert (precious / "thesis.tex").exists()


class TestCachedResult:
    """A cached file is replaced once the new one is verified, and not before."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> tuple[MemoryStore, Result]:
        store, folder = MemoryStore(), tmp_path / "made"
        folder.mkdir()
        (folder / "model").write_text("m")
        return store, put_result(store, LAYOUT, 1, folder)

    def test_what_is_not_whole_is_replaced(self, stored: Any, tmp_path: Path) -> None:
        folder = cached_result(stored[0], stored[1], tmp_path)
        (folder / "model").write_text("other bytes")
        assert (cached_result(stored[0], stored[1], tmp_path) / "model").read_text() == "m"
        assert [path.name for path in (tmp_path / "results").iterdir()] == [folder.name]

    def test_it_stays_where_nothing_can_be_fetched(self, stored: Any, tmp_path: Path) -> None:
        store, result = stored
        folder = cached_result(store, result, tmp_path)
        (folder / "model").write_text("other bytes")
        for found in list(store.list("")):
            store.delete(found.path, generation=found.generation)
        with pytest.raises(StoreError):
            cached_result(store, result, tmp_path)
        assert (folder / "model").read_text() == "other bytes"

    def test_a_link_in_its_place_is_replaced_and_not_followed(
        self, stored: Any, precious: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / stored[1].digest).symlink_to(precious)
        assert (cached_result(stored[0], stored[1], tmp_path) / "model").read_text() == "m"
        assert [path.name for path in precious.iterdir()] == ["thesis.tex"]


CHECKPOINT = Checkpoint("experiments/mine/run1/t000001/s000000000001-aa/", 1, DIGEST, 1, 1, ())


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("nonce", "../x", "Head.nonce"),
        ("nonce", "n" * 65, "Head.nonce"),
        ("nonce", "n\n", "Head.nonce"),
        ("placement", 1_000_000_000, "Head.placement"),
        ("resume", -1, "Head.resume"),
        ("term", 1_000_000_000, "Head.term"),
        ("failures", -1, "Head.failures"),
        ("chain", [{"blake3": "../../x"}], r"Head.chain\[0\].blake3"),
        ("chain", [{"blake3": "é" * 64}], r"Head.chain\[0\].blake3"),
        ("chain", [{"generation": -1}], r"Head.chain\[0\].generation"),
        ("chain", [{"step": -1}], r"Head.chain\[0\].step"),
        ("chain", [{"part": "../x"}], r"Head.chain\[0\].part"),
        ("chain", [{"tags": ["a/../b"]}], r"Head.chain\[0\].tags\[0\]"),
        ("chain", [{"path": "experiments/mine/run1/t000001/s00000000000١-aa/"}], "Head path"),
        ("chain", [{"path": "experiments/victim/"}], "Head path"),
        ("data", [{"crc32c": "../../x"}], r"Head.data\[0\].crc32c"),
        ("data", [{"size": -1}], r"Head.data\[0\].size"),
        ("lineage", [{"term": 1, "from": -1}], r"Head.lineage\[0\].from"),
    ],
)
def test_what_head_says_has_its_alphabet_and_length(field: str, value: Any, place: str) -> None:
    value = (
        [
            {
                **{
                    "chain": json.loads(head(chain=(CHECKPOINT,)).to_json())["chain"][0],
                    "data": {"name": "d", "generation": 1, "size": 1, "crc32c": "AAAAAA=="},
                    "lineage": {},
                }[field],
                **value[0],
            }
        ]
        if isinstance(value, list)
        else value
    )
    store = MemoryStore()
    body = {**json.loads(head().to_json()), field: value}
    store.put(LAYOUT.head, canonical_json(body))
    with pytest.raises(HeadUnreadable, match=place.removeprefix("Head.")):
        read_head(store, LAYOUT)


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (BootRecord("1", "b", "vm", "europe-west4-a", 0, 0, NOW), "instance_id", "../1"),
        (BootRecord("1", "b", "vm", "europe-west4-a", 0, 0, NOW), "boot_id", "b/c"),
        (BootRecord("1", "b", "vm", "europe-west4-a", 0, 0, NOW), "zone", "$(id)"),
        (BootRecord("1", "b", "vm", "europe-west4-a", 0, 0, NOW), "instance", "-oProxyCommand x"),
        (Heartbeat(1, 1, None, "x", None, None, None, (), NOW), "rate", float("nan")),
        (Heartbeat(1, 1, None, "x", None, None, None, (), NOW), "commit_sec", -1.0),
        (Heartbeat(1, 1, None, "x", None, None, None, (), NOW, part="p"), "part", "../p"),
        (RungValue("0a", 10, 10, 0.5, 0.5, 0.5), "run", "../0a"),
        (RungValue("0a", 10, 10, 0.5, 0.5, 0.5), "value", float("inf")),
        (RungDecision("0a", 10, Choice.STOP, 0, {}, 0.5, 0.7, (), "x"), "choice", "pause"),
        (RungDecision("0a", 10, Choice.STOP, 0, {}, 0.5, 0.7, (), "x"), "why", "x" * 1001),
    ],
)
def test_other_records_have_them_too(record: Record, field: str, value: Any) -> None:
    body = {**json.loads(record.to_json()), field: value}
    with pytest.raises(ValueError, match=rf"{type(record).__name__}.{field} "):
        type(record).from_json(json.dumps(body))


def test_an_attempts_place_is_bounded() -> None:
    start = AttemptStart(
        1, 0, 0, "vm", "1", "b", "z", "e2", "i", "t", {}, {}, 0, None, NOW
    ).to_json()
    with pytest.raises(ValueError, match="AttemptStart.placement"):
        AttemptStart.from_json(json.dumps({**json.loads(start), "placement": 1 << 70}))


def manifest(*objects: dict[str, Any]) -> bytes:
    whole = {
        "crc32c": "x",
        "blake3": blake3(b"abc").hexdigest(),
        "generation": 1,
        "file": None,
        "offset": 0,
        "size": 3,
    }
    body = json.loads(Manifest("run1", 1, 1, (), 0, ()).to_json())
    return canonical_json({**body, "objects": [{**whole, **one} for one in objects]})


@pytest.mark.parametrize(
    "objects",
    [
        [{"name": "../../x"}],
        [{"name": "/tmp/outlast-hostile"}],
        [{"name": "a", "file": "/tmp/outlast-hostile"}],
        [{"name": "a", "file": "b/../../../x"}],
        [{"name": "..\\x"}],
        [{"name": "a\nb"}],
        [{"name": "a", "size": -5}],
        [{"name": "a", "size": 1 << 70}],
        [{"name": "a", "offset": -3}],
        [{"name": "a", "blake3": "0" * 63}],
        [{"name": "a"}, {"name": "a/b"}],
        [{"name": "x", "file": "a"}, {"name": "a/b/c"}],
    ],
)
def test_a_manifest_names_files_of_its_folder(objects: list[dict[str, Any]]) -> None:
    assert Manifest.from_json(manifest({"name": "a"})).objects[0].name == "a"
    with pytest.raises(ValueError, match="object name|Manifest.objects"):
        Manifest.from_json(manifest(*objects))


def test_a_results_manifest_holds_no_file_that_is_a_folder_too() -> None:
    files = [ResultFile("a", 1, DIGEST), ResultFile("a/b", 1, DIGEST)]
    with pytest.raises(ValueError, match="'a' would be a file and a folder"):
        ResultManifest.of(files)


def test_a_page_that_names_pages_elsewhere_is_lost() -> None:
    """Retention deletes pages, with the rights of the person who resumes the run."""
    store = MemoryStore()
    elsewhere = PageRef("experiments/victim/HEAD", 1, DIGEST, 0, 1, 1, 1)
    page = pages.ChainPage(run="run1", term=1, entries=(), before=(elsewhere,)).to_json()
    digest = blake3(page).hexdigest()
    written = store.put(LAYOUT.page(1, digest), page)
    ref = PageRef(written.path, written.generation, digest, 1, 1, 1, 1)
    kept = pages.kept(store, LAYOUT, head(older_chain=ref))
    assert kept.chain == () and "is not a page of this run" in kept.lost[0]


@pytest.mark.parametrize("url", ["gs://../d", "gs://.hidden/d", "gs://b c/d", "gs://B/d"])
def test_a_data_bucket_cannot_be_a_path(url: str) -> None:
    with pytest.raises(DataError, match="name of a bucket"):
        parse_url(url)


def test_a_tag_that_no_reader_takes_is_never_committed(tmp_path: Path) -> None:
    from outlast.bucket.commit import Committer
    from outlast.bucket.head import Head
    from outlast.bucket.headfile import Claim, HeadFile

    store = MemoryStore()
    head_file = HeadFile(store, LAYOUT)
    claim = Claim("o", 0, 0, datetime.now(UTC) + timedelta(days=1))
    head_file.take_term(claim, still_member=lambda: True, forbidden_seconds=0)
    committer = Committer(head_file)
    committer.restore(tmp_path / "restored")
    (tmp_path / "snap").mkdir()
    (tmp_path / "snap/state.json").write_text("{}")
    with pytest.raises(BadSnapshot, match="tag 'a/b'"):
        committer.commit(tmp_path / "snap", step=1, tags=["a/b"])
    assert Head.from_json(store.get(LAYOUT.head)[0]).chain == ()


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128, "d/" * 512 + "a"])
def test_names_that_no_file_or_object_can_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must have at most 1024 bytes, and 255 between two"):
        ResultManifest.of([ResultFile(name, 1, DIGEST)])


def test_a_field_that_may_hold_any_json_is_bounded_in_depth() -> None:
    def start(levels: int) -> bytes:
        deep: dict[str, Any] = {}
        for _ in range(levels):
            deep = {"a": deep}
        fields = ("vm", "1", "b", "z", "m", "i", "digits", deep, {}, 0, None, NOW)
        return AttemptStart(1, 0, 0, *fields).to_json()

    assert AttemptStart.from_json(start(50)).to_json() == start(50)
    with pytest.raises(ValueError, match=r"AttemptStart.spec.a: must not be nested deeper than"):
        AttemptStart.from_json(start(102))


def test_a_list_of_data_files_with_half_a_surrogate_pair_is_none() -> None:
    store, found = MemoryStore(), DataFingerprint("gs://b/d", 1, 3, "AAAAAA==")
    path = LAYOUT.data_listing(found.size, found.crc32c)
    store.put(path, b'{"files":[["b",2,"AAAAAA=\\ud800="]]}')
    assert Listings(store, LAYOUT).read(found) is None
