"""RunPin: what a run's VMs get, for every state that its HEAD may have."""

import base64
import dataclasses
import pickle
from datetime import UTC, datetime, timedelta

import dill
import pytest
from pulumi.dynamic.dynamic import serialize_provider
from pulumi.output import Unknown
from requests.adapters import HTTPAdapter

from outlast.base.codec import parse_time
from outlast.base.exits import Reason, State
from outlast.base.retry import BRIEF, Patience, Trouble
from outlast.bucket.head import Checkpoint, End, Head, Move, Phase
from outlast.bucket.layout import Layout
from outlast.bucket.standing import obstacle
from outlast.bucket.store import Forbidden, GcsStore, MemoryStore, Unavailable
from outlast.cloud import images
from outlast.cloud.images import Image, ImageMissing
from outlast.dynamic import boot_image, host, run_pin
from outlast.dynamic.run_pin import (
    Pin,
    RunPinProvider,
    pin,
)
from outlast.localcloud.storage import pages
from tests.cli.records import start_record
from tests.stores import FakeClock
from tests.stores import storage_api as storage_api  # a fixture

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
FRESH = "2026-11-27T13:00:00Z"
OPEN = Head(
    owner="organization/outlast/dev",
    resume=1,
    placement=4,
    term=3,
    state=State.OPEN,
    end=None,
    started=NOW - timedelta(hours=1),
    deadline=NOW + timedelta(minutes=30),
    chain=(),
    lineage=(),
    failures=0,
    no_progress=0,
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
    "boot": {
        "disk_gb": 50.0,
        "gpus": 0.0,
        "machine_type": "e2-standard-2",
        "base": "",
        "installs_driver": False,
    },
    "maxRunMinutes": 60.0,
    "project": "p",
    "content": {
        "trainer": "digits",
        "arguments": {"epochs": 5.0, "hidden": "4"},
        "source": "a" * 64,
    },
    "named": "0123456789",
    "mutable": {"epochs": "raised", "threads": "any"},
    "onNewRun": "refuse",
    "__provider": "x",
}
IMAGE = "projects/p/global/images/f-1"
FOUND = {
    PROPS["image"]: Image("", "p", "f-1", "f"),
    "other": Image("", "p", "o-1", "o"),
    "large": Image("", "p", "l-1", "l", size_gb=51),
    "just": Image("", "p", "j-1", "j", size_gb=50),
    "debian-13": Image("", "debian-cloud", "debian-13-v1", "debian-13", size_gb=10),
    "baked": Image("", "p", "b-1", "b", labels={"gpu-driver": "none"}),
    "gone": ImageMissing("gone", "projects/p/global/images/family/new", "2025"),
    "obsolete": Image("", "p", "old-1", "old", "OBSOLETE", "projects/p/global/images/new-1"),
}
NO_ANSWER = images.Unknown("no network")


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


FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
HOSTILE = [
    *({"deadline": moment} for moment in (FIRST, LAST, NOW - timedelta(seconds=1))),
    *({"started": moment} for moment in (FIRST, LAST)),
    *({"started": one, "deadline": other} for one in (FIRST, LAST) for other in (FIRST, LAST)),
    *({"placement": placement} for placement in (0, 999_998, 999_999, 999_999_999)),
    *({"term": 999_999_999}, {"failures": 999_999_999}, {"no_progress": 999_999_999}),
    *({"resume": resume} for resume in (0, 1, 9999, 999_999_999)),
]


@pytest.mark.parametrize("of", HOSTILE, ids=str)
@pytest.mark.parametrize("resume", [0, 1])
def test_no_number_that_a_vm_wrote_takes_a_pin_past_the_stacks_own_limit(of, resume):
    head = Head.from_json(dataclasses.replace(OPEN, **of).to_json())
    found = pin(head, resume=resume, limit_minutes=60, now=NOW)
    deadline = parse_time(found.deadline)
    assert deadline <= NOW + timedelta(minutes=60) and len(found.deadline) == 20
    assert 0 <= found.placement <= 1_000_000 and found.size in (0, 1)
    assert found.size == 0 or deadline > NOW
    standing = obstacle(head, resume=resume, now=NOW)
    assert (standing is None) >= (found.size == 1), standing


