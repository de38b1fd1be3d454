"""The managed instance group: the engine that makes a lost VM anew."""

from collections.abc import Sequence
from typing import TypedDict

import pulumi
from pulumi_gcp import compute

VERSION = "trainer"


class HealingGroupArgs(TypedDict):
    """Inputs of HealingGroup."""

    project: pulumi.Input[str]
    zone: pulumi.Input[str]
    experiment: str
    run: str
    resume: int
    place: pulumi.Input[int]
    """How often the run has changed its zone; a change makes a new group."""
    size: pulumi.Input[int]
    """VMs at the group's creation: 1, or 0 for a run that has nothing left to do."""
    template: pulumi.Input[str]
    """The template's `self_link_unique`."""
    after: Sequence[pulumi.Resource]
    """What must be there before the first VM boots: its permissions and its code."""


class HealingGroup(pulumi.ComponentResource):
    """A zonal group of one VM that works on one run.

    A new run, resume or place is a new group, the old one deleted first: two VMs never work side by
    side. Any other change only gives it another template, which a live VM meets at its next
    recreation (OPPORTUNISTIC with `force_update_on_repair`).
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
        group = compute.InstanceGroupManager(
            f"{name}-group",
            name=group_name,
            base_instance_name=group_name,
            project=args["project"],
            zone=args["zone"],
            description=_description(args),
            target_size=args["size"],
            versions=[{"name": VERSION, "instance_template": args["template"]}],
            update_policy={
                "type": "OPPORTUNISTIC",
                "minimal_action": "REPLACE",
                # Surge 0, which RECREATE demands: one trainer is never there twice.
                "replacement_method": "RECREATE",
                "max_surge_fixed": 0,
                "max_unavailable_fixed": 1,
            },
            instance_lifecycle_policy={
                "default_action_on_failure": "REPAIR",
                "force_update_on_repair": "YES",
            },
            # Without Spot capacity waiting would only time out; the group goes on trying.
            wait_for_instances=False,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=list(args["after"]),
                delete_before_replace=True,
                replace_on_changes=["name", "baseInstanceName", "zone", "description"],
                # A VM that is done takes itself out of the group; nobody puts it back.
                ignore_changes=["targetSize"],
            ),
        )
        self.group = group.name
        self.register_outputs({"group": self.group})


def physical_name(experiment: str, run: str, resume: int) -> str:
    """The group's name, and the start of its VMs' names, which may have 58 characters."""
    return f"{experiment}-{run}" + (f"-r{resume}" if resume else "")


def _description(args: HealingGroupArgs) -> pulumi.Output[str]:
    """Says which place it is: the one property that changes when only the place does."""
    return pulumi.Output.concat(
        f"Outlast: run {args['run']} of {args['experiment']}, resume {args['resume']}, place ",
        pulumi.Output.from_input(args["place"]).apply(lambda place: str(int(place))),
    )
