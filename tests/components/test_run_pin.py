"""RunPin: what a run's VMs are told, by every state that its HEAD may have."""

import base64
import dataclasses
import pickle
from datetime import UTC, datetime, timedelta

import dill
import pytest
from pulumi.dynamic.dynamic import serialize_provider

from components import providers
from components.providers import Pin, RunPinProvider, obstacle, pin
from outlast.exits import Reason, State
from outlast.layout import Layout
from outlast.run.head import End, Head
from outlast.run.store import MemoryStore, Unavailable

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
FRESH = "2026-11-27T13:00:00Z"
OPEN = Head(
    owner="organization/outlast/dev",
    resume=1,
    place=4,
    term=3,
    state=State.OPEN,
    end=None,
    started=NOW - timedelta(hours=1),
    deadline=NOW + timedelta(minutes=30),
    chain=(),
    lineage=(),
    failures=0,
    barren=0,
    data=None,
    nonce="0" * 16,
)
FAILED = OPEN.ended(State.FAILED, End(Reason.USER_FAILED, 1, 5, None))
DONE = OPEN.ended(State.DONE, End(Reason.DONE, 0, 5, None))
STOPPED = OPEN.ended(State.STOPPED, End(Reason.STOPPED, None, 5, None))
EXPIRED = dataclasses.replace(OPEN, deadline=NOW)

PROPS = {
    "owner": "organization/outlast/dev",
    "bucket": "p-outlast",
    "prefix": "experiments/dev",
    "run": "0123456789",
    "resume": 1.0,  # numbers reach a dynamic provider as floats
    "zone": "europe-west4-a",
    "image": "projects/p/global/images/family/f",
    "limitRunMinutes": 60.0,
    "__provider": "x",
}


@pytest.mark.parametrize(
    ("head", "resume", "expected"),
    [
        (None, 1, Pin(FRESH, 0, 1)),
        (OPEN, 1, Pin("2026-11-27T12:30:00Z", 5, 1)),
        (OPEN, 2, Pin(FRESH, 0, 1)),
        (OPEN, 0, Pin(FRESH, 0, 0)),
        (EXPIRED, 1, Pin("2026-11-27T12:00:00Z", 5, 0)),
        (EXPIRED, 2, Pin(FRESH, 0, 1)),
        (FAILED, 1, Pin(FRESH, 0, 0)),
        (FAILED, 2, Pin(FRESH, 0, 1)),
        (STOPPED, 1, Pin(FRESH, 0, 0)),
        (STOPPED, 2, Pin(FRESH, 0, 1)),
        (DONE, 1, Pin(FRESH, 0, 0)),
        (DONE, 2, Pin(FRESH, 0, 0)),
    ],
)
def test_pin_of_every_head(head, resume, expected):
    assert pin(head, resume=resume, limit_minutes=60, now=NOW) == expected


@pytest.mark.parametrize(
    ("head", "resume", "words"),
    [
        (FAILED, 1, "has ended as failed (user-failed), nothing is started; outlast resume"),
        (STOPPED, 1, "has ended as stopped (stopped), nothing is started; outlast resume"),
        (EXPIRED, 1, "passed its limit of 2026-11-27 12:00 UTC"),
        (EXPIRED, 1, "outlast resume"),
        (OPEN, 0, "is at resume 1 already"),
        (DONE, 5, "is done, nothing is started; other args or outlast:rerun"),
    ],
)
def test_an_obstacle_names_the_remedy(head, resume, words):
    assert words in (obstacle(head, resume=resume, now=NOW) or "")


@pytest.mark.parametrize(("head", "resume"), [(OPEN, 1), (OPEN, 2), (FAILED, 2), (EXPIRED, 2)])
def test_no_obstacle(head, resume):
    assert obstacle(head, resume=resume, now=NOW) is None


# -- the provider


@pytest.fixture
def store(monkeypatch):
    made = MemoryStore(clock=lambda: NOW)
    monkeypatch.setattr(providers, "open_store", lambda url: made)
    monkeypatch.setattr(providers, "_said", set())
    return made


def put(store, head):
    data = head if isinstance(head, bytes) else head.to_json()
    store.put(Layout("experiments/dev", "0123456789").head, data)


