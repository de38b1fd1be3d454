"""The program: one stack is one experiment, or the foundation of several. Wiring only;
`outlast/settings` reads and checks."""

from typing import Any

import pulumi

from outlast import settings
from outlast.components import haste  # noqa: F401 - first: the imports below are quick with it
from outlast.components import metadata as instance_metadata
from outlast.components.bundle_object import BundleObject
from outlast.components.checkpoint_bucket import CheckpointBucket
from outlast.components.foundation_use import FoundationUse
from outlast.components.healing_group import HealingGroup
from outlast.components.health import HealthCheck
from outlast.components.image_family import ImageFamily
from outlast.components.leave_role import LeaveRole
from outlast.components.network import Network
from outlast.components.vm_access import VmAccess
from outlast.components.vm_identity import VmIdentity
from outlast.components.vm_template import VmTemplate
from outlast.dynamic.foundation_guard import FoundationGuard
from outlast.dynamic.run_pin import RunPin

config = settings.load()
found = settings.look_up(config)
shared: list[pulumi.Resource] = []
"""What may outlive an experiment, as far as this stack declares it."""

bucket: pulumi.Input[str] = config.bucket
if config.bucket_mode == "managed":
    made = CheckpointBucket("bucket", {
        "bucket": config.bucket, "project": config.project, "location": config.region,
        "adopt": found.adopt, "soft_delete_days": config.soft_delete_days,
        "versioning": config.versioning, "leave": found.leave,
    })
    bucket = made.bucket
    shared.append(made)
network: pulumi.Input[str] = config.reach.network
subnetwork: pulumi.Input[str] = config.reach.subnetwork
if config.reach.isolated:
    own = Network("network", {
        "project": config.project, "region": config.region, "nat": config.reach.nat})
    network, subnetwork = own.network, own.subnetwork
    shared.append(own)
leave_role: pulumi.Input[str] = config.leave_role
if not leave_role:
    role = LeaveRole("leave", {"project": config.project, "stack": config.experiment})
    leave_role = role.role
    shared.append(role)


def identify() -> VmIdentity:
    """Who this stack's VMs are."""
    return VmIdentity("identity", {
        "project": config.project, "experiment": config.experiment, "bucket": bucket,
        "prefix": config.prefix, "leave_role": leave_role, "reads": config.reads,
        "secrets": config.secret_owners})


def deliver(code: settings.Code) -> BundleObject:
    """The bundle, in the bucket."""
    return BundleObject("bundle", {"bucket": bucket, "object": code.object, "path": code.path})


def bake(code: settings.Code, *, by: VmIdentity | None, bundle: BundleObject | None) -> ImageFamily:
    """The image of this stack's recipe; `by` whom where its builder reads the bucket."""
    baked = settings.baked(config, code)
    return ImageFamily("image", {
        "recipe": baked.state, "hash": baked.hash, "family": baked.recipe.family,
        "project": baked.recipe.project, "users": baked.recipe.share_with, "labels": config.labels,
        "waits": config.waits, "service_account": by.email if by else "",
        "bundle": pulumi.Output.concat("gs://", bucket, "/", bundle.object) if bundle else "",
        "bundle_sha256": code.sha256, "network": network, "subnetwork": subnetwork,
        "external_ip": config.reach.external_ip,
        "after": [*shared, *(by.bindings if by else []), *([bundle] if bundle else [])],
    })


def foundation() -> dict[str, Any]:
    """What experiments share, and a guard over it."""
    if recipe := config.recipe:
        code = settings.bundle(config)
        bundle = deliver(code) if recipe.trainers else None
        shared.append(bake(code, by=identify() if recipe.needs_token else None, bundle=bundle))
    FoundationGuard(
        "foundation", {"owner": config.owner, "bucket": config.bucket},
        pulumi.ResourceOptions(depends_on=shared))
    return {
        **settings.foundation_outputs(config), "bucket": bucket, "network": network,
        "subnetwork": subnetwork, "leaveRole": leave_role,
    }


