"""Object names, records and the schema of a result's metrics."""

import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.base import exits
from outlast.base.codec import Record, canonical_json, format_time, parse_time
from outlast.base.exits import Reason, State
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
    check_object_name,
)
from outlast.spec.metrics import Last
from outlast.spec.result import ResultFile, ResultManifest

MOMENT = datetime(2026, 11, 27, 23, 59, 59, tzinfo=UTC)

VALUE = RungValue("abcdef0123", 100, 100, 0.7, 0.8, 0.6)
RECORDS: list[Record] = [
    BootRecord("123", "b-1", "vm-x", "us-central1-a", 0, 1, MOMENT),
    BootEnd("123", "b-1", Reason.SETUP_FAILED, "fetch-bundle", 1, "sha256 differs", MOMENT),
    AttemptStart(
        term=3,
        resume=0,
        placement=0,
        instance="vm-x",
        instance_id="123",
        boot_id="b-1",
        zone="us-central1-a",
        machine_type="e2-small",
        image="image",
        trainer="digits",
        spec={"args": {"epochs": 3}},
        versions={"python": "3.11"},
        step=10,
        restored="p/t000002/s000000000010-aa/",
        time=MOMENT,
    ),
    AttemptEnd(3, Reason.HOST_ERROR, State.OPEN, 75, 12, 10, "", ("line",), 1.5, MOMENT, True),
    Heartbeat(3, 12, 100, "training", 4.0, 10, 2.5, ({"step": 12, "loss": 0.5},), MOMENT),
    Heartbeat(3, 12, 100, "training", 4.0, 10, 2.5, (), MOMENT, metrics={"loss": Last(12, 0.5)}),
    Manifest(
        "0123456789", 3, 10, ("best",), 10, (ManifestObject("a/x", 1, "AAAAAA==", "ab" * 32, 7),)
    ),
    ResultManifest.of([ResultFile("b", 1, "2" * 64), ResultFile("a", 1, "1" * 64)]),
    StopRequest(0, 480.0, MOMENT),
    RungValue("0123456789", 100, 90, 0.5, None, 0.25),
    RungDecision("0123456789", 100, Choice.STOP, 1, {"eta": 4}, 0.5, 0.7, (VALUE,), "is worse"),
    EndCopy("0123456789", 0, 3, State.DONE, Reason.DONE, 0, 90, "p/result/", "1" * 64, MOMENT),
]


def test_names_are_those_of_the_design() -> None:
    layout = Layout("experiments/demo", "0123456789")
    root = "experiments/demo/0123456789"
    assert layout.root == f"{root}/"
    assert layout.head == f"{root}/HEAD"
    assert layout.boot("123", "b-1") == f"{root}/boots/123-b-1.json"
    assert layout.boot_end("123", "b-1") == f"{root}/boots/123-b-1.end.json"
    assert layout.attempt_start(3) == f"{root}/attempts/000003/start.json"
    assert layout.attempt_end(3) == f"{root}/attempts/000003/end.json"
    assert layout.heartbeat(3) == f"{root}/attempts/000003/heartbeat.json"
    assert layout.log_piece(3, 1) == f"{root}/attempts/000003/log/000001.log"
    assert layout.metrics_piece(3, 0) == f"{root}/metrics/t000003/000000.jsonl"
    assert layout.snapshot(3, 12000, "ab") == f"{root}/t000003/s000000012000-ab/"
    assert layout.manifest(3, 1, "ab") == f"{root}/t000003/s000000000001-ab/MANIFEST.json"
    assert layout.result_manifest(3) == f"{root}/t000003/result/RESULT.json"
    assert layout.end(2) == f"{root}/END-r2.json"
    assert layout.stop_request(2) == f"{root}/STOP-r2.json"
    assert layout.bundle("ff") == "experiments/demo/bundles/ff.zip"


def test_a_run_in_a_folder_has_no_prefix() -> None:
    layout = Layout("", "")
    assert (layout.root, layout.head, layout.attempts) == ("", "HEAD", "attempts/")
    assert layout.folder_of("t000001/result/model") == (1, "t000001/result/")


def test_folder_of_knows_snapshots_and_results_only() -> None:
    layout = Layout("p", "r")
    assert layout.folder_of("p/r/t000012/s000000000003-0a/x/y") == (
        12,
        "p/r/t000012/s000000000003-0a/",
    )
    for other in (
        "p/r/HEAD",
        "p/r/metrics/t000001/000000.jsonl",
        "p/q/t000001/result/x",
        "p/r/t000001/x",
        "t000001/result/x",
    ):
        assert layout.folder_of(other) is None


@pytest.mark.parametrize("prefix", ["/a", "a/"])
def test_prefix_with_outer_slashes_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="must not start or end with a slash"):
        Layout(prefix, "r")


@given(st.integers(0, 999_999), st.integers(0, 999_999))
def test_names_sort_as_their_numbers_do(one: int, two: int) -> None:
    layout = Layout("p", "r")
    assert (layout.term(one) < layout.term(two)) == (one < two)
    assert (layout.snapshot(1, one, "a") < layout.snapshot(1, two, "a")) == (one < two)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