@pytest.mark.parametrize(
    ("head", "resume", "words"),
    [
        (FAILED, 1, "has ended as failed (user-failed), nothing is started; outlast resume"),
        (STOPPED, 1, "has ended as stopped, nothing is started; outlast resume"),
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
    for opener in ("open_store", "open_briefly"):
        monkeypatch.setattr(run_pin, opener, lambda url: made)
    monkeypatch.setattr(host, "_said", set())
    monkeypatch.setattr(run_pin, "_pinned_before", set())
    monkeypatch.setattr(boot_image, "_images", {})
    monkeypatch.setattr(
        images, "resolve", lambda reference, project: FOUND.get(reference, NO_ANSWER)
    )
    return made


def put(store, head):
    data = head if isinstance(head, bytes) else head.to_json()
    store.put(Layout("experiments/dev", "0123456789").head, data)


def test_create_without_head_is_fresh(store):
    made = RunPinProvider().create(PROPS)
    assert made.id == "experiments/dev/0123456789/r1"
    pinned = {"deadline": FRESH, "placement": 0, "size": 1, "bootImage": IMAGE}
    assert made.outs == {**PROPS, **pinned}


def test_create_continues_an_open_run(store):
    put(store, OPEN)
    outs = RunPinProvider().create(PROPS).outs
    assert (outs["deadline"], outs["placement"], outs["size"]) == ("2026-11-27T12:30:00Z", 5, 1)


def test_create_with_garbage_starts_nothing(store):
    put(store, b"{]")
    outs = RunPinProvider().create(PROPS).outs
    assert (outs["deadline"], outs["placement"], outs["size"]) == (FRESH, 0, 0)


def test_another_zone_is_another_place_by_the_same_deadline(store):
    put(store, OPEN)
    kept = {"deadline": "2026-11-27T12:34:56Z", "bootImage": IMAGE}
    olds = {**PROPS, **kept, "placement": 7.0, "size": 1.0}
    news = {**PROPS, "zone": "europe-west4-b", "image": "other"}
    diff = RunPinProvider().diff("id", olds, news)
    assert (diff.changes, diff.replaces) == (True, [])
    outs = RunPinProvider().update("id", olds, news).outs
    assert (outs["deadline"], outs["placement"], outs["zone"]) == (
        "2026-11-27T12:34:56Z",
        8,
        "europe-west4-b",
    )
    assert (outs["image"], outs["bootImage"]) == (PROPS["image"], IMAGE)  # until the next resume


def test_a_resume_takes_the_image_of_its_day(store):
    outs = RunPinProvider().create({**PROPS, "resume": 2, "image": "other"}).outs
    assert outs["bootImage"] == "projects/p/global/images/o-1"


@pytest.mark.parametrize(
    "change",
    [{"maxRunMinutes": 90}, {"image": "other"}, {"onNewRun": "replace"}, {"__provider": "y"}, {}],
)
def test_a_change_without_effect_gives_no_difference(change):
    diff = RunPinProvider().diff("id", {**PROPS, "placement": 1, "size": 1}, {**PROPS, **change})
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


def test_check_is_quiet_about_a_run_that_continues(store, capsys):
    assert RunPinProvider().check({}, dict(PROPS)).failures == []
    put(store, OPEN)
    assert RunPinProvider().check({}, dict(PROPS)).inputs == PROPS
    assert capsys.readouterr().err == ""


def test_another_owner_is_refused(store):
    put(store, dataclasses.replace(OPEN, owner="organization/outlast/theirs"))
    (failure,) = RunPinProvider().check({}, dict(PROPS)).failures
    assert failure.property == "owner"
    assert failure.reason == (
        "run 0123456789 in gs://p-outlast/experiments/dev: belongs to organization/outlast/theirs,"
        " not to organization/outlast/dev; if this is the same stack under another name, rename it"
        " back: pulumi stack rename theirs, or hand the run over: outlast handover"
        " gs://p-outlast/experiments/dev/0123456789 organization/outlast/dev; otherwise choose"
        " another outlast:experiment or outlast:bucket"
    )


@pytest.mark.parametrize(
    ("now", "cause", "remedy"),
    [
        (
            "organization/outlast/second",
            "it was renamed from dev to second",
            "rename it back: pulumi stack rename dev",
        ),
        (
            "organization/lasting/dev",
            "its project outlast became lasting",
            "rename it back: pulumi stack rename organization/outlast/dev",
        ),
        (
            "acme/outlast/dev",
            "its organization organization became acme",
            "continue it in organization organization, where it is organization/outlast/dev",
        ),
    ],
)
def test_a_stack_that_was_renamed_or_moved_is_said_to_be(store, now, cause, remedy):
    put(store, COMMITTED)
    assert reasons(PROPS, {**PROPS, "owner": now}) == [
        "run 0123456789 in gs://p-outlast/experiments/dev: belongs to organization/outlast/dev, as"
        f" this stack was called before {cause}; {remedy}, or hand the run over: outlast handover"
        f" gs://p-outlast/experiments/dev/0123456789 {now}"
    ]


@pytest.mark.parametrize("on_new_run", ["refuse", "replace"])
def test_an_experiment_that_another_project_owns_is_refused(store, on_new_run):
    """Its name is taken, whatever run of it would begin."""
    put(store, DONE)
    theirs = {"owner": "organization/theirs/dev", "onNewRun": on_new_run}
    assert reasons({}, {**OTHER, **theirs}) == [
        "run 0123456789 in gs://p-outlast/experiments/dev: belongs to organization/outlast/dev,"
        " not to organization/theirs/dev; if this is the same stack under another name, rename it"
        " back: pulumi stack rename organization/outlast/dev, or hand the run over: outlast"
        " handover gs://p-outlast/experiments/dev/0123456789 organization/theirs/dev; otherwise"
        " choose another outlast:experiment or outlast:bucket"
    ]


def silent_bucket(monkeypatch, error=Unavailable):
    """The URLs that were opened, of a bucket that never answers."""
    opened = []

    def unavailable(url):
        opened.append(url)
        raise error("no answer")

    monkeypatch.setattr(run_pin, "open_briefly", unavailable)
    monkeypatch.setattr(run_pin, "_silent", {})
    monkeypatch.setattr(run_pin, "_not_checked", {})
    return opened


@pytest.mark.parametrize("olds", [{}, PROPS], ids=["first", "another"])
@pytest.mark.parametrize("error", [Unavailable, Forbidden])
def test_a_guard_that_is_not_checked_is_said_and_stops_create_but_no_preview(
    monkeypatch, capsys, olds, error
):
    silent_bucket(monkeypatch, error)
    news = {**PROPS, "run": "abcdefabcd", "named": "abcdefabcd"}
    monkeypatch.setattr(run_pin, "_pinned_before", set())
    monkeypatch.setattr(host, "_said", set())
    assert RunPinProvider().check(dict(olds), dict(news)).failures == []
    said = capsys.readouterr().err
    what = "run 0123456789" if olds else "experiment dev"
    assert said.startswith(f"{what}: not checked whether it is open and would be replaced")
    assert "gs://p-outlast cannot be read (no answer)" in said
    with pytest.raises(run_pin.GuardNotChecked, match="run pulumi up again"):
        RunPinProvider().create(news)


def test_a_guard_that_was_checked_later_lets_create_begin(monkeypatch, store):
    with monkeypatch.context() as patch:
        silent_bucket(patch)
        patch.setattr(run_pin, "_pinned_before", set())
        RunPinProvider().check({}, dict(PROPS))
        not_checked = dict(run_pin._not_checked)
        assert not_checked
    monkeypatch.setattr(run_pin, "_not_checked", not_checked)
    monkeypatch.setattr(run_pin, "_pinned_before", set())
    assert RunPinProvider().check({}, dict(PROPS)).failures == []
    assert RunPinProvider().create(dict(PROPS)).outs["size"] == 1


def test_a_bucket_that_does_not_answer_is_asked_once_and_briefly(monkeypatch):
    opened = silent_bucket(monkeypatch)
    monkeypatch.setattr(run_pin, "_pinned_before", set())
    news = {**PROPS, "run": "abcdefabcd", "named": "abcdefabcd"}
    RunPinProvider().check(dict(PROPS), dict(news))
    RunPinProvider().check({}, dict(news))
    assert opened == ["gs://p-outlast"]


# -- the guard

COMMITTED = dataclasses.replace(
    OPEN,
    resume=0,
    chain=(
        Checkpoint("experiments/dev/0123456789/t000003/s000000000320-0/", 1, "0" * 64, 3, 320, ()),
    ),
)
OTHER = {
    **PROPS,
    "run": "abcdefabcd",
    "named": "abcdefabcd",
    "content": {**PROPS["content"], "arguments": {"epochs": 7.0, "hidden": "4"}},
}


def reasons(olds, news):
    return [failure.reason for failure in RunPinProvider().check(olds, dict(news)).failures]


@pytest.mark.parametrize(
    ("arguments", "source", "is_said"),
    [
        ({"argv": ["--epochs", "5"]}, "b" * 64, True),
        ({"command": ["python3", "train.py"]}, "b" * 64, True),
        ({"argv": []}, "git:1234567:train", False),
        ({"epochs": 5}, "b" * 64, False),
    ],
)
def test_a_comment_in_code_of_the_users_own_counts_and_the_refusal_says_so(
    store, arguments, source, is_said
):
    """Outlast's own trainers count by their meaning, and code in git by its commit."""
    put(store, COMMITTED)
    before = {**PROPS["content"], "arguments": arguments, "source": "a" * 64}
    olds = {**PROPS, "content": before}
    (reason,) = reasons(olds, {**OTHER, "content": {**before, "source": source}})
    said = "; every byte of outlast:source counts, comments too); undo the change"
    assert (said in reason) is is_said and "(the code aaaaaaaaaa → " in reason


def test_an_open_run_with_commits_is_not_replaced_by_accident(store):
    put(store, COMMITTED)
    (reason,) = reasons(PROPS, OTHER)
    assert reason == (
        "run 0123456789 is open at step 320, and run abcdefabcd would take its place"
        " (args.epochs 5 → 7); undo the change, or continue with the change by outlast resume"
        " dev, or set outlast:onNewRun to replace to give up run 0123456789"
    )
    assert reasons(PROPS, {**OTHER, "onNewRun": "replace"}) == []
    assert reasons({}, OTHER) == []  # the second look at a replacement


def test_a_run_that_a_destroyed_stack_left_open_is_guarded_too(store, monkeypatch):
    put(store, COMMITTED)
    record = dataclasses.replace(start_record(3, 0, NOW), spec={"content": PROPS["content"]})
    store.put(Layout("experiments/dev", "0123456789").attempt_start(3), record.to_json())
    store.put("experiments/dev/fedcbafedc/HEAD", b"{]")
    (reason,) = reasons({}, OTHER)
    assert reason == (
        "run 0123456789 is open at step 320, and run abcdefabcd would start from scratch beside it"
        " (args.epochs 5 → 7); undo the change, or continue with the change by setting"
        " outlast:run to 0123456789, or set outlast:onNewRun to replace to give up run 0123456789"
    )
    assert reasons({}, PROPS) == []
    pinned = {**OTHER, "run": PROPS["run"]}
    assert reasons({}, pinned) == []
    assert reasons({}, {**OTHER, "onNewRun": "replace"}) == []
    assert reasons({}, {**OTHER, "prefix": "experiments/other"}) == []

    # A run that has begun continues, whatever else is in its folder.
    layout = Layout("experiments/dev", OTHER["run"])
    store.put(layout.head, OPEN.to_json())
    assert reasons({}, OTHER) == []


def test_an_experiment_of_many_objects_costs_few_requests(storage_api, store, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(pages, "MAX_PAGE", 5)  # a run of 40 objects is as one of 8,000
    bucket = GcsStore("runs")
    layout = Layout("experiments/dev", "0123456789")
    for number in range(40):
        bucket.put(f"{layout.root}t000003/s{number:012d}-0123456789abcdef/model", b"x")
    past = bucket.now() - timedelta(seconds=2)  # the server's clock is known to a second
    bucket.put(layout.head, dataclasses.replace(COMMITTED, deadline=past).to_json())
    bucket.put(f"experiments/dev/bundles/{'a' * 64}.zip", b"x")
    for opener in ("open_store", "open_briefly"):
        monkeypatch.setattr(run_pin, opener, lambda url: bucket)
    sent, send = [], HTTPAdapter.send

    def counted(self, request, **more):
        sent.append(request.url)
        return send(self, request, **more)

    monkeypatch.setattr(HTTPAdapter, "send", counted)
    assert reasons({}, OTHER) == []  # it is past its limit
    # The own HEAD; one page of folders; HEAD in each, of which the one that is there takes two;
    # the run's start record and the clock.
    assert len(sent) == 1 + 1 + (1 + 2) + 2, sent
    bucket.close()


def test_a_change_that_no_run_can_take_offers_no_resume(store):
    put(store, COMMITTED)
    (reason,) = reasons(PROPS, {**OTHER, "content": {**PROPS["content"], "trainer": "dummy"}})
    assert "(trainer digits → dummy); undo the change, or set outlast:onNewRun" in reason


@pytest.mark.parametrize(
    ("where", "place", "cause", "remedy"),
    [
        (
            {"prefix": "experiments/b", "owner": "organization/outlast/b"},
            "p-outlast/experiments/b",
            "it was renamed from dev to b, and outlast:experiment follows the stack's name",
            "rename it back: pulumi stack rename dev",
        ),
        (
            {"prefix": "experiments/b"},
            "p-outlast/experiments/b",
            "outlast:experiment dev → b",
            "pulumi config set outlast:experiment dev",
        ),
        (
            {"bucket": "p-other"},
            "p-other/experiments/dev",
            "outlast:bucket p-outlast → p-other",
            "pulumi config set outlast:bucket p-outlast",
        ),
        (
            {"bucket": "q-outlast", "project": "q"},
            "q-outlast/experiments/dev",
            "gcp:project p → q, and outlast:bucket follows it",
            "pulumi config set gcp:project p",
        ),
        (
            {"bucket": "mine", "prefix": "experiments/b"},
            "mine/experiments/b",
            "outlast:experiment dev → b; outlast:bucket p-outlast → mine",
            "pulumi config set outlast:experiment dev; pulumi config set outlast:bucket p-outlast",
        ),
    ],
)
@pytest.mark.parametrize("run", [PROPS, OTHER], ids=["same run", "other run"])
def test_an_open_run_is_not_left_in_another_place(store, run, where, place, cause, remedy):
    put(store, COMMITTED)
    also = ""
    if run is PROPS and place.endswith("/experiments/dev"):  # it may go there as it is
        also = (
            ", or hand the run over: outlast handover gs://p-outlast/experiments/dev/0123456789"
            f" organization/outlast/dev --to gs://{where['bucket']}"
        )
    assert reasons(PROPS, {**run, **where}) == [
        "run 0123456789 is open at step 320 in gs://p-outlast/experiments/dev, and would start from"
        f" scratch in gs://{place} ({cause}); undo that ({remedy}){also}, or set outlast:onNewRun"
        " to replace to give up the open run"
    ]
    assert reasons(PROPS, {**run, **where, "onNewRun": "replace"}) == []


def test_a_run_that_was_handed_over_into_another_bucket_is_followed_only_there(store, monkeypatch):
    moved = "gs://p-other/experiments/dev/0123456789"
    stores = {"gs://p-outlast": store, "gs://p-other": MemoryStore(clock=lambda: NOW)}
    for opener in ("open_store", "open_briefly"):
        monkeypatch.setattr(run_pin, opener, stores.__getitem__)
    put(store, dataclasses.replace(COMMITTED, move=Move(moved, Phase.LEFT)))
    put(stores["gs://p-other"], COMMITTED)
    there = {**PROPS, "bucket": "p-other"}
    assert reasons(PROPS, there) == []
    said = f"the run was handed over to {moved}, and this copy is never continued; name that path"
    assert reasons(PROPS, PROPS) == [
        f"gs://p-outlast/experiments/dev/0123456789: {said}, or set outlast:bucket to p-other"
    ]
    assert run_pin._pin_of(dict(PROPS)).size == 0
    assert reasons(PROPS, OTHER) == [
        f"run 0123456789: {said}, or set outlast:bucket to p-other, or set outlast:onNewRun to"
        " replace to start another run"
    ]
    assert reasons(PROPS, {**OTHER, "onNewRun": "replace"}) == []
    put(store, dataclasses.replace(COMMITTED, move=Move(moved, Phase.LEAVING)))
    (reason,) = reasons(PROPS, there)
    assert "is being handed over to" in reason
    put(
        stores["gs://p-other"],
        dataclasses.replace(COMMITTED, move=Move("gs://o/r", Phase.ARRIVING)),
    )
    assert any("this copy is not complete" in one for one in reasons(PROPS, there))


@pytest.mark.parametrize(
    "head",
    [
        None,
        OPEN,
        FAILED,
        DONE,
        STOPPED,
        dataclasses.replace(COMMITTED, deadline=NOW),
    ],
)
def test_a_run_that_has_nothing_to_lose_or_has_ended_is_not_guarded(store, head):
    if head is not None:
        put(store, head)
    assert reasons(PROPS, OTHER) == []


def test_a_run_that_cannot_be_read_is_guarded_too(store):
    put(store, b"{]")
    (reason,) = reasons(PROPS, OTHER)
    assert "whether it is open is unknown" in reason and "outlast repair dev" in reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arguments": {"epochs": 7.0, "hidden": "4"}}, None),
        ({"source": "b" * 64}, None),
        ({"arguments": {"epochs": 5.0, "hidden": "4", "threads": 2.0}}, None),
        (
            {"arguments": {"epochs": 3.0, "hidden": "4"}},
            "args.epochs 5 → 3: can only be raised in the middle of a run; undo the change,"
            " or leave out outlast:run",
        ),
        (
            {"arguments": {"epochs": 5.0, "hidden": "8"}},
            "args.hidden 4 → 8: cannot change in the middle of a run; those that can: epochs,"
            " threads",
        ),
        ({"rerun": 1.0}, "rerun unset → 1: makes another run"),
    ],
)
def test_a_run_named_by_hand_takes_only_what_it_can(store, change, words):
    put(store, dataclasses.replace(COMMITTED, state=State.FAILED, end=FAILED.end))
    record = start_record(3, 0, NOW)
    record = dataclasses.replace(record, spec={"content": PROPS["content"]})
    store.put(Layout("experiments/dev", "0123456789").attempt_start(3), record.to_json())
    news = {**PROPS, "named": "abcdefabcd", "content": {**PROPS["content"], **change}, "resume": 1}
    found = reasons(PROPS, news)
    assert (len(found), words is None) in ((0, True), (1, False))
    if words:
        assert found[0].startswith("run 0123456789, named by outlast:run, at step 320: ")
        assert words in found[0]


# -- the image


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (
            "gone",
            "'gone': has not existed since 2025; its successor is"
            " projects/p/global/images/family/new",
        ),
        ("obsolete", "image old-1 is obsolete, no VM can boot from it; name projects/p/global/"),
    ],
)
def test_an_image_that_is_gone_is_refused_at_preview(store, image, words):
    (failure,) = RunPinProvider().check({}, {**PROPS, "image": image}).failures
    assert failure.property == "image" and words in failure.reason


