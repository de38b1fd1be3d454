"""The settings of a stack: each with its type, default, limits and description, declared only here.

`make tables` writes the config part of Pulumi.yaml, docs/configuration.md and ExperimentArgs from
it. A key is the field's name in camelCase. Pydantic checks each value by itself; rules about
several of them are in `rules`. A setting that reaches the VM has its default in `RunSpec`.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake

from outlast.cloud import images
from outlast.cloud import recipe as recipes
from outlast.machines import machines
from outlast.settings import formats
from outlast.settings.formats import (
    Count,
    DataPaths,
    Dollars,
    Globs,
    Minutes,
    RunMinutes,
    Seconds,
    SecondsOr0,
    one_of,
)
from outlast.spec import network_rules
from outlast.spec.command_words import RESULT_GB_MAX
from outlast.spec.delivery import KINDS
from outlast.spec.run_spec import OWN, ROOT, RunSpec, Timeouts


class Section(BaseModel):
    """Settings that belong together; a section's docstring is its heading on the pages."""

    model_config = ConfigDict(
        # Nothing is built before something is validated: the command line imports this, too.
        defer_build=True,
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
    )

    def is_default(self, name: str) -> bool:
        """Whether the field has its default."""
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return getattr(self, name) == default


class WhatIsTrained(Section):
    """What is trained"""

    experiment: str = Field(
        "",
        description=(
            "Name of the experiment: 1 to 40 lower-case letters, digits and dashes, beginning with"
            " a letter and not ending in a dash; empty is the stack's name"
        ),
    )
    trainer: str = Field("digits", description="Name of the trainer, a module of trainers/")
    args: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "The trainer's flags without dashes, such as {epochs 5, learning-rate 0.1}; true is a "
            "bare flag"
        ),
    )
    command: str = Field(
        "",
        description=(
            "Runs instead of a trainer: a line for the shell, or a JSON list of a program and its "
            "arguments; {checkpoint}, {result}, {data} and {output_uri} are filled in"
        ),
    )
    source: str = Field(
        "",
        description=(
            "Folder of the checkout whose files the command finds in its working folder, or that "
            "holds the trainer's module; empty is none"
        ),
    )
    requirements: str = Field(
        "",
        description=(
            "Requirements file of the checkout, or a folder with pyproject.toml or "
            "requirements.txt, installed into a separate environment for the trainer or command;"
            " with git, below gitPath; empty is none"
        ),
    )
    delivery: Annotated[str, one_of(*KINDS)] = Field(
        RunSpec.delivery,
        description=(
            "Where a VM gets the code: from the bucket, from the image (it was baked in), or from"
            " git (a commit of a repository)"
        ),
    )
    git_url: str = Field(
        "", description="Address of the repository, https or ssh, without a password"
    )
    git_commit: str = Field(
        "", description="The commit, all 40 digits; outlast up --latest writes it"
    )
    git_path: str = Field(
        "",
        description=(
            "Folder of the repository to work in, or that holds the trainer; empty is the whole"
            " repository"
        ),
    )
    git_ref: str = Field("", description="Branch that outlast up --latest takes the commit from")
    git_secret: str = Field(
        "",
        description=(
            "Secret in Secret Manager that lets the VM read the repository: a token for https, a "
            "deploy key for ssh; NAME or projects/PROJECT/secrets/NAME; empty for a public one"
        ),
    )
    git_host_keys: tuple[Any, ...] = Field(
        (), description="Lines of known_hosts for the ssh host, as ssh-keyscan prints them"
    )
    secret_env: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Variables that only the trainer or the command gets, each with the secret in Secret"
            " Manager that holds its value, such as WANDB_API_KEY: wandb; NAME or "
            "projects/PROJECT/secrets/NAME"
        ),
    )
    checkpoint_quiet_sec: Seconds = Field(
        RunSpec.checkpoint_quiet_sec,
        description=(
            "Seconds without a change after which a command's checkpoint folder counts as "
            "complete, unless the command says so itself"
        ),
    )
    checkpoint_files: Globs = Field(
        (),
        description=(
            "Globs of the files that make a command's checkpoint; empty: all but logs and"
            " by-products"
        ),
    )
    log_files: Globs = Field(
        (),
        description=(
            "More globs of files that only grow and make no checkpoint by themselves; others are "
            "known by default"
        ),
    )
    by_product_files: Globs = Field(
        (),
        description=(
            "More globs of files that come with a checkpoint but make none by themselves; others "
            "are known by default"
        ),
    )
    checkpoint_dir: Annotated[str, formats.FOLDER_BELOW] = Field(
        "",
        description=(
            "Folder in which a command saves, below the one that it runs in; empty: the folder in"
            " CHECKPOINT_DIR"
        ),
    )
    allow_no_output: bool = Field(
        False, description="Whether a command that exits with 0 is done even if it saved nothing"
    )
    result_gb: int = Field(
        RESULT_GB_MAX,
        ge=1,
        le=10_000,
        description=(
            "Limit in GB for new files in a command's working folder, which become the result; "
            "above it, the run fails as result-too-large and its VM stays for an hour"
        ),
    )
    data_paths: DataPaths = Field(
        (),
        description=(
            "gs:// paths that the VM may read in addition to data/ in its own bucket: objects or "
            "folders; a command finds them in DATA_DIR"
        ),
    )
    public_data: DataPaths = Field(
        (),
        description=(
            "Those of dataPaths that anyone may read; the VM gets no permission for them, so that "
            "their bucket may be a stranger's"
        ),
    )
    data_payer: Annotated[str, formats.PROJECT] = Field(
        RunSpec.data_payer,
        description=(
            "Project that pays for reading dataPaths, init and the recipe's data from buckets that "
            "let the requester pay; empty is none"
        ),
    )
    init: Annotated[str, formats.PINNED] = Field(
        RunSpec.init,
        description=(
            "Another run's checkpoint to start from, as outlast checkpoints EXPERIMENT prints it;"
            " empty is none"
        ),
    )
    rerun: Count = Field(
        0, description="Counter; with another number, the same spec is another run"
    )