class TestRecord:
    def test_reads_what_it_wrote(self, record: Record) -> None:
        assert type(record).from_json(record.to_json()) == record

    def test_refuses_an_unknown_field(self, record: Record) -> None:
        value = json.loads(record.to_json())
        value["extra"] = 1
        with pytest.raises(ValueError, match=r"\.extra: unknown field"):
            type(record).from_json(json.dumps(value))

    def test_shows_an_unknown_fields_name_as_text(self, record: Record) -> None:
        """A space at its end, or a control character, is seen and hides nothing."""
        for name, shown in (("stat ", "'stat '"), ("a\x1b[2J", r"'a\x1b[2J'"), ("a: b", "'a: b'")):
            text = json.dumps({**json.loads(record.to_json()), name: 1})
            with pytest.raises(ValueError) as error:
                type(record).from_json(text)
            assert f".{shown}: unknown field" in str(error.value)

    def test_refuses_each_missing_field(self, record: Record) -> None:
        value = json.loads(record.to_json())
        for name in value:
            cut = {key: entry for key, entry in value.items() if key != name}
            with pytest.raises(ValueError, match=name):
                type(record).from_json(json.dumps(cut))

    def test_refuses_another_type_in_each_field(self, record: Record) -> None:
        value = json.loads(record.to_json())
        for name, entry in value.items():
            other = "True" if type(entry) is bool else True
            with pytest.raises(ValueError, match=name):
                type(record).from_json(json.dumps({**value, name: other}))

    def test_refuses_json_that_is_not_an_object(self, record: Record) -> None:
        for data in (b"", b"[]", b"\xff", b"{" * 100_000, b"null"):
            with pytest.raises(ValueError, match=type(record).__name__):
                type(record).from_json(data)


@pytest.mark.parametrize("name", ["", ".", "../x", "a/../b", "/x", "a//b", "a/", "a\\b", "a\0b"])
def test_object_names_cannot_leave_their_folder(name: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        check_object_name(name)
    with pytest.raises(ValueError, match="relative path"):
        Manifest("r", 1, 1, (), 0, (ManifestObject(name, 1, "", "", 1),))


def test_object_names_are_utf8() -> None:
    assert check_object_name("café/\U0001f600") == "café/\U0001f600"
    with pytest.raises(ValueError, match="must be valid UTF-8; rename it"):
        check_object_name(os.fsdecode(b"caf\xe9"))


def test_result_digest_is_what_sha256sum_gives(tmp_path: Path) -> None:
    files = []
    for name in ("model.bin", "metrics.json"):
        (tmp_path / name).write_bytes(name.encode())
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        files.append(ResultFile(name, len(name), sha256))
    printed = subprocess.run(
        ["sha256sum", "metrics.json", "model.bin"], cwd=tmp_path, check=True, capture_output=True
    ).stdout
    assert ResultManifest.of(files).digest == hashlib.sha256(printed).hexdigest()


def test_result_with_another_digest_is_refused() -> None:
    value = json.loads(ResultManifest.of([ResultFile("a", 1, "1" * 64)]).to_json())
    value["digest"] = "0" * 64
    with pytest.raises(ValueError, match="digest '000.*the files listed give"):
        ResultManifest.from_json(json.dumps(value))


def test_times_are_utc() -> None:
    assert format_time(MOMENT) == "2026-11-27T23:59:59Z"
    east = MOMENT.astimezone(timezone(timedelta(hours=2)))
    assert format_time(east) == "2026-11-27T23:59:59Z"
    assert format_time(MOMENT.replace(microsecond=12_345)) == "2026-11-27T23:59:59.012Z"
    assert parse_time("2026-11-28T01:59:59+02:00") == MOMENT
    for text in ("2026-11-27", "yesterday", "2026-11-27T23:59:59"):
        with pytest.raises(ValueError, match="time"):
            parse_time(text)


def test_canonical_json_has_one_text() -> None:
    assert canonical_json({"b": [1, "é"], "a": None}) == b'{"a":null,"b":[1,"\\u00e9"]}'
    half = os.fsdecode(b"caf\xe9")
    assert json.loads(canonical_json(half)) == half
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


def test_reasons_fall_into_one_kind_each() -> None:
    kinds = [
        exits.INFRASTRUCTURE_REASONS,
        exits.RETRIED_USER_REASONS,
        exits.FINAL_USER_REASONS,
    ]
    for reason in Reason:
        assert sum(reason in kind for kind in kinds) <= 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (64, Reason.USAGE),
        (75, Reason.INTERRUPTED),
        (137, Reason.OUT_OF_MEMORY),
        (-9, Reason.OUT_OF_MEMORY),
        (1, Reason.USER_FAILED),
        (-11, Reason.USER_FAILED),
    ],
)
def test_exit_codes_have_reasons(code: int, reason: Reason) -> None:
    assert exits.reason_of_exit(code) is reason


def test_layout_and_exits_need_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import outlast.bucket.layout, outlast.base.exits;"
        "print([m for m in set(sys.modules) - before"
        " if m.split('.')[0] not in sys.stdlib_module_names | {'outlast'}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
