"""Every property of a group has planted mutants that its test finds.

A mutant is the model's own source with one safeguard taken away. A property that stays green under
its mutant holds nothing.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from outlast.localcloud.compute.fleet import creation, fleet, health, inventory, manager, model, vms
from outlast.localcloud.compute.fleet.model import ModelError, Restless
from tests.localcloud.compute.fleet import test_properties as properties

# Generation alone: what is found need not be made small.
SEARCH = settings(
    max_examples=500,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


SETTINGS = "_hypothesis_internal_use_settings"
"""Where a test of hypothesis has its settings."""


def anything() -> None:
    """The state machine."""
    run_state_machine_as_test(properties.Anything, settings=SEARCH)


ROLLING = properties.test_rolling_update_keeps_to_its_limits_at_every_moment
HEALING = properties.test_a_vm_that_is_never_healthy_is_healed_only_after_its_initial_delay
NAMING = properties.test_a_vms_name_is_not_given_to_another_vm
SPREADING = properties.test_a_regional_group_spreads_by_its_shape
LIMITING = properties.test_a_vm_ends_at_its_limit_counted_from_its_start
MOVING = properties.test_a_repaired_vm_changes_its_zone_only_if_allowed_and_needed


@dataclass(frozen=True)
class Mutant:
    """A change of one text, there once, in the source of a function."""

    breaks: str
    owner: Any
    function: str
    old: str
    new: str
    check: Callable[[], object] = anything

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The function as the mutant has it."""
        original = inspect.getattr_static(self.owner, self.function)
        function: Any = original.fget if isinstance(original, property) else original
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.function} has changed: {self.old}"
        made: dict[str, Any] = {}
        exec(source.replace(self.old, self.new), vars(sys.modules[function.__module__]), made)
        monkeypatch.setattr(self.owner, self.function, made[self.function])