class HowItContinues(Section):
    """How it continues"""

    checkpoint_every: Annotated[str, formats.CHECKPOINT_EVERY] = Field(
        RunSpec.checkpoint_every,
        description="When a checkpoint is made: auto, seconds such as 30s, or steps such as 200",
    )
    keep_every_steps: Count = Field(
        RunSpec.keep_every_steps,
        description=(
            "Also keep one checkpoint every so many steps, besides the last ones and the best; 0"
            " keeps no others"
        ),
    )
    trainer_python: Annotated[str, formats.ABSOLUTE] = Field(
        RunSpec.trainer_python,
        description=(
            "The trainer's interpreter on the VM, an absolute path on the image; empty is the "
            "supervisor's own"
        ),
    )
    trainer_user: Annotated[str, one_of(ROOT, OWN)] = Field(
        RunSpec.trainer_user,
        description=(
            "The user that the trainer or the command runs as on the VM: root; or own, a user "
            "without rights, for code that you do not trust: it can write only to its own folders "
            "and cannot get the VM's token (docs/teams.md)"
        ),
    )
    processes: int = Field(
        RunSpec.processes,
        ge=1,
        le=256,
        description=(
            "Processes that train together on the VM (torchrun's ranks); the trainer's "
            "interpreter needs torch for more than 1"
        ),
    )
    run: Annotated[str, formats.RUN] = Field(
        "",
        description=(
            "Pins the run by its ten digits, even if code or args change; empty names it by its "
            "content"
        ),
    )
    resume: int = Field(
        0,
        ge=0,
        le=9999,
        description=(
            "Counter; a higher number reopens a run that failed, was stopped or has lost its group"
        ),
    )
    on_new_run: Annotated[str, one_of("refuse", "replace")] = Field(
        "refuse",
        description=(
            "What to do if changed code or args would replace an open run that has checkpoints: "
            "refuse or replace"
        ),
    )
    update: Annotated[str, one_of("opportunistic", "now")] = Field(
        "opportunistic",
        description=(
            "When a change applies to a running VM: opportunistic, when the VM is next recreated; "
            "or now, which interrupts it"
        ),
    )
    retries_failures: Count = Field(
        RunSpec.retries_failures,
        description="How many of the trainer's own failures are retried; preemptions never count",
    )
    on_end: Annotated[str, one_of("delete", "keep")] = Field(
        "delete",
        description=(
            "What to do with the VM at the run's end: delete it, or keep it for keepVmMinutes, "
            "but no longer than the limit"
        ),
    )
    keep_vm_minutes: Minutes = Field(
        60, description="Minutes that a kept VM stays after the run's end"
    )


