"""A group's VM with a stock Debian: its boot, its health, the power button, a resume, and its end.

The startup script, the supervisor's unit, the guest agent and the health process are those of every
run; only the supervisor is a small one, so that this takes a minute or two."""

import pytest

from tests.guest.counter import LAST_SEC
from tests.guest.guest_cloud import BUSY_APT, STOCK, SYSTEM_PYTHON, Count, GuestCloud, wait

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

NOTICE_SEC = 2.0
"""Longest from the power button to the supervisor's SIGTERM, on a VM of Compute Engine."""


def test_a_vm_is_probed_hears_the_power_button_in_time_resumes_and_powers_itself_off(
    cloud: GuestCloud,
) -> None:
    """All the time another process inhibits a shutdown, as apt does while it installs."""
    count = Count(cloud)
    count.start(STOCK, before=SYSTEM_PYTHON + BUSY_APT)
    assert count.written("boot-1")["n"] == 0
    count.turns("HEALTHY")
    count.order("hang")
    count.turns("UNHEALTHY")
    count.order("")
    count.turns("HEALTHY")

    first = count.member()
    cloud.ok("POST", f"/_local/vms/{first['name']}/preempt")
    stopped, ended = count.written("stopped-1"), count.written("ended-1")
    (pressed,) = [event["time"] for event in cloud.events("vm-stopping")]
    # Both are times of this machine.
    assert stopped["at"] - pressed <= NOTICE_SEC * cloud.factor()
    wait(lambda: cloud.events("vm-exited"), "for the first VM's end")
    assert cloud.events("vm-exited")[0]["time"] - stopped["at"] >= LAST_SEC
    # It was not killed: its system has shut down.
    assert "reboot: Power down" in cloud.serial(first["name"], 1)

    # Storage was within reach until the end: the successor continues with the last number.
    assert count.written("boot-2")["n"] == ended["n"]
    assert count.member()["id"] != first["id"]
    count.order("end")
    wait(lambda: len(cloud.events("vm-exited")) == 2, "for the second VM's end")
    assert "reboot: Power down" in cloud.serial(first["name"], 2)