def test_an_image_that_the_stack_is_yet_to_make_is_nothing_to_speak_of(store, capsys):
    props = {**PROPS, "image": Unknown()}
    assert RunPinProvider().check({}, dict(props)).failures == []
    olds = RunPinProvider().create(PROPS).outs
    assert not RunPinProvider().diff("id", olds, dict(props)).changes
    assert capsys.readouterr().err == ""


def test_an_unknown_image_stops_create_but_no_preview(store):
    props = {**PROPS, "image": "unasked"}
    assert RunPinProvider().check({}, dict(props)).failures == []
    with pytest.raises(boot_image.Unanswered, match="cannot be looked up now"):
        RunPinProvider().create(props)


def test_create_asks_again_for_an_image_that_gave_no_answer(store, monkeypatch):
    monkeypatch.setattr(boot_image, "BRIEF", Patience(FakeClock(), limits=BRIEF.limits))
    found = [images.Unknown("busy", Trouble.SILENT), Image("", "p", "f-1", "f")]
    monkeypatch.setattr(images, "resolve", lambda *_: found.pop(0))
    outs = RunPinProvider().create({**PROPS, "image": "busy"}).outs
    assert outs["bootImage"] == "projects/p/global/images/f-1" and not found


def test_a_newer_image_of_the_family_waits_for_a_resume_and_is_said_then(
    store, monkeypatch, capsys
):
    olds = RunPinProvider().create(PROPS).outs
    monkeypatch.setattr(boot_image, "_images", {})
    monkeypatch.setitem(FOUND, PROPS["image"], Image("", "p", "f-2", "f"))
    provider = RunPinProvider()
    provider.check(PROPS, dict(PROPS))
    assert not provider.diff("id", olds, dict(PROPS)).changes
    assert capsys.readouterr().err == ""
    provider.diff("id", olds, {**PROPS, "image": "other"})
    assert f"keeps image {IMAGE}; outlast:image other applies from the next resume" in (
        capsys.readouterr().err
    )
    news = {**PROPS, "resume": 2.0}
    provider.check(PROPS, dict(news))
    assert provider.diff("id", olds, news).replaces == ["resume"]
    newer = "projects/p/global/images/f-2"
    assert capsys.readouterr().err == (
        f"run 0123456789 boots from image {newer} at resume 2; before: {IMAGE}\n"
    )


