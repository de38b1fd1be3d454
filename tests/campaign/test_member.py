"""What a member of a campaign sees of the cloud, and what it counts: without a cloud."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.base.exits import Reason
from outlast.bucket.history import Attempt
from outlast.cli import cloud as clouds
from outlast.cli.errors import EngineError, NoStack
from outlast.cli.rehearsal.guarantees import Guarantee, Verdict
from outlast.cli.rehearsal.seen import Ending, Fault, RunRecord, Seen
from tests.campaign import member
from tests.campaign.member import CutOff, Result, Share, fallbacks

AUDIT = {
    "buckets": [{"name": "shared", "objects": 3, "versions": 0}],
    "groups": ["m1-dummy-0123456789", "m12-dummy-0123456789", "m1-sweep--0123456789-0123456789"],
    "service_accounts": ["m1-dummy@p.iam.gserviceaccount.com"],
    "bindings": [{"role": "r", "member": "serviceAccount:m12-dummy@p.iam.gserviceaccount.com"}],
    "declared": ["global/networks/m1-dummy-baseline"],
    "pids": [1, 2],
}


def cloud(**calls: Any) -> Any:
    names = ("group_size", "group_errors", "has_bucket", "make_bucket", "watch")
    return SimpleNamespace(poll_sec=0.2, **dict.fromkeys(names), **calls)


def test_a_run_sees_what_is_its_own_and_the_bucket() -> None:
    share = Share(cloud(audit=lambda: dict(AUDIT)), "m1-dummy")
    assert share.audit() == {
        "buckets": AUDIT["buckets"],
        "groups": ["m1-dummy-0123456789"],
        "service_accounts": AUDIT["service_accounts"],
        "bindings": [],
        "declared": AUDIT["declared"],
    }
    of_sweep = Share(cloud(audit=lambda: dict(AUDIT)), "m1-sweep--0123456789", of="m1-sweep")
    assert of_sweep.audit()["groups"] == ["m1-sweep--0123456789-0123456789"]


def test_a_run_sees_its_vms_and_the_rules_of_its_scenario() -> None:
    vms = [{"name": "m1-dummy-0123456789-abcd"}, {"name": "m12-dummy-0123456789-abcd"}]
    rules = [{"id": "a"}, {"id": "b"}]
    shown = {"/_local/scenario?target=m1-dummy": {"rules": ["b"]}}
    share = Share(
        cloud(vms=lambda: vms, faults=lambda: rules, call=lambda _, path: shown[path]), "m1-dummy"
    )
    assert (share.vms(), share.faults()) == (vms[:1], rules[1:])


def attempt(term: int, from_step: int, committed: int | None, **more: Any) -> Attempt:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    fields = {"reason": Reason.VM_LOST, "lost": 0, **more}
    return Attempt(
        term, at, at, fields["reason"], "vm", "z", from_step, 50, committed, fields["lost"]
    )


def run(*attempts: Attempt, heads: Any = ()) -> RunRecord:
    history: Any = SimpleNamespace(attempts=attempts, head=None)
    return RunRecord(history, heads=heads)


def test_an_older_checkpoint_than_the_last_is_a_fallback() -> None:
    assert fallbacks(run(attempt(1, 0, 20), attempt(2, 20, None), attempt(3, 20, 40))) == []
    assert fallbacks(run(attempt(1, 0, 20), attempt(2, 10, None), attempt(3, 10, 40))) == [2]
    assert fallbacks(run(attempt(1, 0, 20), attempt(2, 20, None), attempt(3, 10, 40))) == [3]


def test_a_commit_that_no_heartbeat_names_counts() -> None:
    seen = SimpleNamespace(
        chain=[SimpleNamespace(term=1, step=20), SimpleNamespace(term=1, step=30)]
    )
    attempts = attempt(1, 0, 20), attempt(2, 20, 40)
    assert fallbacks(run(*attempts)) == []
    assert fallbacks(run(*attempts, heads=(seen,))) == [2]


def test_what_a_run_survived_is_counted() -> None:
    found = run(
        attempt(1, 0, 20, lost=7), attempt(2, 10, 30, reason=Reason.FENCED), attempt(3, 30, 50)
    )
    faults = [
        Fault("kill", 1, 1),
        Fault("freeze", 2, 2),
        Fault("thaw", 2, 2),
        Fault("preempt", 3, missed="it ended"),
    ]
    seen = Seen(
        Ending("done"), found, faults=faults, disturbed_requests=4, refusals=["QUOTA_EXCEEDED"]
    )
    result = Result()
    held = [
        Guarantee("resumed", "", Verdict.HELD, ""),
        Guarantee("x", "", Verdict.NOT_EXERCISED, ""),
    ]
    result.add(seen, 0, held, commits=9)
    assert result == Result(
        runs=1, preemptions=1, faults=7, commits=9, fenced=1, fallbacks=1, lost=7
    )
    result.add(seen, 2, [Guarantee("same-bytes", "", Verdict.BROKEN, "differs")], commits=1)
    result.add(seen, 1, [Guarantee("resumed", "", Verdict.BROKEN, "fresh")], commits=0)
    assert (result.broken, result.at, result.runs) == ({"same-bytes": "differs"}, 2, 3)


@pytest.mark.parametrize(
    ("refusal", "raised"), [(NoStack("stack m0: is not there."), None), (EngineError("no"), "no")]
)
def test_an_up_that_was_cut_off_before_its_stack_existed_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, refusal: EngineError, raised: str | None
) -> None:
    killed = threading.Event()
    ups: list[str] = []

    def up() -> dict[str, Any]:
        ups.append("up")
        if len(ups) == 1:
            killed.wait()
            raise EngineError("killed")
        return {"run": "0123456789"}

    def recover(*_: Any, **__: Any) -> None:
        raise refusal

    monkeypatch.setenv(clouds.TOKEN_VARIABLE, "token")
    monkeypatch.setattr(member, "end_strays", lambda token: killed.set())
    monkeypatch.setattr(member.recover, "recover", recover)
    stack: Any = SimpleNamespace(up=up, destroy=None, name="m0")
    provider: Any = SimpleNamespace(reap=lambda: None, start=lambda: None)
    cut = CutOff(stack, Path("."), provider)
    cut.cuts = [0.01]
    if raised:
        with pytest.raises(EngineError, match=raised):
            cut.up()
    else:
        assert (cut.up(), cut.done, len(ups)) == ({"run": "0123456789"}, 1, 2)
