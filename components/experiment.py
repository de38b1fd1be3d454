"""One experiment: one run on one VM, with everything that it needs in the cloud."""

from typing import Any

import pulumi

from outlast import settings
from outlast.components import metadata as instance_metadata
from outlast.components import shared
from outlast.components.bundle_object import BundleObject
from outlast.components.foundation_use import FoundationUse
from outlast.components.healing_group import HealingGroup
from outlast.components.health import HealthCheck
from outlast.components.shared import Shared, StackComponent
from outlast.components.vm_access import VmAccess
from outlast.components.vm_identity import VmIdentity
from outlast.components.vm_template import VmTemplate
from outlast.dynamic.run_pin import RunPin
from outlast.settings import Code, Settings
from outlast.settings.experiment_args import ExperimentArgs
from outlast.spec import labels, startup_script


class Experiment(StackComponent):
    """One run on one VM at a time: the bucket, the network, the VM's identity, the code, the image,
    the instance template and the group that replaces a lost VM.

    A stack has one experiment, because the run belongs to the stack. `export` gives the stack the
    outputs that the `outlast` command reads.
    """

    bucket: pulumi.Output[str]
    """The bucket's name."""
    experiment: pulumi.Output[str]
    """The experiment's name."""
    run: pulumi.Output[str]
    """The run's id: a digest of the code, the arguments and the data."""
    run_path: pulumi.Output[str]
    """Where the run is in the bucket: `experiments/EXPERIMENT/RUN`."""
    group: pulumi.Output[str]
    """The managed instance group's name."""
    service_account: pulumi.Output[str]
    """The address of the service account that the VM runs as."""
    image: pulumi.Output[str]
    """The image that the VM boots from."""

    def __init__(
        self,
        name: str,
        args: ExperimentArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`args`: settings by their Python names (`machine_type`), as plain values. A setting that
        is left out has its default, whatever the stack's `outlast:` settings say. Project and zone
        are the stack's `gcp:` settings. Raises SettingsError, also for a second experiment in one
        stack.
        """
        given: Any = args  # `of` gives Settings
        config = given if isinstance(given, Settings) else settings.of_args(args)
        shared.refuse_second("Experiment", name)
        found = settings.look_up(config)
        code = settings.bundle(config)
        super().__init__("outlast:index:Experiment", name, opts)
        base = shared.declare(config, found, pulumi.ResourceOptions(parent=self))
        self.outputs = {**_declare(base, code), "bucketLocation": found.location}
        for key in ("bucket", "experiment", "run", "group", "image"):
            setattr(self, key, pulumi.Output.from_input(self.outputs[key]))
        self.run_path = pulumi.Output.from_input(self.outputs["runPath"])
        self.service_account = pulumi.Output.from_input(self.outputs["serviceAccount"])
        self.register_outputs(
            {
                "bucket": self.bucket,
                "experiment": self.experiment,
                "run": self.run,
                "run_path": self.run_path,
                "group": self.group,
                "service_account": self.service_account,
                "image": self.image,
            }
        )


def _declare(base: Shared, code: Code) -> dict[str, Any]:
    """The outputs, by the names that the stack exports."""
    config, opts = base.config, base.opts
    if config.foundation:
        FoundationUse("use", {
            "bucket": base.bucket, "object": config.foundation_note, "owner": config.owner,
        }, opts)  # fmt: skip
    if config.network_rules.tagged:
        VmAccess("access", {
            "project": config.project, "network": base.network, "tag": config.tags[0],
            "health_port": config.health_port, "ssh": config.network_rules.ssh,
            "mark": labels.mark(config.labels)}, opts)  # fmt: skip
    identity = base.identity()
    bundle = None
    if config.delivery != "image" or (config.recipe and config.recipe.trainers):
        bundle = base.bundle(code)
    pin = _pin(base, _image(base, code, identity, bundle))
    metadata = _metadata(base, code, pin, bundle.object if bundle else code.object)
    template = _template(base, pin, identity, metadata)
    group = _group(base, pin, template, [*identity.bindings, *([bundle] if bundle else [])])
    return {
        **settings.outputs(config, code),
        "bucket": base.bucket,
        "network": base.network,
        "group": group.group,
        "template": template.template,
        "serviceAccount": identity.email,
        "placement": pin.placement,
        "deadline": pin.deadline,
        "image": pin.bootImage,
    }


def _image(
    base: Shared, code: Code, identity: VmIdentity, bundle: BundleObject | None
) -> pulumi.Input[str]:
    """The image that the VM boots from."""
    recipe = base.config.recipe
    if recipe is None:
        return base.config.image
    by = identity if recipe.needs_token else None
    return base.image(code, by=by, bundle=bundle if recipe.trainers else None).image


def _pin(base: Shared, image: pulumi.Input[str]) -> RunPin:
    config = base.config
    return RunPin("run", {
        "project": config.project, "owner": config.owner, "bucket": config.bucket,
        "prefix": config.prefix, "run": config.run, "resume": config.resume,
        "zone": config.location, "image": image, "boot": config.boot,
        "maxRunMinutes": config.max_run_minutes, "content": config.content,
        "named": config.named, "mutable": config.mutable, "onNewRun": config.on_new_run,
    }, base.opts)  # fmt: skip


def _metadata(
    base: Shared, code: Code, pin: RunPin, bundle: pulumi.Input[str]
) -> dict[str, pulumi.Input[str]]:
    config = base.config
    late = {
        "outlast-bucket": base.bucket,
        "outlast-bundle": bundle,
        "outlast-placement": pin.placement.apply(lambda number: str(int(number))),
        "outlast-deadline": pin.deadline,
    }
    return instance_metadata.compose(
        config.run_spec(code.sha256),
        script=startup_script.read("boot.sh"),
        late=late,
        health=config.health_check,
        oslogin=config.network_rules.ssh,
    )


def _template(
    base: Shared, pin: RunPin, identity: VmIdentity, metadata: dict[str, pulumi.Input[str]]
) -> VmTemplate:
    config = base.config
    return VmTemplate("trainer", {
        "project": config.project, "machine_type": config.machine_type, "image": pin.bootImage,
        "accelerator": config.accelerator, "accelerator_count": config.accelerator_count,
        "local_ssd": config.local_ssd, "min_cpu_platform": config.min_cpu_platform,
        "disk_gb": config.boot_disk_gb, "disk_type": config.boot_disk_type, "spot": config.spot,
        "restarts": config.restarts, "notice": config.notice_sec > 0,
        "service_account": identity.email, "labels": config.labels,
        "network": base.network, "subnetwork": base.subnetwork,
        "external_ip": config.network_rules.external_ip, "tags": config.tags,
        "shielded": config.shielded_vm, "confidential": config.confidential_vm,
        "kms_key": config.kms_key, "resource_tags": config.resource_tags,
        "deadline": pin.deadline, "now": settings.now(), "metadata": metadata,
    }, base.opts)  # fmt: skip


def _group(
    base: Shared, pin: RunPin, template: VmTemplate, after: list[pulumi.Resource]
) -> HealingGroup:
    config, health = base.config, None
    if config.network_rules.checked:
        health = HealthCheck("health", {
            "project": config.project, "port": config.health_port,
            "mark": labels.mark(config.labels)}, base.opts)  # fmt: skip
    return HealingGroup("trainer", {
        "project": config.project, "zone": config.zone, "region": config.region,
        "zones": config.zones, "machine_types": (config.machine_type, *config.machine_types),
        "experiment": config.experiment, "run": config.run, "resume": config.resume,
        "placement": pin.placement, "size": pin.size, "template": template.self_link_unique,
        "update": config.update, "health": health.self_link if health else None,
        "repairs": config.network_rules.health == "repair", "after": [*after, *base.resources],
    }, base.opts)  # fmt: skip
