"""From the engine's values to Settings; needs no engine."""

from collections.abc import Collection, Mapping
from typing import Any

from outlast.settings import keys
from outlast.settings.reader import Reader, bad, matching
from outlast.settings.rules.code import delivery_of, grants
from outlast.settings.rules.command import command_options_of, slips
from outlast.settings.rules.data import check_paths, data_paths_of, dests_of
from outlast.settings.rules.limits import LIMIT_RUN_MINUTES, LIMIT_WAIT_SEC, timeouts_of, webhook_of
from outlast.settings.rules.machine import (
    IMAGE,
    IMAGE_RULE,
    check_image,
    location_of,
    machine_of,
    recipe_of,
)
from outlast.settings.rules.network import network_of
from outlast.settings.rules.place import (
    EXPERIMENT,
    LOCAL_PROJECT,
    bucket_of,
    cloud_project,
    foundation_name,
    labels_of,
    overlaid,
    part_of,
    soft_delete_days,
    versioning,
)
from outlast.settings.rules.run import (
    PROCESSES_LIMIT,
    RESUME_LIMIT,
    args_of,
    checkpoint_every_of,
    command_of,
    content_of,
    experiment_of,
    init_of,
    interpreter,
    pinned_of,
)
from outlast.settings.rules.secret import (
    plain_tokens,
    refuse_plain_values,
    refuse_secret_values,
    secret_env_of,
    webhook_secret_of,
)
from outlast.settings.rules.trainer import mutable_of, parser_of
from outlast.settings.rules.trainer_user import gs_paths_read, trainer_user_of
from outlast.settings.schema import Settings
from outlast.spec import identity
from outlast.spec import labels as label_rules
from outlast.spec.account import account_email


def check(
    values: Mapping[str, Any],
    *,
    organization: str,
    project: str,
    stack: str,
    environ: Mapping[str, str],
    foundation_outputs: Mapping[str, Any] | None = None,
    secret_keys: Collection[str] = (),
) -> Settings:
    """Settings from the engine's `values` (full key to text), and the outputs of the stack that
    `outlast:foundation` names. `secret_keys` are those of the values that were set with --secret.
    Raises SettingsError."""
    refuse_secret_values(secret_keys)  # first: another refusal would print the value
    read = Reader(values, keys.declared())
    read.refuse_unknown()

    cloud = cloud_project(values, environ)
    location = location_of(read, values)
    if foundation_outputs is not None:
        read = Reader(
            overlaid(read, values, foundation_outputs, cloud, location.region), keys.declared()
        )
    choice, machine = machine_of(read, regional=not location.zone)
    notice_sec = read.integer("noticeSec", 0, LIMIT_WAIT_SEC)
    if cloud != LOCAL_PROJECT and notice_sec not in (0, 120):
        raise bad("noticeSec", notice_sec, "must be 120 or 0, the platform gives no other")

    experiment = experiment_of(read.text("experiment"), stack)
    delivered = delivery_of(read, cloud)
    command = command_of(read)
    trainer = identity.COMMAND if command else read.text("trainer")
    args = args_of(read.mapping("args"))
    secret_env = secret_env_of(read, cloud)
    refuse_plain_values(values, secret_keys, secret_env, command, args)
    is_own = not command and bool(delivered.git or read.text("source"))
    content = content_of(read, trainer, args, command, delivered.git)
    bucket = bucket_of(read, cloud)
    network = network_of(read, delivered.git)
    data_paths = data_paths_of(read)
    if not command:
        dests = dests_of(args if is_own else parser_of(trainer))
        check_paths(dests, args, f"gs://{bucket}/", f"experiments/{experiment}/", data_paths)
    found = Settings(
        project=cloud,
        region=location.region,
        zone=location.zone,
        zones=location.zones,
        owner=f"{organization}/{project}/{stack}",
        experiment=experiment,
        trainer=trainer,
        args=args,
        run=pinned_of(read) or identity.name_of(content),
        content=content,
        mutable={} if command or is_own else mutable_of(trainer),
        resume=read.integer("resume", 0, RESUME_LIMIT),
        on_new_run=read.choice("onNewRun", "refuse", "replace"),
        checkpoint_every=checkpoint_every_of(read.text("checkpointEvery")),
        retries_failures=read.integer("retriesFailures", 0),
        keep_every_steps=read.integer("keepEverySteps", 0),
        trainer_python=interpreter(read.text("trainerPython")),
        trainer_user=trainer_user_of(read, command),
        processes=read.integer("processes", 1, PROCESSES_LIMIT),
        command=command,
        source=read.text("source"),
        requirements=read.text("requirements"),
        delivery=delivered,
        quiet_sec=read.integer("checkpointQuietSec", 1, LIMIT_WAIT_SEC),
        command_options=command_options_of(read, command),
        max_run_minutes=read.integer("maxRunMinutes", 1, LIMIT_RUN_MINUTES),
        mode=choice.mode,
        machine_type=choice.machine_type,
        more_types=choice.more_types,
        spot=machine.spot,
        restarts=machine.restarts,
        accelerator=choice.accelerator,
        accelerator_count=choice.accelerator_count,
        gpus=machine.gpus,
        local_ssd=choice.local_ssd,
        min_cpu_platform=choice.min_cpu_platform,
        recipe=recipe_of(read, cloud, location, network),
        image=matching("image", read.text("image"), IMAGE, IMAGE_RULE),
        update=read.choice("update", "opportunistic", "now"),
        boot_disk_gb=read.integer("bootDiskGb", 10, 65_536),
        boot_disk_type=choice.disk_type,
        bucket=bucket,
        bucket_mode=read.choice("bucketMode", "managed", "existing"),
        soft_delete_days=soft_delete_days(read),
        versioning=versioning(read),
        part=part_of(read),
        foundation=foundation_name(values, organization, project),
        leave_role=(foundation_outputs or {}).get("leaveRole", ""),
        network_rules=network,
        data_paths=data_paths,
        init=init_of(read, command),
        labels=label_rules.of_stack(project, stack, experiment, labels_of(read.mapping("labels"))),
        secret_env=secret_env,
        webhook=webhook_of(read.text("webhook")),
        webhook_secret=webhook_secret_of(read, cloud),
        notice_sec=notice_sec,
        timeouts=timeouts_of(read, notice_sec, spot=machine.spot),
        advice=(
            *machine.advice,
            *slips(command, read),
            *plain_tokens(command, args),
            *gs_paths_read(read, command, args, is_own),
            *grants(read, delivered.git, account_email(experiment, cloud)),
        ),
    )
    if found.part == EXPERIMENT:
        check_image(found.image, found.recipe, found.needs)
    return found
