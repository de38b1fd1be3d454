"""The review of a plan: which run does what, at which cost, against which rule."""

import json
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi
import pytest
import requests
from google.api_core.retry import retry_base, retry_unary

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, End, Head
from outlast.cli.app import cli
from outlast.cli.errors import EngineError, UsageError
from outlast.cli.review import bucket, preview, rules
from outlast.cli.review import plan as plans
from outlast.cli.review.outcomes import NotRead, Then
from outlast.cli.review.plan import BAKE, BUCKET, GROUPS, PIN, TEMPLATES, Step
from outlast.cli.review.show import as_markdown, show_review
from outlast.cloud import images
from outlast.cloud.compute import Group
from outlast.dynamic import host, run_pin
from outlast.settings import lookups
from tests.dynamic.test_run_pin import PROPS as PINS
from tests.settings.test_settings import HERE
from tests.settings.test_settings import check as stack_settings

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
LABELS = {
    "managed-by": "outlast",
    "project": "outlast",
    "stack": "dev",
    "component": "vm-template",
    "experiment": "dev",
}
TEMPLATE: dict[str, Any] = {
    "machineType": "e2-standard-2",
    "labels": LABELS,
    "scheduling": {"provisioningModel": "SPOT", "terminationTime": "2026-11-29T12:00:00Z"},
}
GROUP: dict[str, Any] = {"zone": "us-central1-a", "updatePolicy": {"type": "OPPORTUNISTIC"}}
PINNED: dict[str, Any] = {
    "run": "aaaaaaaaaa",
    "resume": 0,
    "bucket": "b",
    "prefix": "experiments/dev",
    "zone": "us-central1-a",
    "maxRunMinutes": 1440,
    "deadline": "2026-11-29T12:00:00Z",
}
OPEN = Head(
    owner="organization/outlast/dev",
    resume=0,
    placement=0,
    term=1,
    state=State.OPEN,
    end=None,
    started=NOW - timedelta(hours=1),
    deadline=NOW + timedelta(hours=10),
    chain=(Checkpoint("x/", 1, "0" * 64, 1, 400, ()),),
    lineage=(),
    failures=0,
    no_progress=0,
    data=None,
    nonce="n",
)


def ended(state: State, reason: Reason) -> Head:
    return replace(OPEN, state=state, end=End(reason, 0, 400, None))


def same(kind: str, values: dict[str, Any]) -> Step:
    return Step("same", kind, kind.rpartition(":")[2], values, values)


def unchanged(**steps: Step) -> list[Step]:
    """A stack that is up and changes in nothing but `steps`."""
    made = {
        "pin": same(PIN, PINNED),
        "template": same(TEMPLATES[0], TEMPLATE),
        "group": same(GROUPS[0], GROUP),
    }
    return list({**made, **steps}.values())


def reviewed(steps: list[Step], **heads: Any) -> preview.Review:
    """`heads`: by run, with an underscore before the digits' ten letters."""
    looks = {name.removeprefix("_"): head for name, head in heads.items()}
    return preview.of_plan(
        "dev", steps, look=lambda pin: looks.get(pin.run, NotRead.ABSENT), now=NOW
    )


def changed(kind: str, old: dict[str, Any], new: dict[str, Any], op: str = "replace") -> Step:
    differs = tuple(sorted(key for key in new if old.get(key) != new[key]))
    return Step(op, kind, kind.rpartition(":")[2], old, new, differs)