GPU = {"gpus": 1.0, "machine_type": "g2-standard-8"}
TOO_SMALL = (
    "outlast:bootDiskGb 50: image l-1 has 51 GB, and a disk cannot be smaller than its image; set"
    " outlast:bootDiskGb to 51 or more"
)


@pytest.mark.parametrize(
    ("image", "boot", "words"),
    [
        ("large", {}, TOO_SMALL),
        ("just", {}, ""),
        ("large", {"disk_gb": 51.0}, ""),
        ("debian-13", {}, ""),
        ("debian-13", GPU, "outlast:image 'debian-13': image debian-13-v1 has no GPU driver, and"),
        ("baked", GPU, "image b-1 has no GPU driver, and g2-standard-8 has a GPU; set outlast:im"),
        ("baked", {**GPU, "gpus": 4.0}, "and g2-standard-8 has 4 GPUs; set outlast:image to one"),
        ("baked", {}, ""),
        ("other", GPU, ""),
        # Still to be baked: its base is known.
        (Unknown(), {"base": "large"}, TOO_SMALL),
        (Unknown(), {"base": "large", "disk_gb": 100.0}, ""),
        (Unknown(), {"base": "debian-13", **GPU}, "outlast:imageRecipe.base 'debian-13': image"),
        (Unknown(), {"base": "debian-13", "installs_driver": True, **GPU}, ""),
        (Unknown(), {"base": "large", "installs_driver": True, **GPU}, TOO_SMALL),
        (Unknown(), {"base": "unasked", **GPU}, ""),
    ],
)
def test_an_image_that_the_vms_cannot_use_is_refused_at_preview(store, image, boot, words):
    props = {**PROPS, "image": image, "boot": {**PROPS["boot"], **boot}}
    failures = RunPinProvider().check({}, dict(props)).failures
    if not words:
        assert failures == []
        return
    (failure,) = failures
    assert failure.property == "image" and words in failure.reason
    if isinstance(image, str):
        with pytest.raises(boot_image.NoImage):
            RunPinProvider().create(props)