MUTANTS = (
    Mutant(
        "a roll has no more VMs than target and surge",
        manager.Manager,
        "_balance",
        "not group.outgoing or group.staying + group.outgoing < most",
        "True",
        ROLLING,
    ),
    Mutant(
        "a group has no more members than target and surge",
        manager.Manager,
        "_balance",
        "surge = 0\n",
        "surge = 1\n",
    ),
    Mutant(
        "members that are too many go",
        manager.Manager,
        "_balance",
        "for member in self._victims(group, group.staying - group.target_size - surge):",
        "for member in ():",
    ),
    Mutant(
        "a new member's name is not a VM's",
        creation.Creation,
        "new_name",
        "name in group.members or any(",
        "name in group.members or False and any(",
        NAMING,
    ),
    Mutant(
        "an old VM has gone before its successor comes",
        manager.Manager,
        "_advance",
        "if instance.live:\n            self._discard(instance)",
        "if False:\n            self._discard(instance)",
    ),
    Mutant(
        "recreateInstances recreates",
        manager.Manager,
        "_advance",
        "elif instance and member.replace:",
        "elif instance and member.replace and not instance.live:",
    ),
    Mutant(
        "size 0 stays 0",
        fleet.Fleet,
        "resize",
        "group.target_size = size",
        "group.target_size = max(1, size)",
    ),
    Mutant(
        "a VM is left alone in its initial delay",
        health.HealthWatch,
        "failed",
        "if member.verify_until is not None and now < member.verify_until:",
        "if False:",
        HEALING,
    ),
    Mutant(
        "a VM that is not well is healed after its initial delay",
        health.HealthWatch,
        "failed",
        "return member.health == UNHEALTHY",
        "return False",
        HEALING,
    ),
    Mutant(
        "a failed health check does what its own policy says",
        manager.Manager,
        "_advance",
        'if asked == "DEFAULT_ACTION" else asked',
        "",
        HEALING,
    ),
    Mutant(
        "a roll keeps to maxUnavailable",
        manager.Manager,
        "_roll",
        "if budget <= 0:",
        "if False:",
        ROLLING,
    ),
    Mutant(
        "a percentage of the target is rounded, not taken as a number",
        model,
        "calculated",
        '(target_size * int(size["percent"]) + 50) // 100',
        'int(size["percent"])',
        ROLLING,
    ),
    Mutant(
        "a roll keeps names where they are to be kept",
        manager.Manager,
        "update",
        "if _substitutes(group):",
        "if True:",
        ROLLING,
    ),
    Mutant(
        "a repair changes the zone if it may",
        creation,
        "may_move",
        'return on_repair.get("allowChangingZone") == "YES"',
        "return False",
        MOVING,
    ),
    Mutant(
        "a repair keeps the zone if it may not change it",
        creation,
        "may_move",
        'return on_repair.get("allowChangingZone") == "YES"',
        "return True",
        MOVING,
    ),
    Mutant(
        "EVEN is even",
        creation,
        "choose_zone",
        'if group.shape == "EVEN":\n        return by_count[0]',
        'if group.shape == "EVEN":\n        return zones[0]',
        SPREADING,
    ),
    Mutant(
        "EVEN waits for room",
        creation,
        "choose_zone",
        'if group.shape == "EVEN":\n        return by_count[0]',
        'if group.shape == "EVEN":\n'
        "        return next((zone for zone in by_count if has_room(zone, 1)), by_count[0])",
        SPREADING,
    ),
    Mutant(
        "BALANCED is as even as the room allows",
        creation,
        "choose_zone",
        'by_count if group.shape == "BALANCED" else zones',
        "zones",
        SPREADING,
    ),
    Mutant(
        "ANY takes what room there is",
        creation,
        "choose_zone",
        "next((zone for zone in order if has_room(zone, 1)), order[0])",
        'next((z for z in order if group.shape == "BALANCED" and has_room(z, 1)), order[0])',
        SPREADING,
    ),
    Mutant(
        "ANY_SINGLE_ZONE stays in one zone",
        creation,
        "choose_zone",
        "if settled:",
        "if False:",
        SPREADING,
    ),
    Mutant(
        "a canary has no more VMs than it asks for",
        model.Group,
        "wanted",
        "return [rest if size is None else size for size in sized]",
        "return [0 if size is None else self.target_size for size in sized]",
        ROLLING,
    ),
    Mutant(
        "a VM that comes is of the version that has too few",
        model.Group,
        "due",
        "return lacking[0] if lacking else own or self.main",
        "return own or self.main",
        ROLLING,
    ),
    Mutant(
        "of a version that has too many some get the other",
        model.Group,
        "compare",
        "names if len(self.versions) == 1 else names[:wanted]",
        "names",
        ROLLING,
    ),
    Mutant(
        "deleteInstances lowers the target",
        fleet.Fleet,
        "delete_members",
        "group.target_size -= 1",
        "pass",
    ),
    Mutant(
        "deleteInstances of a member that leaves lowers nothing",
        fleet.Fleet,
        "delete_members",
        "if not member.leaving:",
        "if True:",
    ),
    Mutant(
        "abandonInstances lowers the target",
        fleet.Fleet,
        "abandon_members",
        "group.target_size -= 1",
        "pass",
    ),
    Mutant(
        "only a call or a limit lowers the target",
        manager.Manager,
        "_repair",
        'action = "DELETE" if lowers else',
        'action = "DELETE" if not lowers else',
        LIMITING,
    ),
    Mutant(
        "VMs end at their limit",
        vms.Vms,
        "look_at",
        "instance.deadline is not None and instance.deadline <= now",
        "instance.deadline is None",
        LIMITING,
    ),
    Mutant(
        "the limit of a VM begins when it runs",
        vms.Vms,
        "running",
        "instance.started + limit_sec",
        "instance.started + 2 * limit_sec",
        LIMITING,
    ),
    Mutant(
        "a VM that has ended is recreated",
        manager.Manager,
        "_repair",
        "self._heal(group, member, action",
        "(lambda *args: None)(group, member, action",
    ),
    Mutant(
        "what is changed is kept",
        inventory.Inventory,
        "keep_member",
        'self.keep("members", "/".join((*group.key, member.name)))',
        "return",
    ),
    Mutant(
        "a VM that has stopped uses no room",
        vms.Vms,
        "end",
        "self._inventory.capacity.release(instance)",
        "pass",
    ),
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.breaks.replace(" ", "-"))
def test_a_mutant_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    if mutant.check is not anything:
        own = getattr(mutant.check, SETTINGS)
        monkeypatch.setattr(mutant.check, SETTINGS, settings(own, phases=[Phase.generate]))
    with pytest.raises((AssertionError, LookupError, ModelError, Restless, ExceptionGroup)):
        mutant.check()
