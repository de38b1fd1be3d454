"""What an experiment and a foundation both declare: bucket, network, role, code and image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import pulumi

from outlast import settings
from outlast.components.bundle_object import BundleObject
from outlast.components.checkpoint_bucket import CheckpointBucket
from outlast.components.image_family import ImageFamily
from outlast.components.leave_role import LeaveRole
from outlast.components.network import Network
from outlast.components.vm_identity import VmIdentity
from outlast.settings import Code, FoundBucket, Settings, SettingsError
from outlast.spec import labels


class _Process:
    """Stands for the one program that a process serves."""


_PROCESS = _Process()
one_program_a_process = False
"""Whether all components of this process belong to one program, as in a component package.
Otherwise each run of a program has its own resource monitor.
"""
_declared: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""What each running program has declared. One process can run several: inline programs, tests."""


def refuse_second(kind: str, name: str) -> None:
    """Raises SettingsError if this program has declared an experiment or a foundation already: the
    stack's run, its group and its outputs have one owner."""
    program = _PROCESS if one_program_a_process else pulumi.runtime.settings.get_monitor()
    if first := _declared.get(program):
        raise SettingsError(
            f"{kind} {name!r}: {first} is declared already, and a stack has one experiment or one"
            " foundation; make another stack for it (pulumi stack init)"
        )
    _declared[program] = f"{kind} {name!r}"


class StackComponent(pulumi.ComponentResource):
    """A component that makes up a whole stack: its `outputs` are the stack's. It is created from
    arguments or from settings.
    """

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions | None) -> None:
        super().__init__(kind, name, {}, opts)
        # Not in the class: the package's schema would list it as an output.
        self.outputs: dict[str, Any] = {}

    @classmethod
    def from_config(cls, name: str, opts: pulumi.ResourceOptions | None = None) -> Self:
        """What the stack's `outlast:` settings describe. Raises SettingsError."""
        return cls.of(name, settings.load(), opts)

    @classmethod
    def of(cls, name: str, config: Settings, opts: pulumi.ResourceOptions | None = None) -> Self:
        """Creates the component from loaded settings. Raises SettingsError."""
        return cls(name, cast(Any, config), opts)

    def export(self) -> None:
        """Exports its outputs as the stack's, which experiments and the `outlast` command read."""
        for key, value in self.outputs.items():
            pulumi.export(key, value)


@dataclass
class Shared:
    """What may outlive an experiment, if this stack declares it."""

    config: Settings
    opts: pulumi.ResourceOptions
    """The options of every component: the parent."""
    bucket: pulumi.Input[str]
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    leave_role: pulumi.Input[str]
    resources: list[pulumi.Resource] = field(default_factory=list)
    """What must exist before a VM boots."""

    def identity(self) -> VmIdentity:
        """The identity of this stack's VMs."""
        config = self.config
        return VmIdentity("identity", {
            "project": config.project, "experiment": config.experiment, "bucket": self.bucket,
            "written": config.written, "leave_role": self.leave_role, "reads": config.reads,
            "secrets": config.secret_owners, "bound": bool(config.shared_account),
            "account": config.shared_account or config.service_account,
            "payer": config.data_payer, "mark": labels.mark(config.labels),
            "sweep": config.sweep_name,
        }, self.opts)  # fmt: skip

    def bundle(self, code: Code) -> BundleObject:
        """The code in the bucket."""
        return BundleObject(
            "bundle", {"bucket": self.bucket, "object": code.object, "path": code.path}, self.opts
        )

    def image(
        self, code: Code, *, by: VmIdentity | None, bundle: BundleObject | None
    ) -> ImageFamily:
        """The image of this stack's recipe. `by`: the builder's identity, if it reads the
        bucket.
        """
        config, baked = self.config, settings.baked(self.config, code)
        where = pulumi.Output.concat("gs://", self.bucket, "/", bundle.object) if bundle else ""
        return ImageFamily("image", {
            "recipe": baked.state, "hash": baked.hash, "family": baked.recipe.family,
            "project": baked.recipe.project, "users": baked.recipe.share_with,
            "labels": config.labels, "timeouts": config.timeouts,
            "service_account": by.email if by else "",
            "bundle": where, "bundle_sha256": code.sha256, "payer": config.data_payer,
            "network": self.network, "subnetwork": self.subnetwork,
            "external_ip": config.network_rules.external_ip,
            "after": [
                *self.resources, *(by.bindings if by else []), *([bundle] if bundle else [])],
        }, self.opts)  # fmt: skip


def declare(config: Settings, found: FoundBucket, opts: pulumi.ResourceOptions) -> Shared:
    """The bucket, the network and the role, as far as the stack declares them itself."""
    shared = Shared(
        config,
        opts,
        config.bucket,
        config.network_rules.network,
        config.network_rules.subnetwork,
        config.leave_role,
    )
    if config.bucket_mode == "managed":
        bucket = CheckpointBucket("bucket", {
            "bucket": config.bucket, "project": config.project, "location": config.region,
            "adopt": found.adopt, "soft_delete_days": config.soft_delete_days,
            "versioning": config.versioning, "leave": found.leave, "kms_key": config.kms_key,
        }, opts)  # fmt: skip
        shared.bucket = bucket.bucket
        shared.resources.append(bucket)
    if config.network_rules.isolated:
        network = Network("network", {
            "project": config.project, "region": config.region, "nat": config.network_rules.nat,
            "ip_range": config.ip_range, "mark": labels.mark(config.labels),
        }, opts)  # fmt: skip
        shared.network, shared.subnetwork = network.network, network.subnetwork
        shared.resources.append(network)
    if not config.leave_role:
        role = LeaveRole("leave", {
            "project": config.project, "stack": config.experiment, "week": settings.week(),
            "mark": labels.mark(config.labels),
        }, opts)  # fmt: skip
        shared.leave_role = role.role
        shared.resources.append(role)
    return shared