@pytest.mark.parametrize(
    ("boot", "words"),
    [
        ({"disk_gb": 49.0}, "outlast:bootDiskGb 49: image j-1 has 50 GB"),
        ({"disk_gb": 60.0}, ""),
        (GPU, ""),
    ],
)
def test_a_run_that_keeps_its_image_is_asked_about_it_again(store, boot, words, monkeypatch):
    pinned = "projects/p/global/images/j-1"
    monkeypatch.setitem(FOUND, pinned, FOUND["just"])
    olds = RunPinProvider().create({**PROPS, "image": "just"}).outs
    assert olds["bootImage"] == pinned
    news = {**PROPS, "image": "just", "boot": {**PROPS["boot"], **boot}}
    if words:
        with pytest.raises(boot_image.NoImage, match=words):
            RunPinProvider().diff("id", olds, news)
    else:
        assert not RunPinProvider().diff("id", olds, news).changes


def test_the_provider_is_pickled_by_reference():
    data = base64.b64decode(serialize_provider(RunPinProvider()))
    assert b"outlast.dynamic.run_pin" in data and len(data) < 200
    assert isinstance(dill.loads(data), RunPinProvider)
    assert isinstance(pickle.loads(data), RunPinProvider)
    assert RunPinProvider.serialize_as_secret_always is False