OTHER_TEMPLATE = changed(TEMPLATES[0], TEMPLATE, {**TEMPLATE, "machineType": "e2-standard-4"})
SCRIPTS = {
    "startup-script": "a",
    "outlast-bundle": "x",
    "outlast-timeouts": "1",
}
OTHER_SCRIPT = changed(
    TEMPLATES[0],
    {**TEMPLATE, "metadata": SCRIPTS},
    {**TEMPLATE, "metadata": {**SCRIPTS, "startup-script": "b"}},
)
OTHER_CODE = changed(
    TEMPLATES[0],
    {**TEMPLATE, "metadata": SCRIPTS},
    {**TEMPLATE, "metadata": {**SCRIPTS, "outlast-bundle": "y", "outlast-timeouts": "2"}},
)
NOW_GROUP = changed(GROUPS[0], GROUP, {**GROUP, "updatePolicy": {"type": "PROACTIVE"}}, "update")
OTHER_ZONE = {"zone": "us-central1-b"}
MOVED = {
    "pin": changed(PIN, PINNED, {**PINNED, **OTHER_ZONE}, "update"),
    "group": changed(GROUPS[0], GROUP, {**GROUP, **OTHER_ZONE}),
    "template": OTHER_TEMPLATE,
}
NEW_PIN = {key: value for key, value in PINNED.items() if key != "deadline"}


@pytest.mark.parametrize(
    ("steps", "head", "said", "why"),
    [
        (unchanged(), OPEN, "stays untouched", "nothing of its VM changes"),
        (
            unchanged(pin=changed(PIN, PINNED, {**PINNED, "image": "i"}, "same")),
            OPEN,
            "stays untouched",
            "nothing of its VM changes; the image will change at its next resume",
        ),
        (
            unchanged(template=OTHER_TEMPLATE),
            OPEN,
            "stays untouched",
            "the new template (machineType) applies when the VM is next recreated; it then",
        ),
        (
            unchanged(template=OTHER_SCRIPT),
            OPEN,
            "stays untouched",
            "the new template (startup script) applies when the VM is next recreated; it then",
        ),
        (
            unchanged(template=OTHER_CODE),
            OPEN,
            "stays untouched",
            "the new template (code, timeouts) applies when the VM is next recreated; it then",
        ),
        (
            unchanged(template=OTHER_TEMPLATE, group=NOW_GROUP),
            OPEN,
            "restarts",
            "interrupted at once and recreated (machineType); it resumes from step 400",
        ),
        (
            unchanged(**MOVED),
            OPEN,
            "resumes from step 400",
            "in us-central1-b instead of us-central1-a; it resumes from step 400",
        ),
        (
            unchanged(**MOVED),
            NotRead.ABSENT,
            "restarts",
            "from step 0, because it has no checkpoint",
        ),
        (unchanged(**MOVED), NotRead.UNKNOWN, "restarts", "it resumes from its last checkpoint"),
        (
            unchanged(template=OTHER_TEMPLATE),
            ended(State.DONE, Reason.DONE),
            "finished",
            "it is done, nothing is started",
        ),
        (
            unchanged(),
            ended(State.FAILED, Reason.OUT_OF_MEMORY),
            "finished",
            "ended as failed (out-of-memory), nothing is started; outlast resume reopens it",
        ),
        (
            unchanged(),
            replace(OPEN, deadline=NOW - timedelta(minutes=1)),
            "finished",
            "it has passed its limit of 2026-11-28 11:59 UTC",
        ),
        (
            unchanged(pin=changed(PIN, PINNED, {**NEW_PIN, "resume": 1})),
            ended(State.FAILED, Reason.OUT_OF_MEMORY),
            "resumes from step 400",
            "it was failed; resume 1 reopens it, from step 400, with a new limit",
        ),
    ],
)
def test_what_a_change_does_to_the_stacks_run(steps, head, said, why):
    (line,) = reviewed(steps, _aaaaaaaaaa=head).runs
    assert line.said == said
    assert why in line.why


