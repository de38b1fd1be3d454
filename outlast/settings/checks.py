"""Converts the engine's values to Settings; needs no engine."""

from collections.abc import Collection, Mapping
from typing import Any

from outlast.cloud import fit
from outlast.settings.errors import NAMESPACE, bad
from outlast.settings.keys import Keys
from outlast.settings.parsing import parse
from outlast.settings.rules.budget import check_budget
from outlast.settings.rules.code import delivery_of
from outlast.settings.rules.command import command_options_of, slips
from outlast.settings.rules.data import check_paths, check_public, dests_of
from outlast.settings.rules.limits import sweep_advice, sweep_rules_of, timeouts_of
from outlast.settings.rules.machine import check_image, location_of, machine_of, recipe_of
from outlast.settings.rules.network import network_of
from outlast.settings.rules.place import (
    EXPERIMENT,
    LOCAL_PROJECT,
    bucket_of,
    check_part,
    check_trial,
    cloud_project,
    default_labels_of,
    foundation_name,
    labels_of,
    overlaid,
    refuse_for_existing,
)
from outlast.settings.rules.run import args_of, check_init, command_of, content_of, experiment_of
from outlast.settings.rules.secret import (
    plain_tokens,
    refuse_plain_values,
    refuse_secret_values,
    secret_env_of,
    webhook_key_secret_of,
    webhook_secret_of,
)
from outlast.settings.rules.security import check_security
from outlast.settings.rules.trainer import mutable_of, parser_of
from outlast.settings.rules.trainer_user import check_trainer_user, gs_paths_read
from outlast.settings.schema import Settings
from outlast.spec import identity
from outlast.spec import labels as label_rules
from outlast.spec.account import account_email
from outlast.spec.delivery import Git


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
    refuse_secret_values(secret_keys)  # First, because another refusal would print the value.
    given = parse(values)
    cloud = cloud_project(values, environ)
    location = location_of(given, values)
    if foundation_outputs is not None:
        given = parse(overlaid(given, values, foundation_outputs, cloud, location.region))
    machine = machine_of(given, regional=not location.zone)
    if cloud != LOCAL_PROJECT and given.notice_sec not in (0, 120):
        raise bad("noticeSec", given.notice_sec, "must be 120 or 0; the platform offers no other")
    check_part(given)
    refuse_for_existing(given)

    runs = _run_of(given, values, cloud, stack, secret_keys)
    check_trial(given, runs["experiment"], runs["run"], foundation_outputs or {})
    network = network_of(given, runs["git"])
    recipe = recipe_of(given, cloud, location, network, machine.modules)
    check_security(given, region=location.region, recipe=recipe, gpus=machine.gpus)
    own_labels = {**default_labels_of(values), **labels_of(given.labels)}
    follows = {
        **runs,
        "project": cloud,
        "region": location.region,
        "zone": location.zone,
        "zones": location.zones,
        "owner": f"{organization}/{project}/{stack}",
        "spot": machine.spot,
        # A VM with encrypted memory cannot be moved while it runs.
        "restarts": machine.restarts or bool(given.confidential_vm),
        "gpus": machine.gpus,
        "modules": machine.modules,
        "recipe": recipe,
        "foundation": foundation_name(values, organization, project),
        "leave_role": (foundation_outputs or {}).get("leaveRole", ""),
        "shared_account": (foundation_outputs or {}).get("serviceAccount", ""),
        "network_rules": network,
        "labels": label_rules.of_stack(project, stack, runs["experiment"], own_labels),
        "timeouts": timeouts_of(given, spot=machine.spot),
        "advice": (*machine.advice, *runs["advice"]),
    }
    found = Settings.model_construct(**{**dict(given), **follows})
    if found.part == EXPERIMENT:
        check_image(found.image, found.recipe, found.needs)
    if not found.budget_dollars:
        return found
    worst = check_budget(
        found.budget_dollars, found.max_run_minutes, found.machine_prices, found.priced_zone
    )
    return found.model_copy(update={"advice": (*found.advice, worst)})


def _run_of(
    given: Keys,
    values: Mapping[str, Any],
    cloud: str,
    stack: str,
    secret_keys: Collection[str],
) -> dict[str, Any]:
    """What runs, as fields of Settings."""
    experiment, bucket = experiment_of(given.experiment, stack), bucket_of(given, cloud)
    git = delivery_of(given, cloud).git
    command = command_of(given)
    check_init(given, command)
    check_trainer_user(given, command)
    trainer = identity.COMMAND if command else given.trainer
    args = args_of(given.args)
    secret_env = secret_env_of(given, cloud)
    refuse_plain_values(values, secret_keys, secret_env, command, args)
    is_own = not command and bool(git or given.source)
    content = content_of(given, trainer, args, command, git)
    check_public(given.public_data, given.data_paths)
    sweep_rules = sweep_rules_of(given)
    if not command:
        dests = dests_of(args if is_own else parser_of(trainer))
        own = f"experiments/{experiment}/"
        check_paths(dests, args, f"gs://{bucket}/", own, given.data_paths)
    return {
        "experiment": experiment,
        "bucket": bucket,
        "trainer": trainer,
        "args": args,
        "run": given.run or identity.name_of(content),
        "content": content,
        "mutable": {} if command or is_own else mutable_of(trainer),
        "command": command,
        "git": git,
        "command_options": command_options_of(given, command),
        "sweep_rules": sweep_rules,
        "secret_env": secret_env,
        "webhook_secret": webhook_secret_of(given, cloud),
        "webhook_key_secret": webhook_key_secret_of(given, cloud),
        "advice": (
            *slips(command, given),
            *sweep_advice(sweep_rules, command),
            *plain_tokens(command, args),
            *gs_paths_read(given, command, args, is_own),
            *_grants(given, git, account_email(experiment, cloud)),
            *filter(None, [fit.python_advice(f"{NAMESPACE}:image", given.image)]),
        ),
    }


def _grants(given: Keys, git: Git | None, email: str) -> tuple[str, ...]:
    """Sentences on what the VMs' service account must be allowed to install."""
    if not given.requirements:
        return ()
    from outlast.settings.rules import packages

    return packages.grants(given, git, email)