LIMIT = timedelta(minutes=60)


@pytest.mark.parametrize(
    ("started", "deadline", "expected"),
    [
        (NOW, NOW + timedelta(days=119), NOW + LIMIT),
        (NOW - timedelta(minutes=50), NOW + timedelta(days=119), NOW + timedelta(minutes=10)),
        (NOW - timedelta(minutes=50), NOW + timedelta(minutes=5), NOW + timedelta(minutes=5)),
        (NOW + timedelta(days=9), NOW + timedelta(days=119), NOW + LIMIT),
        (datetime(9999, 12, 31, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), NOW + LIMIT),
    ],
)
def test_a_deadline_that_a_vm_wrote_is_bounded_by_the_stacks_own_limit(started, deadline, expected):
    head = dataclasses.replace(OPEN, resume=0, started=started, deadline=deadline)
    found = pin(head, resume=0, limit_minutes=60, now=NOW)
    assert (found.deadline, found.size) == (f"{expected:%Y-%m-%dT%H:%M:%SZ}", 1)
    later = dataclasses.replace(head, resume=1)
    assert (
        pin(later, resume=1, limit_minutes=60, now=NOW).deadline
        <= f"{NOW + LIMIT:%Y-%m-%dT%H:%M:%SZ}"
    )


def test_a_run_that_has_had_its_time_by_the_stacks_own_limit_starts_nothing():
    head = dataclasses.replace(
        OPEN, resume=0, started=NOW - LIMIT, deadline=NOW + timedelta(days=1)
    )
    assert pin(head, resume=0, limit_minutes=60, now=NOW).size == 0


