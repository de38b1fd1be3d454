"""The managed instance group: it recreates a lost VM."""

from collections.abc import Sequence
from typing import TypedDict

import pulumi
from pulumi_gcp import compute

from outlast.base.exits import BOOT_SEC

VERSION = "trainer"

HEALTH_DELAY_SEC = BOOT_SEC
"""Seconds that a VM may take to start its health process; its first good answer ends the delay."""

ZONES_MOST = 4
"""No region has more (page "Available regions and zones", early 2026)."""


class _UpdatePolicy(TypedDict):
    """What zonal and regional groups have in common."""

    type: pulumi.Input[str]
    minimal_action: pulumi.Input[str]
    replacement_method: pulumi.Input[str]
    max_surge_fixed: int


class _LifecyclePolicy(TypedDict, total=False):
    default_action_on_failure: pulumi.Input[str]
    force_update_on_repair: pulumi.Input[str]
    on_failed_health_check: pulumi.Input[str]


class HealingGroupArgs(TypedDict):
    """Inputs of HealingGroup."""

    project: pulumi.Input[str]
    zone: str
    """Empty for a regional group. Plain str: it decides the kind of group."""
    region: str
    zones: Sequence[str]
    """Zones of a regional group; empty for all zones of the region."""
    machine_types: Sequence[str]
    """Machine types by rank; more than one only in a regional group."""
    experiment: str
    run: str
    resume: int
    placement: pulumi.Input[int]
    """How often the run has changed its zones; a change makes a new group."""
    size: pulumi.Input[int]
    """VMs at the group's creation: 1, or 0 for a run that has nothing left to do."""
    template: pulumi.Input[str]
    """The template's `self_link_unique`."""
    health: pulumi.Input[str] | None
    """The health check's address; None for no health checks. Whether it is set decides the shape of
    the group.
    """
    repairs: bool
    """Whether a VM that is UNHEALTHY is recreated, or only shown."""
    update: str
    """`opportunistic`, or `now`: a new template replaces the running VM at once."""
    after: Sequence[pulumi.Resource]
    """What must exist before the first VM boots: its permissions and its code."""


class HealingGroup(pulumi.ComponentResource):
    """A group of one VM, in a zone or in zones of a region, that works on one run.

    A new run, resume or placement makes a new group, and the old group is deleted first: two VMs
    never work side by side. Any other change only makes a new template, which applies when the VM
    is next recreated (OPPORTUNISTIC with `force_update_on_repair`), or at once if `update` says so.
    """

    group: pulumi.Output[str]
    """The group's name."""

    def __init__(
        self,
        name: str,
        args: HealingGroupArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:HealingGroup", name, {}, opts)
        group_name = physical_name(args["experiment"], args["run"], args["resume"])
        policy: _UpdatePolicy = {
            "type": "PROACTIVE" if args["update"] == "now" else "OPPORTUNISTIC",
            "minimal_action": "REPLACE",
            # RECREATE requires surge 0: a trainer never runs twice.
            "replacement_method": "RECREATE",
            "max_surge_fixed": 0,
        }
        lifecycle: _LifecyclePolicy = {
            "default_action_on_failure": "REPAIR",
            "force_update_on_repair": "YES",
            **_on_failed_check(args),
        }
        place = ["zone"] if args["zone"] else ["region", "distributionPolicyZones"]
        options = pulumi.ResourceOptions(
            parent=self,
            depends_on=list(args["after"]),
            delete_before_replace=True,
            replace_on_changes=["name", "baseInstanceName", *place, "description"],
            # A finished VM takes itself out of the group, and `up` must not put it back.
            ignore_changes=["targetSize"],
        )
        if args["zone"]:
            group = compute.InstanceGroupManager(
                f"{name}-group",
                name=group_name,
                base_instance_name=group_name,
                project=args["project"],
                zone=args["zone"],
                description=_description(args),
                target_size=args["size"],
                versions=[{"name": VERSION, "instance_template": args["template"]}],
                update_policy={**policy, "max_unavailable_fixed": 1},
                instance_lifecycle_policy={**lifecycle},
                auto_healing_policies=_healing(args),
                # Without Spot capacity, waiting would only time out; the group keeps trying.
                wait_for_instances=False,
                opts=options,
            )
        else:
            group = compute.RegionInstanceGroupManager(
                f"{name}-group",
                name=group_name,
                base_instance_name=group_name,
                project=args["project"],
                region=args["region"],
                # Any zone with capacity, for the first VM and for every recreated one; a VM that
                # trains is never moved to balance zones.
                distribution_policy_zones=list(args["zones"]) or None,
                distribution_policy_target_shape="ANY",
                description=_description(args),
                target_size=args["size"],
                versions=[{"name": VERSION, "instance_template": args["template"]}],
                instance_flexibility_policy=_choice(args["machine_types"]),
                update_policy={
                    **policy,
                    "instance_redistribution_type": "NONE",
                    # 0, or at least the number of zones.
                    "max_unavailable_fixed": len(args["zones"]) or ZONES_MOST,
                },
                instance_lifecycle_policy={
                    **lifecycle,
                    "on_repair": {"allow_changing_zone": "YES"},
                },
                auto_healing_policies=_healing(args),
                wait_for_instances=False,
                opts=options,
            )
        self.group = group.name
        self.register_outputs({"group": self.group})


def _choice(
    machine_types: Sequence[str],
) -> compute.RegionInstanceGroupManagerInstanceFlexibilityPolicyArgsDict | None:
    """A lower rank is preferred."""
    if len(machine_types) < 2:
        return None
    return {
        "instance_selections": [
            {"name": f"rank-{rank}", "rank": rank, "machine_types": [machine_type]}
            for rank, machine_type in enumerate(machine_types)
        ]
    }


def physical_name(experiment: str, run: str, resume: int) -> str:
    """The group's name, and the start of its VMs' names, which may have 58 characters
    (`baseInstanceName` of InstanceGroupManager, discovery document compute v1, revision 20261106).
    """
    return f"{experiment}-{run}" + (f"-r{resume}" if resume else "")


def _healing(
    args: HealingGroupArgs,
) -> compute.InstanceGroupManagerAutoHealingPoliciesArgsDict | None:
    if args["health"] is None:
        return None
    return {"health_check": args["health"], "initial_delay_sec": HEALTH_DELAY_SEC}


def _on_failed_check(args: HealingGroupArgs) -> "_LifecyclePolicy":
    """What happens to an UNHEALTHY VM; a lost VM is recreated in any case."""
    if args["health"] is None:
        return {}
    return {"on_failed_health_check": "REPAIR" if args["repairs"] else "DO_NOTHING"}


def _description(args: HealingGroupArgs) -> pulumi.Output[str]:
    """Names the placement: the only property that changes when only the placement changes."""
    return pulumi.Output.concat(
        f"Outlast: run {args['run']} of {args['experiment']}, resume {args['resume']}, placement ",
        pulumi.Output.from_input(args["placement"]).apply(lambda n: str(int(n))),
    )