class Limits(Section):
    """Limits"""

    max_run_minutes: RunMinutes = Field(
        1440,
        description=(
            "Minutes after the run was first declared at which its VM is deleted for the last"
            " time; a higher value applies from the next resume"
        ),
    )
    max_stall_minutes: Minutes = Field(
        int(Timeouts.stall / 60),
        description=(
            "Minutes without a step after which a trainer is restarted, which counts as its own "
            "failure"
        ),
    )
    sweep: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "The sweep that this run is a trial of, and when it stops early: name, metric, goal,"
            " rule, rungs or minStep, eta, startup (docs/sweeps.md); empty is none"
        ),
    )
    budget_dollars: Dollars = Field(
        RunSpec.budget_dollars,
        description=(
            "Dollars that the run's VMs may cost together, by the list prices at up; then the run "
            "makes a checkpoint and stops with the reason budget; 0: no budget"
        ),
    )


class WhereAndOnWhat(Section):
    """Where and on what"""

    zone: str = Field("", description="Zone of the VM; empty is gcp:zone")
    zones: tuple[Any, ...] = Field(
        (),
        description=(
            "Zones of one region, instead of zone: the VM is created in one with capacity, and"
            " recreated in another if necessary"
        ),
    )
    region: str = Field("", description="Region, instead of zone: all of its zones may be used")
    machine_type: Annotated[str, formats.MACHINE_TYPE] = Field(
        machines.Choice.machine_type, description="Machine type of the VM, a bare name"
    )
    allow_unlisted: tuple[Annotated[Any, formats.UNLISTED], ...] = Field(
        (),
        description=(
            "Regions, zones and machine types that are newer than Outlast's lists; they are not "
            "checked"
        ),
    )
    mode: Annotated[str, one_of(*machines.MODES)] = Field(
        RunSpec.mode,
        description=(
            "survive (resumes after any interruption), burst (a large machine, ends with its "
            "first failure) or dedicated (a VM that is not preempted)"
        ),
    )
    provisioning: str = Field(
        "",
        description=(
            "spot (cheap and preemptible) or standard; empty is the mode's: standard for "
            "dedicated, else spot"
        ),
    )
    machine_types: tuple[Annotated[Any, formats.MACHINE_TYPE], ...] = Field(
        (),
        description=(
            "Other machine types in order of preference, used if the region has no capacity for"
            " machineType; only with zones or region"
        ),
    )
    accelerator: str = Field(
        "",
        description=(
            "GPU that is attached to an N1 machine, such as nvidia-tesla-t4; machine types that "
            "include GPUs need none"
        ),
    )
    accelerator_count: int = Field(
        0, ge=0, le=machines.MOST_GPUS, description="Number of attached GPUs"
    )
    local_ssd: int = Field(
        0,
        ge=0,
        le=machines.MOST_SSDS,
        description=(
            "How many local SSDs are attached; they are mounted as one disk, for data and snapshots"
        ),
    )
    min_cpu_platform: str = Field(
        "", description="The oldest acceptable CPU platform, such as Intel Ice Lake; empty is any"
    )
    image: Annotated[str, formats.IMAGE] = Field(
        images.DEBIAN,
        description="Image or image family of the boot disk; needs Python 3.11 to 3.13",
    )
    image_recipe: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Recipe of the stack's own image, baked on top of outlast:image unless it names a"
            " base: family, packages, requirements, driver, cuda, script, data, trainers "
            "(docs/machines.md); empty bakes none"
        ),
    )
    boot_disk_gb: int = Field(
        50, ge=recipes.DISK_GB_LEAST, le=recipes.DISK_GB_MOST, description="Size of the boot disk"
    )
    boot_disk_type: Annotated[str, formats.DISK_TYPE] = Field(
        machines.Choice.disk_type, description="Type of the boot disk"
    )
    bucket: str = Field(
        "",
        description=(
            "Bucket for all checkpoints and results, kept at destroy; empty is"
            " <gcp:project>-outlast"
        ),
    )
    bucket_mode: Annotated[str, one_of("managed", "existing")] = Field(
        "managed",
        description=(
            "managed: the bucket is created, or adopted by its label; existing: someone else "
            "manages it, and it is used as it is"
        ),
    )
    soft_delete_days: Annotated[int, formats.SOFT_DELETE_DAYS] = Field(
        0,
        description=(
            "Days for which a managed bucket keeps deleted objects, 7 to 90, billed each day; 0 "
            "is none; a bucket that has more keeps its value"
        ),
    )
    versioning: bool = Field(
        False,
        description=(
            "Whether a managed bucket keeps old versions of objects, billed until you delete "
            "them; a bucket with versioning keeps it"
        ),
    )