@pytest.mark.parametrize("placement", [999_999, 999_999_998, 999_999_999])
def test_a_placement_that_a_vm_wrote_never_locks_later_vms_out(placement):
    head = dataclasses.replace(OPEN, placement=placement)
    found = pin(head, resume=1, limit_minutes=60, now=NOW)
    assert found.placement == 1_000_000 and found.size == 0
    assert "outlast resume continues with placement 0" in (obstacle(head, resume=1, now=NOW) or "")
    assert pin(head, resume=2, limit_minutes=60, now=NOW).placement == 0


def test_what_a_bucket_says_reaches_the_engine_as_text(store, capsys):
    """The engine passes control characters on to the terminal, and reads its own colour marks."""
    hostile = "\x1b]52;c;eA==\x07\x1b[2J<{%red%}>\u202e"
    put(store, dataclasses.replace(OPEN, owner=f"organization/{hostile}/dev"))
    said = reasons({}, PROPS)
    host.say(f"x {hostile}")
    said += [capsys.readouterr().err, host.failure("run", f"x {hostile}").reason]
    assert len(said) == 3
    for one in said:
        assert "?]52;c;" in one and "<{%" not in one
        assert not {"\x1b", "\x07", "\u202e"} & set(one)


def test_a_command_that_is_shown_runs_nothing_that_a_bucket_wrote(store):
    """People copy it to a shell."""
    put(store, dataclasses.replace(OPEN, owner="organization/outlast/x; touch pwned"))
    (reason,) = reasons({}, PROPS)
    assert "pulumi stack rename 'x; touch pwned', or hand the run over" in reason


NEWER = OPEN.to_json().replace(b'"format":1', b'"format":2')
FORMATS = "Head: has format 2, this version of Outlast reads format 1; upgrade Outlast"


@pytest.mark.parametrize("olds", [{}, PROPS, {**PROPS, "zone": "europe-west4-b"}])
def test_a_run_that_another_version_wrote_is_refused(store, olds):
    put(store, NEWER)
    assert reasons(olds, PROPS) == [f"run 0123456789: {FORMATS}"]


def test_a_run_that_another_version_wrote_is_not_replaced(store):
    put(store, NEWER)
    assert reasons(PROPS, OTHER) == [f"run 0123456789: {FORMATS}"]
    assert reasons(PROPS, {**OTHER, "onNewRun": "replace"}) == []


def test_no_run_begins_beside_one_that_another_version_wrote(store):
    put(store, NEWER)
    (reason,) = reasons({}, OTHER)
    assert reason == (
        f"run 0123456789: {FORMATS}, or set outlast:onNewRun to replace to start another run"
        " beside it"
    )
    assert reasons({}, {**OTHER, "onNewRun": "replace"}) == []