def test_create_without_head_is_fresh(store):
    made = RunPinProvider().create(PROPS)
    assert made.id == "experiments/dev/0123456789/r1"
    assert made.outs == {**PROPS, "deadline": FRESH, "place": 0, "size": 1}


def test_create_goes_on_with_an_open_run(store):
    put(store, OPEN)
    outs = RunPinProvider().create(PROPS).outs
    assert (outs["deadline"], outs["place"], outs["size"]) == ("2026-11-27T12:30:00Z", 5, 1)


def test_create_with_garbage_starts_nothing(store):
    put(store, b"{]")
    outs = RunPinProvider().create(PROPS).outs
    assert (outs["deadline"], outs["place"], outs["size"]) == (FRESH, 0, 0)


def test_another_zone_is_another_place_by_the_same_deadline(store):
    put(store, OPEN)
    olds = {**PROPS, "deadline": "2026-11-27T12:34:56Z", "place": 7.0, "size": 1.0}
    news = {**PROPS, "zone": "europe-west4-b", "image": "other"}
    diff = RunPinProvider().diff("id", olds, news)
    assert (diff.changes, diff.replaces) == (True, [])
    outs = RunPinProvider().update("id", olds, news).outs
    assert (outs["deadline"], outs["place"], outs["zone"]) == (
        "2026-11-27T12:34:56Z",
        8,
        "europe-west4-b",
    )
    assert outs["image"] == PROPS["image"]  # kept until the next resume


def test_a_resume_takes_the_image_of_its_day(store):
    outs = RunPinProvider().create({**PROPS, "resume": 2, "image": "other"}).outs
    assert outs["image"] == "other"


@pytest.mark.parametrize(
    "change", [{"limitRunMinutes": 90}, {"image": "other"}, {"__provider": "y"}, {}]
)
def test_what_is_no_difference(change):
    diff = RunPinProvider().diff("id", {**PROPS, "place": 1, "size": 1}, {**PROPS, **change})
    assert (diff.changes, diff.replaces) == (False, [])


@pytest.mark.parametrize("key", ["owner", "bucket", "prefix", "run", "resume"])
def test_another_run_or_resume_is_another_pin(key):
    diff = RunPinProvider().diff("id", PROPS, {**PROPS, key: 9})
    assert (diff.changes, diff.replaces) == (True, [key])


@pytest.mark.parametrize("head", [FAILED, EXPIRED, DONE, b"garbage"])
def test_check_says_what_stands_against_the_run_once(store, head, capsys):
    put(store, head)
    provider = RunPinProvider()
    for _ in range(2):
        assert provider.check({}, dict(PROPS)).failures == []
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("run 0123456789") and "outlast" in lines[0]


def test_check_is_quiet_about_a_run_that_goes_on(store, capsys):
    assert RunPinProvider().check({}, dict(PROPS)).failures == []
    put(store, OPEN)
    assert RunPinProvider().check({}, dict(PROPS)).inputs == PROPS
    assert capsys.readouterr().err == ""


def test_another_owner_is_refused(store):
    put(store, dataclasses.replace(OPEN, owner="organization/outlast/theirs"))
    (failure,) = RunPinProvider().check({}, dict(PROPS)).failures
    assert failure.property == "owner"
    assert "belongs to organization/outlast/theirs, not to organization/outlast/dev; choose" in (
        failure.reason
    )


def test_a_bucket_that_does_not_answer_stops_create_but_no_preview(monkeypatch):
    def unavailable(url):
        raise Unavailable("no answer")

    monkeypatch.setattr(providers, "open_store", unavailable)
    assert RunPinProvider().check({}, dict(PROPS)).failures == []
    with pytest.raises(Unavailable):
        RunPinProvider().create(PROPS)


def test_the_provider_is_pickled_by_reference():
    data = base64.b64decode(serialize_provider(RunPinProvider()))
    assert b"components.providers" in data and len(data) < 200
    assert isinstance(dill.loads(data), RunPinProvider)
    assert isinstance(pickle.loads(data), RunPinProvider)
    assert RunPinProvider.serialize_as_secret_always is False