@pytest.mark.parametrize(
    ("head", "then"),
    [
        (NotRead.ABSENT, Then.FROM_SCRATCH),
        (NotRead.UNKNOWN, Then.UNCLEAR),
        (OPEN, Then.RESUMES),
        (ended(State.DONE, Reason.DONE), Then.FINISHED),
    ],
)
def test_another_run_takes_the_place_of_an_open_one(head, then):
    pin = changed(PIN, PINNED, {**NEW_PIN, "run": "bbbbbbbbbb"})
    found = reviewed(unchanged(pin=pin), _aaaaaaaaaa=OPEN, _bbbbbbbbbb=head)
    new, old = found.runs
    assert (new.run, new.then) == ("bbbbbbbbbb", then)
    assert (old.run, old.then, old.step) == ("aaaaaaaaaa", Then.STOPS, 400)
    assert "what it committed stays in gs://b/experiments/dev/aaaaaaaaaa" in old.why
    assert any("outlast resume dev continues this run" in text for text in found.advice)


def test_a_first_up_starts_from_scratch_and_costs_its_whole_limit():
    steps = [
        Step("create", PIN, "run", {}, NEW_PIN),
        Step("create", TEMPLATES[0], "template", {}, TEMPLATE),
        Step("create", GROUPS[0], "group", {}, GROUP),
    ]
    found = reviewed(steps)
    assert found.runs[0].then is Then.FROM_SCRATCH
    assert found.before.an_hour == "nothing"
    assert found.after.hours == 24
    assert "(1 d, its whole limit)" in found.after.at_the_limit


def test_a_forged_deadline_costs_no_more_than_the_stacks_own_limit():
    """A recreated pin takes the deadline from HEAD, which the VMs write, and bounds it."""
    steps = [
        Step("create", PIN, "run", {}, NEW_PIN),
        Step("create", TEMPLATES[0], "template", {}, TEMPLATE),
        Step("create", GROUPS[0], "group", {}, GROUP),
    ]
    forged = replace(OPEN, deadline=NOW + timedelta(days=3000))
    assert reviewed(steps, _aaaaaaaaaa=forged).after.hours == 24
    soon = replace(OPEN, deadline=NOW + timedelta(hours=2))
    assert reviewed(steps, _aaaaaaaaaa=soon).after.hours == 2


def test_a_machine_is_priced_before_and_after():
    found = reviewed(unchanged(template=OTHER_TEMPLATE), _aaaaaaaaaa=OPEN)
    assert found.after.sum.hour == pytest.approx(2 * found.before.sum.hour)
    assert found.before.hours == found.after.hours == 24
    assert found.after.until == "until 2026-11-29 12:00 UTC"


def test_a_day_and_the_budget_are_shown(capsys):
    # 24 h to the limit at 2 x 0.00957 + 8 x 0.001282 = 0.029396 an hour: 0.7055; a day as much.
    plain = reviewed(unchanged(), _aaaaaaaaaa=OPEN)
    assert plain.after.a_day == "$0.71" and plain.after.at_the_limit.startswith("$0.71 (1 d")
    # A budget of 0.29396 pays for 10 h.
    budget = {**TEMPLATE, "metadata": {"outlast-budget-dollars": "0.29396"}}
    found = reviewed(unchanged(template=same(TEMPLATES[0], budget)), _aaaaaaaaaa=OPEN)
    assert found.after.at_the_limit == "$0.29 (10 h, its budget)"
    assert found.after.as_json()["limit"] == pytest.approx(0.294, abs=1e-3)
    show_review(found)
    shown = capsys.readouterr().out
    assert "an hour: e2-standard-2 Spot $0.0294" in shown and "a day of it" in shown


def test_requests_and_downloads_are_priced():
    heartbeat = {**TEMPLATE, "metadata": {"outlast-timeouts": '{"heartbeat":20}'}}
    said = reviewed(unchanged(template=same(TEMPLATES[0], heartbeat)), _aaaaaaaaaa=OPEN).storage
    # An hour: 180 heartbeats + 60 logs + 6 checkpoints x 6 = 276 writes x 0.005 / 1000 = 0.00138,
    # and 180 + 6 x 6 = 216 reads x 0.0004 / 1000 = 0.0000864; together 0.0014664.
    assert any(
        "requests: about $0.0015 an hour, with a heartbeat every 20 s" in one for one in said
    )
    assert any("download: about $0.12 a GiB" in one for one in said)


