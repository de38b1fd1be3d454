"""What a run without an attempt waits for: by its boot records, and by what its group says."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.base.exits import BOOT_SEC, Reason
from outlast.bucket.history import Boot
from outlast.bucket.standing import Standing
from outlast.cli import boots
from outlast.cli.boots import (
    Refusal,
    Seen,
    Vm,
    wait_of,
)
from outlast.cloud.compute import (
    CannotAsk,
    Compute,
    Group,
    Missing,
)

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


LATE = BOOT_SEC / 60
YOUNG = Vm("vm-2", "2", ago(3))
OLD = Vm("vm-1", "1", ago(LATE))
BOOTS = Boot("2", ago(2), None)
FAILED = Boot("1", ago(9), Reason.SETUP_FAILED)
STOCKOUT = (
    Refusal(ago(20), "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone has no room."),
    Refusal(ago(4), "QUOTA_EXCEEDED", "Quota 'CPUS' exceeded. Limit: 8.0 in region r."),
)
BY_POLICY = (
    Refusal(
        ago(4),
        "CONDITION_NOT_MET",
        "Constraint constraints/compute.vmExternalIpAccess violated for project 1.",
    ),
)
NO_NOTICE = (
    Refusal(ago(4), "INVALID_USAGE", "Invalid value for field 'preemptionNoticeDuration'."),
)
NOTHING = "1 boot has failed, the last with setup-failed"
SILENTLY = (
    "its group has target size 0, and no record says why: a VM leaves like this if storage or the "
    "metadata server gives no answer for outlast:silenceSec, or if its metadata is incomplete"
)
AGAIN = (
    "nothing runs or costs any more; once the cause is gone, raise outlast:resume, and outlast up "
    "starts it again"
)


@pytest.mark.parametrize(
    ("recorded", "seen", "what", "since", "why"),
    [
        # From the bucket alone.
        ([], None, "waiting", None, ""),
        ([BOOTS], None, "booting", ago(2), "VM 2 boots"),
        ([FAILED], None, "never-started", None, NOTHING),
        ([FAILED, BOOTS], None, "booting", ago(2), f"{NOTHING}; VM 2 boots"),
        (
            [Boot("1", ago(LATE), None)],
            None,
            "never-started",
            ago(LATE),
            "VM 1 has not reached an attempt in 30 minutes",
        ),
        # With what the group says.
        ([], Seen(ago(1), 1, None), "waiting", None, ""),
        (
            [],
            Seen(ago(30), 1, None, STOCKOUT),
            "waiting",
            ago(20),
            "its group cannot create a VM: ZONE_RESOURCE_POOL_EXHAUSTED, QUOTA_EXCEEDED (tries: 2):"
            " Quota 'CPUS' exceeded. Limit: 8.0 in region r; ask for more of this quota, or choose"
            " another machine type or region",
        ),
        (
            [],
            Seen(ago(30), 1, None, BY_POLICY),
            "waiting",
            ago(4),
            "its group cannot create a VM: CONDITION_NOT_MET (tries: 1): Constraint"
            " constraints/compute.vmExternalIpAccess violated for project 1; set"
            " outlast:externalIp to false, or outlast:network to isolated; what VMs need from the"
            " internet then takes outlast:nat true or a baked image",
        ),
        (
            [],
            Seen(ago(30), 1, None, NO_NOTICE),
            "waiting",
            ago(4),
            "its group cannot create a VM: INVALID_USAGE (tries: 1): Invalid value for field"
            " 'preemptionNoticeDuration'; set outlast:noticeSec to 0, because this machine type"
            " takes no notice",
        ),
        (
            [BOOTS],
            Seen(ago(30), 1, None, STOCKOUT),
            "waiting",
            None,
            "",
        ),
        ([], Seen(ago(4), 1, YOUNG), "booting", ago(3), "VM vm-2 boots"),
        ([BOOTS], Seen(ago(90), 1, YOUNG), "booting", ago(2), "VM vm-2 boots"),
        ([], Seen(ago(90), 1, YOUNG, STOCKOUT), "booting", ago(3), "VM vm-2 boots"),
        (
            [],
            Seen(ago(LATE + 1), 1, OLD),
            "never-started",
            ago(LATE),
            "VM vm-1 has not reached an attempt in 30 minutes",
        ),
        # VMs that come and go before their first act.
        (
            [],
            Seen(ago(10), 1, YOUNG),
            "booting",
            ago(3),
            "VMs before vm-2 disappeared without a boot record",
        ),
        (
            [],
            Seen(ago(LATE), 1, YOUNG),
            "never-started",
            ago(LATE),
            "VMs before vm-2 disappeared without a boot record",
        ),
        (
            [replace(FAILED, why="bundle x: is not a zip file")],
            Seen(ago(90), 0, None),
            "never-started",
            None,
            f"{NOTHING}: bundle x: is not a zip file; its group has target size 0; {AGAIN}",
        ),
        # Its metadata was incomplete, or the bucket refused the record.
        (
            [],
            Seen(ago(90), 0, None),
            "never-started",
            None,
            f"{SILENTLY}; {AGAIN}",
        ),
        # A VM whose disk stays boots again.
        ([Boot("1", ago(1), None)], Seen(ago(90), 1, OLD), "booting", ago(1), "VM vm-1 boots"),
    ],
)
def test_what_is_waited_for(recorded, seen, what, since, why):
    found = wait_of(recorded, seen, now=NOW)
    assert (found.what, found.since, found.why) == (Standing(what), since, why)


@pytest.mark.parametrize(
    "code",
    [
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "RESOURCE_POOL_EXHAUSTED",
        "VM_MIN_COUNT_NOT_REACHED",
        "QUOTA_EXCEEDED",
        "A_CODE_THAT_IS_NOT_KNOWN_YET",
    ],
)
def test_a_refused_vm_is_waited_for_and_shown_under_googles_code_whichever_it_is(code: str):
    refused = (Refusal(ago(4), code, "Try another zone, for example europe-west4-b."),)
    found = wait_of([], Seen(ago(30), 1, None, refused), now=NOW)
    assert found.what is Standing.WAITING
    assert found.why.startswith(
        f"its group cannot create a VM: {code} (tries: 1): Try another zone, for example"
        " europe-west4-b"
    )


def test_a_run_that_left_during_training_says_what_is_known():
    found = wait_of([], Seen(ago(90), 0, None), now=NOW, attempt=ago(30))
    assert (found.what, found.why) == (Standing.WAITING, f"{SILENTLY}; {AGAIN}")


ANSWERS: dict[str, Any] = {
    "GET zones/z/instanceGroupManagers/g": {
        "creationTimestamp": "2026-11-28T11:00:00Z",
        "targetSize": 1,
    },
    "POST zones/z/instanceGroupManagers/g/listManagedInstances": {
        "managedInstances": [
            {"instance": "https://x/projects/p/zones/z/instances/g-1", "instanceStatus": "RUNNING"},
            {"instance": "https://x/projects/p/zones/z/instances/g-2"},
        ]
    },
    "GET zones/z/instances/g-1": {
        "name": "g-1",
        "id": "7",
        "creationTimestamp": "2026-11-28T11:58:00.5-00:00",
    },
    "GET zones/z/instanceGroupManagers/g/listErrors": {
        "items": [
            {
                "timestamp": "2026-11-28T11:01:00Z",
                "error": {"code": "STOCKOUT", "message": "No room.\nTry later."},
            }
        ]
    },
}
GROUP = Group("p", "zones/z", "g")


def test_what_a_group_says(monkeypatch: pytest.MonkeyPatch):
    answers = json.loads(json.dumps(ANSWERS))

    def call(self: Compute, method: str, path: str, **_: Any) -> Any:
        found = answers[f"{method} {path}"]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Compute, "call", call)
    at = datetime(2026, 11, 28, 11, 58, 0, 500000, tzinfo=UTC)
    made = datetime(2026, 11, 28, 11, tzinfo=UTC)
    errors = (Refusal(made + timedelta(minutes=1), "STOCKOUT", "No room. Try later."),)
    assert boots.look(GROUP) == Seen(made, 1, Vm("g-1", "7", at), errors)
    # What a VM that never started says on its serial port, without a half line and colours.
    seen = boots.look(GROUP)
    assert seen and seen.vm
    vm = seen.vm
    port = "GET zones/z/instances/g-1/serialPort?start=-8192"
    text = "half\n\x1b[0;32m  OK  \x1b[0m Started cron\r\n\n2026 error read-metadata no key\n"
    answers[port] = {"contents": text}
    never = boots.Wait(Standing.NEVER_STARTED, None, "")
    said = boots.with_serial(never, GROUP, vm)
    assert said.serial == ("OK   Started cron", "2026 error read-metadata no key")
    assert said.as_json()["serial"] == list(said.serial)
    booting = boots.Wait(Standing.BOOTING, None, "")
    assert boots.with_serial(booting, GROUP, vm) is booting
    answers[port] = CannotAsk(403, "no")
    assert boots.with_serial(never, GROUP, vm) is never
    # Nothing that cannot be asked is taken for an answer.
    for broken in (Missing(404, "gone"), CannotAsk(403, "no"), {}, {"creationTimestamp": "x"}):
        answers["GET zones/z/instanceGroupManagers/g"] = broken
        assert boots.look(GROUP) is None


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, ""),
        (Seen(ago(1), 0, None, STOCKOUT), ""),
        (Seen(ago(1), 1, YOUNG, STOCKOUT), ""),
        (Seen(ago(1), 1, None), ""),
        (Seen(ago(1), 1, None, STOCKOUT), "its group cannot create a VM: ZONE_RESOURCE_POOL"),
    ],
)
def test_a_group_without_a_vm_says_why(monkeypatch: pytest.MonkeyPatch, seen, why: str):
    monkeypatch.setattr(boots, "look", lambda group: seen)
    assert boots.stuck(GROUP).startswith(why) and bool(boots.stuck(GROUP)) == bool(why)


def test_the_first_try_of_a_group_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    answers = [Seen(ago(1), 1, None), Seen(ago(1), 1, None), Seen(ago(1), 1, None, STOCKOUT)]
    monkeypatch.setattr(boots, "look", lambda group: answers.pop(0))
    monkeypatch.setattr(boots, "POLL_SEC", 0.0)
    assert "Quota 'CPUS' exceeded" in boots.stuck(GROUP, patience_sec=60)
    assert not answers