class WhatIsSharedAndHowVmsAreReached(Section):
    """What is shared, and how VMs are reached"""

    part: Annotated[str, one_of("experiment", "foundation", "sweep")] = Field(
        "experiment",
        description=(
            "What the stack declares: experiment, foundation (a bucket, network, role and image "
            "that experiments share), or sweep (the same with the identity of its trials' VMs; "
            "outlast sweep sets it)"
        ),
    )
    foundation: str = Field(
        "",
        description=(
            "Stack that declares the foundation of this experiment, by its name or as "
            "organization/project/stack; empty: the stack declares everything itself"
        ),
    )
    network: Annotated[str, formats.NETWORK] = Field(
        "default",
        description=(
            "default, isolated (the stack's own network, without external addresses), or the name "
            "of an existing one"
        ),
    )
    subnetwork: Annotated[str, formats.SUBNETWORK] = Field(
        "",
        description="Subnetwork of an existing network; empty is the network's own in the region",
    )
    ip_range: Annotated[str, formats.IP_RANGE] = Field(
        network_rules.RANGE,
        description="Addresses of an isolated network's subnetwork, as an IPv4 range",
    )
    external_ip: Annotated[str, formats.YES_NO] = Field(
        "",
        description=(
            "Whether VMs have external addresses, true or false; empty: in the default network only"
        ),
    )
    nat: bool = Field(
        False,
        description=(
            "Whether VMs without external addresses reach the internet through a NAT; an isolated "
            "network gets one, an existing network must have one"
        ),
    )
    ssh: Annotated[str, one_of(*network_rules.SSH_MODES)] = Field(
        "",
        description="iap allows SSH through Identity-Aware Proxy and OS Login; empty allows none",
    )
    health: Annotated[str, one_of(*network_rules.HEALTH_MODES)] = Field(
        network_rules.OFF,
        description=(
            "off, observe (the group shows which VM makes no progress) or repair (and replaces it)"
        ),
    )
    health_limit_sec: SecondsOr0 = Field(
        0,
        description=(
            "Seconds without progress before a VM counts as unhealthy; 0: half of maxStallMinutes "
            "for observe, maxStallMinutes plus 600 s for repair"
        ),
    )
    labels: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Labels for every resource that can have labels, in addition to those of"
            " gcp:defaultLabels"
        ),
    )
    resource_tags: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Resource Manager tags of the VM, such as tagKeys/281: tagValues/282; policies and"
            " firewalls of an organization can go by them"
        ),
    )
    service_account: Annotated[str, formats.SERVICE_ACCOUNT] = Field(
        "",
        description=(
            "Address of an existing service account for the VM, where none may be created; it gets"
            " the same bindings; empty: the stack's own"
        ),
    )
    shielded_vm: bool = Field(
        False,
        description="Whether VMs have Secure Boot, a virtual TPM and integrity monitoring",
    )
    confidential_vm: Annotated[str, one_of("", *machines.CONFIDENTIAL)] = Field(
        "",
        description="Technology that encrypts the VM's memory: SEV, SEV_SNP or TDX; empty is none",
    )
    kms_key: Annotated[str, formats.KMS_KEY] = Field(
        "",
        description=(
            "Cloud KMS key that encrypts the VM's boot disk and a bucket that Outlast creates:"
            " projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY; empty: Google's key"
        ),
    )
    webhook: Annotated[str, formats.HTTPS, formats.NO_PASSWORD] = Field(
        RunSpec.webhook,
        description=(
            "An https address that gets a message when a run ends, is lost or needs a person "
            "(docs/operating.md); empty is none"
        ),
    )
    webhook_secret: str = Field(
        RunSpec.webhook_secret,
        description=(
            "Secret in Secret Manager that holds the webhook's address, if the address is a"
            " secret; NAME or projects/PROJECT/secrets/NAME; empty is none"
        ),
    )
    webhook_key_secret: str = Field(
        RunSpec.webhook_key_secret,
        description=(
            "Secret in Secret Manager that holds the key with which messages to the webhook are "
            "signed; NAME or projects/PROJECT/secrets/NAME; empty: they are not signed"
        ),
    )