def test_what_is_done_costs_nothing():
    found = reviewed(unchanged(), _aaaaaaaaaa=ended(State.DONE, Reason.DONE))
    assert (found.before.an_hour, found.after.at_the_limit) == ("nothing", "nothing")


def test_destroying_leaves_the_bucket():
    steps = [replace(step, op="delete", new={}) for step in unchanged()]
    found = reviewed(steps, _aaaaaaaaaa=OPEN)
    (line,) = found.runs
    assert line.then is Then.STOPS and "the stack gives it up" in line.why
    assert found.before.sum.hour > 0 and found.after.an_hour == "nothing"


@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        ({"location": "US-CENTRAL1"}, "(us-central1): $0.0200 a GiB and month"),
        (
            {"location": "us-central1", "softDeletePolicy": {"retentionDurationSeconds": 604800}},
            "billed for 7 more days, $0.0046 each",
        ),
        ({"location": "us-central1", "versioning": {"enabled": True}}, "versions: overwritten"),
        ({"location": "europe-west4"}, "in us-central1 and the bucket in europe-west4: reads"),
        ({"location": "europe-west4"}, "billed by the GiB, at most $0.0800 each"),
        ({"location": "me-west1"}, "billed by the GiB, at a price that is not in the list"),
        ({"location": "us-central1"}, "how large they are is not known before a run's first"),
        ({"location": "mars-north1"}, "(mars-north1): unknown a GiB and month"),
    ],
)
def test_storage_is_priced_where_it_applies(bucket, said):
    steps = [*unchanged(), same(BUCKET, {"name": "b", **bucket})]
    assert any(said in line for line in reviewed(steps, _aaaaaaaaaa=OPEN).storage)


def test_a_bucket_that_protects_less_than_before_is_refused():
    kept = {
        "name": "b",
        "location": "us-central1",
        "labels": {"managed-by": "outlast", "component": "checkpoint-bucket"},
        "publicAccessPrevention": "enforced",
        "uniformBucketLevelAccess": True,
        "versioning": {"enabled": True},
    }
    weaker = changed(BUCKET, kept, {**kept, "versioning": {"enabled": False}})
    (broken,) = reviewed([*unchanged(), weaker], _aaaaaaaaaa=OPEN).broken
    assert broken.rule == "weaker-bucket" and "(versions True → False)" in broken.why
    assert reviewed([*unchanged(), same(BUCKET, kept)], _aaaaaaaaaa=OPEN).broken == ()


GIB = 2**30


@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        ({}, "checkpoints: run aaaaaaaaaa keeps 2, 3.0 GiB together, $0.0600 a month"),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": 604800}},
            "; with one checkpoint of 2.0 GiB dropped every 10 minutes, 2,016.0 GiB held at a "
            "time, $40.32 a month",
        ),
        ({"versioning": {"enabled": True}}, "288.0 GiB more with each day, $5.76 a month"),
    ],
)
def test_checkpoints_are_priced_by_what_the_last_run_keeps(bucket, said):
    declared = {"name": "b", "location": "US-CENTRAL1", **bucket}
    found = preview.of_plan(
        "dev",
        [*unchanged(), same(BUCKET, declared)],
        look=lambda pin: OPEN,
        kept=lambda pin, head: (GIB, 2 * GIB),
        now=NOW,
    )
    assert any(said in line for line in found.storage), found.storage


DEAR = changed(TEMPLATES[0], TEMPLATE, {**TEMPLATE, "machineType": "a2-ultragpu-8g", "labels": {}})