def experiment() -> dict[str, Any]:
    """One run on one VM."""
    code = settings.bundle(config)
    if config.foundation:
        FoundationUse("use", {
            "bucket": bucket, "object": config.foundation_note, "owner": config.owner})
    if config.reach.tagged:
        VmAccess("access", {
            "project": config.project, "network": network, "tag": config.tags[0],
            "health_port": config.health_port, "ssh": config.reach.ssh})
    identity = identify()
    object, delivered, bundle = code.object, [], None
    if config.delivery.kind != "image" or (config.recipe and config.recipe.trainers):
        bundle = deliver(code)
        object, delivered = bundle.object, [bundle]
    image: pulumi.Input[str] = config.image
    if recipe := config.recipe:
        by = identity if recipe.needs_token else None
        image = bake(code, by=by, bundle=bundle if recipe.trainers else None).image
    pin = RunPin("run", {
        "project": config.project, "owner": config.owner, "bucket": config.bucket,
        "prefix": config.prefix, "run": config.run, "resume": config.resume,
        "zone": config.location, "image": image, "boot": config.boot,
        "limitRunMinutes": config.limit_run_minutes, "content": config.content,
        "named": config.named, "mutable": config.mutable, "onNewRun": config.on_new_run,
    })
    template = VmTemplate("trainer", {
        "project": config.project, "machine_type": config.machine_type, "image": pin.bootImage,
        "accelerator": config.accelerator, "accelerator_count": config.accelerator_count,
        "local_ssd": config.local_ssd, "min_cpu_platform": config.min_cpu_platform,
        "disk_gb": config.boot_disk_gb, "disk_type": config.boot_disk_type, "spot": config.spot,
        "restarts": config.restarts, "notice": config.notice_sec > 0,
        "service_account": identity.email, "labels": config.labels,
        "network": network, "subnetwork": subnetwork, "external_ip": config.reach.external_ip,
        "tags": config.tags, "deadline": pin.deadline, "metadata": instance_metadata.compose({
            "scripts": settings.scripts(), "bucket": bucket, "prefix": config.prefix,
            "run": config.run, "resume": config.resume, "place": pin.place, "owner": config.owner,
            "bundle": object, "bundle_sha256": code.sha256, "trainer": config.trainer,
            "arguments": config.args, "deadline": pin.deadline, "waits": config.waits,
            "checkpoint_every": config.checkpoint_every, "webhook": config.webhook,
            "webhook_secret": config.webhook_secret, "secret_env": config.secret_env,
            "retries_failures": config.retries_failures, "trainer_python": config.trainer_python,
            "keep_every_steps": config.keep_every_steps, "processes": config.processes,
            "delivery": config.delivery.kind, "git": config.git,
            "gpus": config.gpus, "mode": config.mode, "trainer_user": config.trainer_user,
            "command": config.command, "quiet_sec": config.quiet_sec, "init": config.init,
            "command_options": config.command_options,
            "data": config.data_paths, "content": config.content, "health": config.health,
            "oslogin": config.reach.ssh, "billed": config.billed,
        }),
    })
    health = None
    if config.reach.checked:
        health = HealthCheck("health", {
            "project": config.project, "port": config.health_port}).self_link
    group = HealingGroup("trainer", {
        "project": config.project, "zone": config.zone, "region": config.region,
        "zones": config.zones, "machine_types": (config.machine_type, *config.more_types),
        "experiment": config.experiment, "run": config.run, "resume": config.resume,
        "place": pin.place, "size": pin.size, "template": template.self_link_unique,
        "update": config.update, "health": health, "repairs": config.reach.health == "repair",
        "after": [*identity.bindings, *delivered, *shared],
    })

    return {
        **settings.outputs(config, code), "bucket": bucket, "network": network,
        "group": group.group, "template": template.template, "serviceAccount": identity.email,
        "place": pin.place, "deadline": pin.deadline, "image": pin.bootImage,
    }


outputs = foundation() if config.part == "foundation" else experiment()
outputs["bucketLocation"] = found.location
for key, value in outputs.items():
    pulumi.export(key, value)