class TimeoutsInSeconds(Section):
    """Timeouts, in seconds"""

    notice_sec: SecondsOr0 = Field(
        int(Timeouts.notice),
        description="Seconds of notice before a preemption: 120, or 0 for none",
    )
    stop_sec: SecondsOr0 = Field(
        0,
        description=(
            "Seconds from SIGTERM to the end of the machine; 0 is what the platform gives: 30 for "
            "a Spot VM, 90 for a standard one"
        ),
    )
    heartbeat_sec: Seconds = Field(
        int(Timeouts.heartbeat), description="Seconds between two heartbeats in the bucket"
    )
    failure_grace_sec: SecondsOr0 = Field(
        int(Timeouts.failure_grace),
        description="A failure counts only if the machine keeps running for this many seconds",
    )
    backoff_sec: Seconds = Field(
        int(Timeouts.backoff), description="Seconds to wait after the first refused call"
    )
    iam_propagation_sec: SecondsOr0 = Field(
        int(Timeouts.iam_propagation),
        description="Seconds that new permissions may take to reach the VM",
    )
    silence_sec: Seconds = Field(
        int(Timeouts.silence),
        description=(
            "Seconds without an answer from storage after which an attempt ends; from storage or "
            "the metadata server, after which a booting VM leaves its group"
        ),
    )
    driver_install_sec: SecondsOr0 = Field(
        int(Timeouts.driver_install),
        description="Seconds that a VM with GPUs may take to install its driver",
    )
    successor_silence_sec: Seconds = Field(
        int(Timeouts.successor_silence),
        description="Seconds without a heartbeat after which a successor counts as dead",
    )
    storage_timeout_sec: Seconds = Field(
        int(Timeouts.storage),
        description=(
            "Seconds that the upload of a chunk of 8 MiB may take before it is sent again; an "
            "answer may take twice as long"
        ),
    )


class Keys(
    TimeoutsInSeconds,
    WhatIsSharedAndHowVmsAreReached,
    WhereAndOnWhat,
    Limits,
    HowItContinues,
    WhatIsTrained,
):
    """Every setting of a stack, as it is given or by default."""


SECTIONS: tuple[type[Section], ...] = (
    WhatIsTrained,
    HowItContinues,
    Limits,
    WhereAndOnWhat,
    WhatIsSharedAndHowVmsAreReached,
    TimeoutsInSeconds,
)
"""In the order of the pages."""


@functools.cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """Description and default of every setting by its key; a list's default is a list."""
    found = {}
    for name, field in Keys.model_fields.items():
        default = field.get_default(call_default_factory=True)
        found[to_camel(name)] = {
            "description": field.description,
            "default": list(default) if isinstance(default, tuple) else default,
        }
    return found


def limits(key: str) -> str:
    """What a number may be: "from 1 to 256", "0 or more"; empty if any, or if it is none."""
    field = Keys.model_fields[to_snake(key)]
    found = {
        name: getattr(one, name)
        for one in field.metadata
        for name in ("ge", "le")
        if hasattr(one, name)
    }
    if not found:
        return ""
    return f"from {found['ge']} to {found['le']}" if "le" in found else f"{found['ge']} or more"