@pytest.mark.parametrize(
    ("config", "broken", "advised"),
    [
        ({}, ["labels"], []),
        ({"labels": "disabled"}, [], []),
        ({"labels": {"enforcementLevel": "advisory"}}, [], ["labels InstanceTemplate: has no"]),
        ({"all": "advisory", "labels": "mandatory"}, ["labels"], []),
        ({"gpu-ceiling": {"gpus": 7}}, ["labels", "gpu-ceiling"], []),
        ({"gpu-ceiling": {"gpus": 8.0}}, ["labels"], []),
        ({"hour-ceiling": {"dollars": 40}, "labels": "disabled"}, ["hour-ceiling"], []),
        ({"hour-ceiling": {"dollars": 41}, "labels": "disabled"}, [], []),
    ],
)
def test_the_rules_take_the_policy_packs_config(tmp_path, config, broken, advised):
    path = tmp_path / "limits.json"
    path.write_text(json.dumps(config))
    standard = {"provisioningModel": "STANDARD", "terminationTime": "2026-11-29T12:00:00Z"}
    steps = unchanged(template=replace(DEAR, new={**DEAR.new, "scheduling": standard}))
    found = preview.of_plan(
        "dev", steps, look=lambda pin: OPEN, now=NOW, config=rules.read_config(path)
    )
    assert [one.rule for one in found.broken] == broken
    for words in advised:
        assert any(words in line for line in found.advice)
    assert len([one for one in found.advice if one.startswith(("labels", "gpu"))]) == len(advised)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "must be an object, by rule; docs/changes.md has an example"),
        ('{"gpus": 1}', "gpus: is not a rule; there are run-limit, public-access"),
        ('{"labels": 3}', "labels: must be an object, or an enforcement level"),
        (
            '{"labels": "strict"}',
            "enforcementLevel 'strict' must be mandatory, remediate, advisory",
        ),
        ('{"gpu-ceiling": {"gpus": -1}}', "gpu-ceiling: gpus -1 must be a whole number from 0"),
        ('{"gpu-ceiling": {"gpus": 7.5}}', "gpu-ceiling: gpus 7.5 must be a whole number"),
        ('{"hour-ceiling": {"dollars": NaN}}', "hour-ceiling: dollars nan must be a number"),
        ('{"gpu-ceiling": {"gpus": true}}', "gpu-ceiling: gpus True must be a whole number"),
        ('{"labels": {"required": "team"}}', "labels: required 'team' must be a list of names"),
        ('{"hour-ceiling": {"dollars": "5"}}', "dollars '5' must be a number from 0"),
    ],
)
def test_a_config_that_is_none_is_bad_usage(tmp_path, text, words):
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        rules.read_config(path)
    assert words in str(caught.value) and "Traceback" not in str(caught.value)
    with pytest.raises(UsageError, match="No such file"):
        rules.read_config(tmp_path / "none.json")


def test_a_broken_rule_is_exit_3_in_every_form():
    endless = changed(TEMPLATES[0], TEMPLATE, {**TEMPLATE, "scheduling": {}})
    found = reviewed(unchanged(template=endless), _aaaaaaaaaa=OPEN)
    assert (found.exit_code, found.as_json()["exit_code"]) == (3, 3)
    assert [one.rule for one in found.broken] == ["run-limit"]
    assert "- `run-limit InstanceTemplate`: scheduling has neither" in as_markdown(found)
    assert reviewed(unchanged(), _aaaaaaaaaa=OPEN).exit_code == 0


@pytest.mark.parametrize("broken", [False, True])
def test_a_guard_that_is_not_checked_has_its_own_exit_code(broken, capsys):
    """A run that may be open would be replaced, and its HEAD could not be read."""
    template = changed(TEMPLATES[0], TEMPLATE, {**TEMPLATE, "scheduling": {}})
    pin = changed(PIN, PINNED, {**NEW_PIN, "run": "bbbbbbbbbb"})
    steps = unchanged(pin=pin, **({"template": template} if broken else {}))
    found = reviewed(steps, _aaaaaaaaaa=NotRead.UNKNOWN, _bbbbbbbbbb=NotRead.ABSENT)
    assert found.exit_code == found.as_json()["exit_code"] == (3 if broken else 4)
    (said,) = found.as_json()["not_checked"]
    assert said.startswith("run aaaaaaaaaa: not checked whether it is open and would be replaced")
    assert f"**Guard not checked**\n\n- {said[:14]}" in as_markdown(found)
    show_review(found)
    assert f"GUARD NOT CHECKED  {said}" in capsys.readouterr().out
    same = reviewed(unchanged(), _aaaaaaaaaa=NotRead.UNKNOWN)
    assert (same.not_checked, same.exit_code) == ((), 0)


