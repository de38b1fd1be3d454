"""The instance template of a run's VMs."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

import pulumi
from pulumi_gcp import compute

from outlast.base.codec import parse_time
from outlast.spec import labels

COMPONENT = "vm-template"

NOTICE_SEC = 120
"""The only notice that the platform offers; the alternative is none (Compute's release notes of 30
September 2026)."""


LOCAL_SSD_GB = 375
"""Size of each local SSD, fixed by the platform (page "About Local SSD disks", last updated 14
April 2026)."""

HOST_ERROR_SEC = 90
"""The shortest time after which the platform gives up a silent host (`hostErrorTimeoutSeconds` of
Scheduling, discovery document compute v1, revision 20261106)."""

SHORT_RUN_SEC = 60
"""Limit of a VM whose deadline is over; the platform takes 30 s to 120 days (page "Limit the run
time of a VM", read in November 2026).
"""


SHIELDED: compute.InstanceTemplateShieldedInstanceConfigArgsDict = {
    "enable_secure_boot": True,
    "enable_vtpm": True,
    "enable_integrity_monitoring": True,
}


class VmTemplateArgs(TypedDict):
    """Inputs of VmTemplate."""

    project: pulumi.Input[str]
    machine_type: pulumi.Input[str]
    """Bare name: with a URL, the platform answers with an internal error (`machineType` of
    InstanceProperties, discovery document compute v1, revision 20261106)."""
    image: pulumi.Input[str]
    accelerator: str
    """GPU to attach; empty for none, or if the machine type includes GPUs."""
    accelerator_count: int
    local_ssd: int
    """Local SSDs to attach."""
    min_cpu_platform: str
    """Empty for any."""
    disk_gb: pulumi.Input[int]
    disk_type: pulumi.Input[str]
    network: pulumi.Input[str]
    """Name or address."""
    subnetwork: pulumi.Input[str]
    """Empty for the network's own in the region."""
    external_ip: bool
    """Whether VMs have external addresses. Without one, and without a NAT, a VM reaches only
    Google's APIs, and these only from a subnetwork with Private Google Access. Plain bool: it
    decides the shape of the template.
    """
    tags: Sequence[str]
    """Network tags, for firewall rules."""
    service_account: pulumi.Input[str]
    metadata: Mapping[str, pulumi.Input[str]]
    labels: Mapping[str, str]
    """The stack's labels."""
    deadline: pulumi.Input[str]
    """Time at which every VM of this template is deleted."""
    now: str
    """The current time: the platform refuses a template whose deadline is over."""
    spot: bool
    """Plain bool: it decides the shape of the template."""
    restarts: bool
    """Whether a standard VM stops and boots again when its host is maintained, as one with a GPU
    must; otherwise it is moved. Plain bool: it decides the shape of the template.
    """
    shielded: NotRequired[bool]
    """Whether VMs have Secure Boot, a virtual TPM and integrity monitoring."""
    confidential: NotRequired[str]
    """Technology that encrypts the memory; empty for none."""
    kms_key: NotRequired[str]
    """Key that encrypts the boot disk; empty for Google's."""
    resource_tags: NotRequired[Mapping[str, str]]
    """Resource Manager tags, by key."""
    notice: bool
    """Whether to ask for the notice. Plain bool: it decides the shape of the template."""


class VmTemplate(pulumi.ComponentResource):
    """Instance template for VMs that run one trainer.

    Every change makes a new template. The platform names it, because a fixed name could be replaced
    only after its group has released it.
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
        if args["external_ip"]:
            # Reviewers ask for the reason; the stack's own labels can give a better one.
            merged = {"external-ip": "no-nat", **merged}
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
                    **_encrypted(args),
                },
                *[_local_ssd() for _ in range(args["local_ssd"])],
            ],
            guest_accelerators=_accelerators(args),
            min_cpu_platform=args["min_cpu_platform"] or None,
            network_interfaces=[_interface(args)],
            tags=list(args["tags"]),
            scheduling=_scheduling(args),
            service_account={
                "email": args["service_account"],
                # This scope leaves every decision to IAM; narrower scopes would refuse silently.
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            },
            metadata=args["metadata"],
            labels=merged,
            shielded_instance_config=SHIELDED if args.get("shielded") else None,
            confidential_instance_config=_confidential(args),
            resource_manager_tags=args.get("resource_tags") or None,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.self_link_unique = template.self_link_unique
        self.template = template.name
        self.register_outputs(
            {"self_link_unique": self.self_link_unique, "template": self.template}
        )


def _interface(args: VmTemplateArgs) -> compute.InstanceTemplateNetworkInterfaceArgsDict:
    interface: compute.InstanceTemplateNetworkInterfaceArgsDict = {"network": args["network"]}
    if args["subnetwork"]:
        interface["subnetwork"] = args["subnetwork"]
    if args["external_ip"]:
        interface["access_configs"] = [{}]
    return interface


def _encrypted(args: VmTemplateArgs) -> compute.InstanceTemplateDiskArgsDict:
    if key := args.get("kms_key"):
        return {"disk_encryption_key": {"kms_key_self_link": key}}
    return {}


def _confidential(
    args: VmTemplateArgs,
) -> compute.InstanceTemplateConfidentialInstanceConfigArgsDict | None:
    if kind := args.get("confidential"):
        return {"confidential_instance_type": kind, "enable_confidential_compute": True}
    return None


def _accelerators(
    args: VmTemplateArgs,
) -> list[compute.InstanceTemplateGuestAcceleratorArgsDict] | None:
    if not args["accelerator"]:
        return None
    return [{"type": args["accelerator"], "count": args["accelerator_count"]}]


def _local_ssd() -> compute.InstanceTemplateDiskArgsDict:
    return {
        "type": "SCRATCH",
        "disk_type": "local-ssd",
        "disk_size_gb": LOCAL_SSD_GB,
        "interface": "NVME",
        "auto_delete": True,
        "boot": False,
    }


def _scheduling(args: VmTemplateArgs) -> compute.InstanceTemplateSchedulingArgsDict:
    """The scheduling options, which only work together.

    A deadline that is over becomes a short limit: the group then has size 0, and a VM that someone
    adds is deleted soon.

    Spot is declared twice (`preemptible` and the model) and forbids automatic restart. The
    termination action is DELETE: the group recreates a preempted VM either way, a stopped one would
    bill its disk meanwhile, and a group allows no other action with a time limit. A VM with a GPU
    cannot be moved, and its dead host would be noticed late. Sources: Scheduling in the discovery
    document compute v1, revision 20261106; the arguments' descriptions in pulumi_gcp 10.2.0; page
    "GPU host maintenance", as of 2026.
    """
    now = parse_time(args["now"])
    deadline = pulumi.Output.from_input(args["deadline"])
    ends = deadline.apply(lambda text: text if parse_time(text) > now else None)
    lasts: pulumi.Output[Any] = ends.apply(
        lambda text: None if text else {"seconds": SHORT_RUN_SEC}
    )
    if not args["spot"]:
        standard: compute.InstanceTemplateSchedulingArgsDict = {
            "provisioning_model": "STANDARD",
            "preemptible": False,
            "automatic_restart": True,
            "on_host_maintenance": "TERMINATE" if args["restarts"] else "MIGRATE",
            "instance_termination_action": "DELETE",
            "termination_time": cast(Any, ends),
            "max_run_duration": lasts,
        }
        if args["restarts"]:
            standard["host_error_timeout_seconds"] = HOST_ERROR_SEC
        return standard
    spot: compute.InstanceTemplateSchedulingArgsDict = {
        "provisioning_model": "SPOT",
        "preemptible": True,
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE",
        "instance_termination_action": "DELETE",
        "termination_time": cast(Any, ends),
        "max_run_duration": lasts,
    }
    if args["notice"]:
        spot["preemption_notice_duration"] = {"seconds": NOTICE_SEC}
    return spot
