"""The program: one stack is one experiment. Wiring only; `settings.py` reads and checks."""

import pulumi

import settings
from components import metadata as instance_metadata
from components.bundle_object import BundleObject
from components.checkpoint_bucket import CheckpointBucket
from components.healing_group import HealingGroup
from components.providers import RunPin
from components.vm_identity import VmIdentity
from components.vm_template import VmTemplate

config = settings.load()
code = settings.bundle(config)

bucket = CheckpointBucket("bucket", {
    "bucket": config.bucket, "project": config.project, "location": config.region,
    "adopt": settings.bucket_exists(config),
})
identity = VmIdentity("identity", {
    "project": config.project, "experiment": config.experiment, "bucket": bucket.bucket,
    "prefix": config.prefix, "reads": config.reads})
bundle = BundleObject("bundle", {
    "bucket": bucket.bucket, "object": code.object, "path": code.path})
pin = RunPin("run", {
    "owner": config.owner, "bucket": config.bucket, "prefix": config.prefix, "run": config.run,
    "resume": config.resume, "zone": config.zone, "image": config.image,
    "limitRunMinutes": config.limit_run_minutes,
})
template = VmTemplate("trainer", {
    "project": config.project, "machine_type": config.machine_type, "image": config.image,
    "disk_gb": config.boot_disk_gb, "disk_type": config.boot_disk_type, "spot": config.spot,
    "notice": config.notice_sec > 0, "service_account": identity.email, "labels": config.labels,
    "deadline": pin.deadline, "metadata": instance_metadata.compose({
        "scripts": settings.scripts(), "bucket": bucket.bucket, "prefix": config.prefix,
        "run": config.run, "resume": config.resume, "place": pin.place, "owner": config.owner,
        "bundle": bundle.object, "bundle_sha256": code.sha256, "trainer": config.trainer,
        "arguments": config.args, "deadline": pin.deadline, "waits": config.waits,
        "checkpoint_every": config.checkpoint_every, "webhook": config.webhook,
        "retries_failures": config.retries_failures, "trainer_python": config.trainer_python,
        "keep_every_steps": config.keep_every_steps, "processes": config.processes,
        "command": config.command, "quiet_sec": config.quiet_sec, "init": config.init,
        "data": config.data_paths,
    }),
})
group = HealingGroup("trainer", {
    "project": config.project, "zone": config.zone, "experiment": config.experiment,
    "run": config.run, "resume": config.resume, "place": pin.place, "size": pin.size,
    "template": template.self_link_unique, "after": [*identity.bindings, bundle],
})

outputs = {
    **settings.outputs(config, code), "bucket": bucket.bucket, "group": group.group,
    "template": template.template, "serviceAccount": identity.email,
    "place": pin.place, "deadline": pin.deadline,
}
for key, value in outputs.items():
    pulumi.export(key, value)