class SilentBucket:
    """Every request for a bucket takes as long as its caller allows; a clock counts only that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, connects: bool) -> None:
        self.spent_sec = 0.0
        self._connects = connects
        for module in (retry_base, retry_unary):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(urllib.request.OpenerDirector, "open", self._open)
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", self._send)
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "any")
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)

    def monotonic(self) -> float:
        return self.spent_sec

    def sleep(self, seconds: float) -> None:
        self.spent_sec += seconds

    def _open(self, request: Any, *, timeout: float) -> Any:
        self.spent_sec += timeout
        raise TimeoutError("timed out")

    def _send(self, request: Any, *, timeout: tuple[float, float], **_: Any) -> Any:
        connect_sec, answer_sec = timeout
        self.spent_sec += answer_sec if self._connects else connect_sec
        kind = requests.ReadTimeout if self._connects else requests.ConnectTimeout
        raise kind("timed out", request=request)


@pytest.mark.parametrize("connects", [True, False], ids=["is silent", "cannot be reached"])
def test_a_bucket_that_does_not_answer_costs_a_preview_ten_seconds_and_is_named(
    connects, monkeypatch, capsys
):
    """The program looks the bucket up, the run's pin reads HEAD, and so does the review."""
    silent = SilentBucket(monkeypatch, connects=connects)
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    lookups.find_bucket(stack_settings(HERE), previews=True)
    news = {**PINS, "run": "bbbbbbbbbb", "named": "bbbbbbbbbb"}
    monkeypatch.setattr(images, "resolve", lambda *_: images.Image("", "p", "f-1", "f"))
    monkeypatch.setattr(host, "_said", set())
    for name in ("_silent", "_not_checked"):
        monkeypatch.setattr(run_pin, name, {})
    assert run_pin.RunPinProvider().check(dict(PINS), news).failures == []
    pin = changed(PIN, PINNED, {**NEW_PIN, "run": "bbbbbbbbbb"})
    found = preview.of_plan("dev", unchanged(pin=pin), look=bucket.looking(), now=NOW)

    assert silent.spent_sec <= 10
    assert "bucket acme-research-outlast: cannot be looked up" in warned[0]
    assert "gs://p-outlast cannot be read (" in capsys.readouterr().err
    assert "because gs://b cannot be read from here" in found.not_checked[0]
    assert found.exit_code == 4


@pytest.mark.parametrize("form", ["--markdown", "--json", None])
def test_a_refusal_is_printed_in_the_form_that_was_asked_for(form, monkeypatch, capsys):
    def refuse(*_, **__):
        raise EngineError("run a is open | and run b would take its place")

    monkeypatch.setattr(preview, "review", refuse)
    with pytest.raises(EngineError):
        cli.main(["preview", "dev", *([form] if form else [])], standalone_mode=False)
    out = capsys.readouterr().out
    if form == "--json":
        assert json.loads(out) == {
            "stack": "dev",
            "refused": "run a is open | and run b would take its place",
            "exit_code": 1,
        }
    elif form:
        assert out.startswith("### Outlast: stack `dev`\n\n**Refused**\n\n- run a is open")
    else:
        assert out == ""


def test_the_markdown_is_a_table_and_folds_the_rest(capsys):
    found = reviewed(unchanged(template=OTHER_TEMPLATE), _aaaaaaaaaa=OPEN)
    text = as_markdown(found)
    assert "| `aaaaaaaaaa` | **stays untouched** | its VM keeps running;" in text
    assert "<details><summary>resources that change: 1</summary>" in text
    assert "List prices of 2026-11-28" in text
    show_review(found)
    shown = capsys.readouterr().out
    assert "run aaaaaaaaaa stays untouched: its VM keeps running;" in shown
    assert "replaced: InstanceTemplate InstanceTemplate (machineType)" in shown


