"""What a development run takes from the run of its VM, and what it must not."""

import dataclasses
from datetime import UTC, datetime

import pytest

from outlast.bucket.layout import DEVELOPMENT
from outlast.spec.run_spec import RunSpec, Timeouts
from outlast.supervisor import development
from outlast.supervisor.development import development_spec

OWN = RunSpec(
    prefix="experiments/first",
    run="0123456789",
    resume=3,
    placement=2,
    owner="organization/mine/first",
    trainer="mine",
    deadline=datetime(2027, 1, 1, tzinfo=UTC),
    args={"epochs": "3", "model-output-path": "gs://elsewhere/model"},
    secret_env={"TOKEN": "projects/p/secrets/s/versions/1"},
    webhook="https://example.com",
    webhook_secret="projects/p/secrets/w/versions/1",
    webhook_key_secret="projects/p/secrets/k/versions/1",
    model_output_path="gs://elsewhere/model",
    billed={"spot": True},
    budget_dollars=5.0,
    hour_prices={"n2-standard-2": 0.1},
    retries_failures=3,
    timeouts=dataclasses.replace(Timeouts(), keep=3600.0, heartbeat=7.0),
    bucket="b",
)


def test_it_trains_the_same_under_its_own_name() -> None:
    found = development_spec(OWN, "c")
    assert found.run.startswith(DEVELOPMENT) and found.run != OWN.run
    assert (found.resume, found.placement) == (0, 0)
    assert (found.prefix, found.owner, found.bucket) == (OWN.prefix, OWN.owner, OWN.bucket)
    assert (found.trainer, found.args) == ("mine", {"epochs": "3"})
    assert found.secret_env == OWN.secret_env
    assert (found.timeouts.keep, found.timeouts.heartbeat) == (0.0, 7.0)


def test_what_is_not_listed_stays_with_the_vms_own_run() -> None:
    found = development_spec(dataclasses.replace(OWN, sweep_rules=object()), "c")  # type: ignore[arg-type]
    own = {"args", "run", "resume", "placement", "timeouts"}
    for one in dataclasses.fields(RunSpec):
        if one.name in own or one.name in development.TRAINED:
            continue
        default = (
            one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
        )
        assert getattr(found, one.name) == default, one.name


@pytest.mark.parametrize(
    "change",
    [
        {"args": {"epochs": "4"}},
        {"command": ("sh", "train.sh")},
        {"data": ("gs://b/data/x",)},
        {"init": "gs://b/x@1"},
        {"processes": 2},
    ],
)
def test_its_name_follows_from_what_is_trained(change: dict[str, object]) -> None:
    name = development_spec(OWN, "c").run
    assert development_spec(OWN, "c").run == name
    assert development_spec(OWN, "d").run != name
    assert development_spec(dataclasses.replace(OWN, **change), "c").run != name  # type: ignore[arg-type]
    for other in ({"run": "ffffffffff"}, {"resume": 4}, {"webhook": ""}, {"budget_dollars": 1.0}):
        assert development_spec(dataclasses.replace(OWN, **other), "c").run == name  # type: ignore[arg-type]
