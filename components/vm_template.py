"""The instance template: what every VM of a run is."""

from collections.abc import Mapping
from typing import TypedDict

import pulumi
from pulumi_gcp import compute

from components import labels

COMPONENT = "vm-template"

NOTICE_SEC = 120
"""The one notice that the platform gives; the other choice is none."""


class VmTemplateArgs(TypedDict):
    """Inputs of VmTemplate."""

    project: pulumi.Input[str]
    machine_type: pulumi.Input[str]
    """Bare name: a URL is an internal error of the platform."""
    image: pulumi.Input[str]
    disk_gb: pulumi.Input[int]
    disk_type: pulumi.Input[str]
    service_account: pulumi.Input[str]
    metadata: Mapping[str, pulumi.Input[str]]
    labels: Mapping[str, str]
    """The stack's labels."""
    deadline: pulumi.Input[str]
    """No VM of this template lives past it."""
    spot: bool
    """Plain bool: it decides the shape of the template."""
    notice: bool
    """Whether to ask for the notice. Plain bool: it decides the shape of the template."""


class VmTemplate(pulumi.ComponentResource):
    """Instance template for VMs that run one trainer.

    Every change makes a new template; the platform names it, since a fixed name could only be
    replaced after its group let go of it.
    """

    self_link_unique: pulumi.Output[str]
    """Template URL that changes with every replacement; give this to the group."""

    template: pulumi.Output[str]
    """The template's name."""

    def __init__(
        self,
        name: str,
        args: VmTemplateArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:VmTemplate", name, {}, opts)
        merged = labels.merge(args["labels"], COMPONENT)
        template = compute.InstanceTemplate(
            f"{name}-template",
            project=args["project"],
            machine_type=args["machine_type"],
            disks=[
                {
                    "boot": True,
                    "auto_delete": True,
                    "source_image": args["image"],
                    "disk_size_gb": args["disk_gb"],
                    "disk_type": args["disk_type"],
                    "labels": merged,
                }
            ],
            # An address of its own: without one, and without a NAT, a VM reaches no bucket.
            network_interfaces=[{"network": "default", "access_configs": [{}]}],
            scheduling=_scheduling(args),
            service_account={
                "email": args["service_account"],
                # The scope that leaves all to IAM; narrower scopes would refuse silently.
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            },
            metadata=args["metadata"],
            labels=merged,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.self_link_unique = template.self_link_unique
        self.template = template.name
        self.register_outputs(
            {"self_link_unique": self.self_link_unique, "template": self.template}
        )


def _scheduling(args: VmTemplateArgs) -> compute.InstanceTemplateSchedulingArgsDict:
    """The scheduling facts that only work together.

    Spot is said twice (`preemptible` and the model) and forbids automatic restart. The termination
    action is DELETE: the group makes a preempted VM anew either way, a stopped one would bill its
    disk meanwhile, and it is the only action that a group allows for a time limit.
    """
    if not args["spot"]:
        return {
            "provisioning_model": "STANDARD",
            "preemptible": False,
            "automatic_restart": True,
            "on_host_maintenance": "MIGRATE",
            "instance_termination_action": "DELETE",
            "termination_time": args["deadline"],
        }
    spot: compute.InstanceTemplateSchedulingArgsDict = {
        "provisioning_model": "SPOT",
        "preemptible": True,
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE",
        "instance_termination_action": "DELETE",
        "termination_time": args["deadline"],
    }
    if args["notice"]:
        spot["preemption_notice_duration"] = {"seconds": NOTICE_SEC}
    return spot