RECIPE = {
    "family": "outlast",
    "zone": "us-central1-a",
    "machine_type": "e2-standard-4",
    "disk_gb": 50,
    "limit_minutes": 120,
}


@pytest.mark.parametrize(
    ("op", "machine", "said"),
    [
        (
            "create",
            "e2-standard-4",
            "image outlast-0123456789 is baked once: its builder (e2-standard-4 on demand, 50 GiB"
            " pd-balanced, external address) costs at most $0.29, by its limit of 120 minutes;"
            " the price of keeping it is unknown",
        ),
        (
            "update",
            "z9-standard-4",
            "image outlast-0123456789 is baked once: its builder (z9-standard-4 on demand, 50 GiB"
            " pd-balanced, external address) costs at least $0.0237, by its limit of 120 minutes;"
            " the price of keeping it is unknown",
        ),
        ("same", "e2-standard-4", ""),
        (
            "clear",
            "e2-standard-4",
            "image outlast-0123456789 exists, and nothing is baked: leftovers of a killed bake are"
            " deleted",
        ),
    ],
)
def test_what_baking_an_image_costs(op, machine, said, capsys):
    recipe = {**RECIPE, "machine_type": machine}
    old = new = {"recipe": recipe, "hash": "0123456789abcdef", "external_ip": True}
    if op == "clear":
        op, old = "update", {**new, "image": "x/outlast-0123456789"}
    found = reviewed(unchanged(bake=Step(op, BAKE, "image", old, new)), _aaaaaaaaaa=OPEN)
    assert list(found.bakes) == ([said] if said else [])
    assert found.as_json()["cost"]["bakes"] == list(found.bakes)
    show_review(found)
    shown = capsys.readouterr().out
    assert f"\n{said}\n" in shown if said else "baked" not in shown
    assert (f"\n\nI{said[1:]}\n\n" if said else "|\n\nNo rule") in as_markdown(found)


def test_a_warning_of_the_program_is_shown_once(capsys):
    warning = {"severity": "warning", "message": "warning: bucket b: is far\naway\n"}
    info = {"severity": "info", "message": "info: hello\n"}
    where = {"severity": "warning", "message": "warning: using it from $PATH at /bin/it\n"}
    document = json.dumps({"steps": [], "diagnostics": [warning, info, where, warning]}, indent=1)
    heard = plans.messages(f"Previewing\n{document}", "warning")
    assert heard == ("bucket b: is far away",)
    assert plans.messages(document, "info") == ("hello",)
    found = replace(reviewed(unchanged(), _aaaaaaaaaa=OPEN), warnings=heard)
    assert found.as_json()["warnings"] == list(heard)
    show_review(found)
    assert "\nwarning: bucket b: is far away\n" in capsys.readouterr().out
    assert "\n- warning: bucket b: is far away\n" in as_markdown(found)


def test_an_invalid_plan_gives_one_sentence():
    with pytest.raises(EngineError, match="printed something other than its plan"):
        plans.plan("Previewing update (dev)")


def test_the_group_that_a_stack_has_is_asked_whether_it_can_create_a_vm():
    made = {**GROUP, "project": "p", "name": "g"}
    assert preview._group(unchanged(group=same(GROUPS[0], made))) == Group(
        "p", "zones/us-central1-a", "g"
    )
    regional = {"project": "p", "name": "g", "region": "us-central1"}
    found = preview._group(unchanged(group=same(GROUPS[1], regional)))
    assert found == Group("p", "regions/us-central1", "g")
    new = Step("create", GROUPS[0], "g", {}, made)
    assert preview._group(unchanged(group=new)) is None
