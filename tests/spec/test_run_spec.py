"""A run from settings to metadata and back."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.spec.delivery import Git
from outlast.spec.run_spec import BadSpec, RunSpec, Timeouts, argv, parse_checkpoint_every
from outlast.spec.sweep_rules import SweepRules

ATTRIBUTES = {
    "outlast-bucket": "runs",
    "outlast-prefix": "experiments/first",
    "outlast-run": "0123456789",
    "outlast-resume": "2",
    "outlast-placement": "1",
    "outlast-owner": "organization/outlast/first",
    "outlast-trainer": "digits",
    "outlast-deadline": "2026-11-27T23:59:59Z",
    "outlast-arg-epochs": "3",
    "outlast-arg-note": "-dash first",
    "outlast-arg-shuffle": "true",
    "outlast-arg-augment": "false",
}


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
SMALL = st.integers(0, 999_999_999)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
DEEP = "[" * 100_000
SECRET = "projects/p/secrets/wandb/versions/latest"
GIT = st.builds(
    Git,
    url=st.just("https://github.com/me/code.git"),
    commit=st.just("0" * 40),
    path=st.sampled_from(["", "train"]),
)

SWEEP = SweepRules.parse(
    {"name": "lr", "metric": "loss", "goal": "min", "rule": "median", "minStep": 10}
)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    """Any run that settings can describe."""
    command = draw(st.none() | TEXTS.filter(str.strip) | st.lists(TEXTS, min_size=1).map(tuple))
    args = draw(st.dictionaries(NAMES, TEXTS, max_size=4))
    of_command: dict[str, Any] = {}
    if command is not None:
        of_command = {
            "checkpoint_quiet_sec": draw(st.integers(1, 86_400)),
            "command_options": draw(OBJECTS),
            "data": tuple(draw(st.lists(st.just("gs://b/rows/"), max_size=2))),
        }
    return RunSpec(
        bucket=draw(NAMES),
        prefix=f"experiments/{draw(NAMES)}",
        run=draw(st.from_regex(r"[0-9a-f]{10}", fullmatch=True)),
        resume=draw(SMALL),
        placement=draw(SMALL),
        owner=draw(TEXTS),
        trainer=draw(NAMES),
        deadline=draw(st.datetimes(datetime(2020, 1, 1), datetime(9999, 12, 31))).replace(
            microsecond=0, tzinfo=UTC
        ),
        args=args,
        checkpoint_every=draw(st.sampled_from(["auto", "30s", "200"])),
        timeouts=draw(st.builds(Timeouts, *[st.floats(0, 1e6, width=32)] * 11)),
        retries_failures=draw(SMALL),
        keep_every_steps=draw(SMALL),
        trainer_python=draw(st.sampled_from(["", "/opt/conda/bin/python"])),
        trainer_user=draw(st.sampled_from(["root", "own"])),
        processes=draw(st.integers(1, 64)),
        gpus=draw(st.integers(0, 16)),
        mode=draw(st.sampled_from(["survive", "dedicated", "burst"])),
        command=command,
        delivery=draw(st.sampled_from(["bucket", "image", "git"])),
        git=draw(st.none() | GIT),
        bundle=draw(st.sampled_from(["", "experiments/e/bundles/0.zip"])),
        bundle_sha256=draw(st.sampled_from(["", "0" * 64])),
        secret_env=draw(st.dictionaries(st.just("WANDB_API_KEY"), st.just(SECRET), max_size=1)),
        webhook=draw(st.sampled_from(["", "https://h/x"])),
        webhook_secret=draw(st.sampled_from(["", SECRET])),
        init=draw(st.sampled_from(["", f"gs://b/e/0/t000001/s000000000010-0a/#{'0' * 64}"])),
        model_output_path=args.get("model-output-path", ""),
        sweep_rules=draw(st.sampled_from([None, SWEEP])),
        content=draw(OBJECTS),
        billed=draw(OBJECTS),
        budget_dollars=draw(st.floats(0, 1e6)),
        hour_prices=draw(OBJECTS),
        webhook_key_secret=draw(st.sampled_from(["", SECRET])),
        **of_command,
    )


@given(specs())
def test_nothing_is_lost_on_the_way_to_the_vm(spec: RunSpec) -> None:
    items = spec.to_metadata()
    assert all(isinstance(text, str) for text in items.values())
    assert RunSpec.from_metadata(items) == spec


def test_every_field_reaches_the_vm() -> None:
    """Each field has another value than its default, so that none can be forgotten."""
    given_fields: dict[str, Any] = {
        "args": {"x": "1", "model-output-path": "gs://b/m/"},
        "model_output_path": "gs://b/m/",
        "git": Git(url="https://github.com/me/code.git", commit="0" * 40),
        "sweep_rules": SWEEP,
        "command": "train",
        "secret_env": {"WANDB_API_KEY": SECRET},
        "init": f"gs://b/e/0/t000001/s000000000010-0a/#{'0' * 64}",
        "deadline": datetime(2030, 1, 1, tzinfo=UTC),
        "timeouts": Timeouts(heartbeat=3),
        "trainer_user": "own",
        "checkpoint_every": "7s",
        "data": ("gs://b/x/",),
        "prefix": "experiments/e",
        "run": "0123456789",
        "delivery": "git",
        "mode": "burst",
    }
    plain = RunSpec("p", "r", 0, 0, "o", "t", datetime(2029, 1, 1, tzinfo=UTC))
    other: dict[type, Any] = {str: "text", int: 7, float: 7.0, dict: {"a": 1}}
    for name in RunSpec.__dataclass_fields__:
        given_fields.setdefault(name, other.get(type(getattr(plain, name))))
    spec = RunSpec(**given_fields)
    for name in RunSpec.__dataclass_fields__:
        assert getattr(spec, name) != getattr(plain, name), name
    assert RunSpec.from_metadata(spec.to_metadata()) == spec


def test_a_whole_spec() -> None:
    spec = RunSpec.from_metadata(ATTRIBUTES)
    assert (spec.resume, spec.placement, spec.retries_failures) == (2, 1, 0)
    assert spec.deadline == datetime(2026, 11, 27, 23, 59, 59, tzinfo=UTC)
    assert argv(spec.args) == ["--epochs=3", "--note=-dash first", "--shuffle"]
    assert spec.checkpoint_every == "auto"
    assert spec.timeouts == Timeouts()
    assert (spec.keep_every_steps, spec.trainer_python) == (0, "")
    assert json.dumps(spec.to_json())


@pytest.mark.parametrize("key", [key for key in ATTRIBUTES if not key.startswith("outlast-arg-")])
def test_a_missing_key_is_named(key: str) -> None:
    attributes = {name: value for name, value in ATTRIBUTES.items() if name != key}
    with pytest.raises(BadSpec, match=f"{key}: missing"):
        RunSpec.from_metadata(attributes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("outlast-resume", "-1", "whole number"),
        ("outlast-placement", "one", "whole number"),
        ("outlast-retries-failures", "1.5", "whole number"),
        ("outlast-keep-every-steps", "few", "whole number"),
        ("outlast-run", "Up Down", "must match"),
        ("outlast-prefix", "experiments/first/", "no slash"),
        ("outlast-deadline", "tomorrow", "UTC time such as"),
        ("outlast-checkpoint-every", "often", "auto, seconds such as 30s"),
        ("outlast-timeouts", "[1]", "JSON object"),
        ("outlast-budget-dollars", "-1", "number of dollars"),
        ("outlast-budget-dollars", "nan", "number of dollars"),
        ("outlast-budget-dollars", "much", "number of dollars"),
        ("outlast-timeouts", '{"beet": 1}', "'beet' is not known"),
        ("outlast-timeouts", '{"heartbeat":-1}', "0 or more"),
        ("outlast-timeouts", '{"heartbeat":true}', "0 or more"),
        ("outlast-timeouts", '{"heartbeat":NaN}', "0 or more"),
        ("outlast-timeouts", '{"heartbeat":1e999}', "0 or more"),
        ("outlast-git", '{"commit":{},"url":"https://h.example/x"}', "each field must be a text"),
        ("outlast-git", '{"commit":"0","url":"https://h.example/x","path":7}', "must be a text"),
        ("outlast-git", DEEP, "must be JSON of a commit"),
        ("outlast-timeouts", DEEP, "must be a JSON object"),
        ("outlast-billed", DEEP, "must be a JSON object"),
        ("outlast-billed", '{"a":' * 101 + "1" + "}" * 101, "must not be nested deeper than 100"),
        ("outlast-content", '{"a":1e999}', "must be finite"),
        ("outlast-command", DEEP, "must be JSON"),
        ("outlast-secret-env", DEEP, "must be JSON"),
        ("outlast-sweep-rules", DEEP, "must be a JSON object"),
    ],
)
def test_a_bad_value_is_named(key: str, value: str, message: str) -> None:
    with pytest.raises(BadSpec, match=message) as caught:
        RunSpec.from_metadata({**ATTRIBUTES, key: value})
    assert key.removeprefix("outlast-") in str(caught.value)


def test_waits_that_are_left_out_keep_their_default() -> None:
    assert Timeouts.parse('{"heartbeat":1, "notice": 3.5}') == Timeouts(heartbeat=1.0, notice=3.5)


@pytest.mark.parametrize("text", ["auto", "30s", "0.5s", "200"])
def test_checkpoint_intervals(text: str) -> None:
    assert parse_checkpoint_every(text) == text
