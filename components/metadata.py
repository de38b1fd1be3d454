"""The instance metadata that carries a run to its VM; every key the scripts and the supervisor
read, and its text."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import pulumi

from outlast.spec import identity, secrets
from outlast.spec.delivery import BUCKET, VALUE_LIMIT

TOTAL_LIMIT = 512 * 1024
"""Bytes that the platform allows all keys and values together."""

Argument = bool | int | float | str


class MetadataArgs(TypedDict):
    """What the keys are made of."""

    scripts: Mapping[str, str]
    """Startup scripts by metadata key, byte for byte."""
    bucket: pulumi.Input[str]
    prefix: str
    run: str
    resume: int
    placement: pulumi.Input[int]
    owner: str
    bundle: pulumi.Input[str]
    bundle_sha256: str
    trainer: str
    arguments: Mapping[str, Argument]
    """Trainer's flags without dashes."""
    deadline: pulumi.Input[str]
    checkpoint_every: str
    timeouts: str
    """JSON object of seconds."""
    retries_failures: int
    keep_every_steps: int
    """0 for none."""
    trainer_python: str
    """Empty for the supervisor's own."""
    trainer_user: str
    """`root`, or `own`: a user without rights."""
    processes: int
    """Processes that train together on the VM."""
    command: str
    """JSON of what runs instead of the trainer; empty for none."""
    quiet_sec: int
    command_options: str
    """JSON of more options of the command's runner, by their flags; empty for none."""
    delivery: str
    git: str
    """JSON of the commit that the VM fetches; empty for none. No secret, only a secret's name."""
    gpus: int
    """GPUs that the machine must have before anything is trained."""
    mode: str
    data: Sequence[str]
    """Of a command."""
    webhook: str
    """Empty for none."""
    webhook_secret: str
    """Name of the secret that holds the webhook's address; empty for none."""
    secret_env: Mapping[str, str]
    """Variables of the trainer, each with the name of its secret. Only names, no values."""
    init: str
    """A pinned checkpoint; empty for none."""
    content: Mapping[str, Any]
    """What the run's name is made of, for the attempts' records."""
    billed: str
    """JSON of what is paid for beside the machine type, for the attempts' records."""
    health: str
    """Where the VM answers for its health, and the age in seconds above which the answer is bad;
    empty without health checks."""
    oslogin: bool
    """Whether people come in, by OS Login."""


def compose(args: MetadataArgs) -> dict[str, pulumi.Input[str]]:
    """The metadata of one run's VMs. Raises RunError, which the
    engine prints without a traceback, where it is larger than allowed."""
    items: dict[str, pulumi.Input[str]] = {
        **args["scripts"],
        "outlast-bucket": args["bucket"],
        "outlast-prefix": args["prefix"],
        "outlast-run": args["run"],
        "outlast-resume": str(args["resume"]),
        "outlast-placement": pulumi.Output.from_input(args["placement"]).apply(
            lambda n: str(int(n))
        ),
        "outlast-owner": args["owner"],
        "outlast-bundle": args["bundle"],
        "outlast-bundle-sha256": args["bundle_sha256"],
        "outlast-trainer": args["trainer"],
        "outlast-deadline": args["deadline"],
        "outlast-checkpoint-every": args["checkpoint_every"],
        "outlast-timeouts": args["timeouts"],
        "outlast-mode": args["mode"],
        "outlast-retries-failures": str(args["retries_failures"]),
        "outlast-content": identity.canonical_json(args["content"]),
        "outlast-billed": args["billed"],
    }
    for flag, value in args["arguments"].items():
        if value is not False:  # a switch that is off is a flag that is not there
            items[f"outlast-arg-{flag}"] = text(value)
    if args["keep_every_steps"]:
        items["outlast-keep-every-steps"] = str(args["keep_every_steps"])
    if args["trainer_python"]:
        items["outlast-trainer-python"] = args["trainer_python"]
    if args["trainer_user"] != "root":
        items["outlast-trainer-user"] = args["trainer_user"]
    if args["gpus"]:
        items["outlast-gpus"] = str(args["gpus"])
    if args["processes"] > 1:
        items["outlast-processes"] = str(args["processes"])
    if args["command"]:
        items["outlast-command"] = args["command"]
        items["outlast-checkpoint-quiet-sec"] = str(args["quiet_sec"])
        if args["command_options"]:
            items["outlast-command-options"] = args["command_options"]
        if args["data"]:
            items["outlast-data"] = " ".join(args["data"])
    if args["delivery"] != BUCKET:
        items["outlast-delivery"] = args["delivery"]
    if args["git"]:
        items["outlast-git"] = args["git"]
    if args["init"]:
        items["outlast-init"] = args["init"]
    if args["health"]:
        items["outlast-health"] = args["health"]
    if args["oslogin"]:
        items["enable-oslogin"] = "TRUE"
    if args["secret_env"]:
        items["outlast-secret-env"] = secrets.to_json(args["secret_env"])
    if args["webhook_secret"]:
        items["outlast-webhook-secret"] = args["webhook_secret"]
    if args["webhook"]:
        items["outlast-webhook"] = args["webhook"]
    _check_sizes(items)
    return items


def text(value: Argument) -> str:
    """An argument as the supervisor reads it; `true` is a bare flag."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _check_sizes(items: Mapping[str, pulumi.Input[str]]) -> None:
    """Checks the values that are known now; those still to come (times, names) are short."""
    total = 0
    for key, value in items.items():
        size = len(value.encode()) if isinstance(value, str) else 0
        if size > VALUE_LIMIT:
            raise pulumi.RunError(
                f"metadata {key}: has {size} bytes, at most {VALUE_LIMIT} are allowed; make it"
                " shorter, or keep it in the bucket and pass its path",
            )
        total += len(key.encode()) + size
    if total > TOTAL_LIMIT:
        raise pulumi.RunError(
            f"metadata: has {total} bytes in all, at most {TOTAL_LIMIT} are allowed; make"
            " outlast:args shorter",
        )
