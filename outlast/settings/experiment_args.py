"""The arguments of Experiment and Foundation. Made by `make tables` from `keys`."""

from typing import Any, TypedDict


class ExperimentArgs(TypedDict, total=False):
    """Settings by their Python names; each one that is left out has its default."""

    # What is trained
    experiment: str
    """Name of the experiment: 1 to 40 lower-case letters, digits and dashes, beginning with a
    letter and not ending in a dash; empty is the stack's name. Default: `""`
    """
    trainer: str
    """Name of the trainer, a module of trainers/. Default: `"digits"`"""
    args: dict[str, Any]
    """The trainer's flags without dashes, such as {epochs 5, learning-rate 0.1}; true is a bare
    flag. Default: `{}`
    """
    command: str
    """Runs instead of a trainer: a line for the shell, or a JSON list of a program and its
    arguments; {checkpoint}, {result}, {data} and {output_uri} are filled in. Default: `""`
    """
    source: str
    """Folder of the checkout whose files the command finds in its working folder, or that holds
    the trainer's module; empty is none. Default: `""`
    """
    requirements: str
    """Requirements file of the checkout, or a folder with pyproject.toml or requirements.txt,
    installed into a separate environment for the trainer or command; with git, below gitPath;
    empty is none. Default: `""`
    """
    delivery: str
    """Where a VM gets the code: from the bucket, from the image (it was baked in), or from git
    (a commit of a repository). Default: `"bucket"`
    """
    git_url: str
    """Address of the repository, https or ssh, without a password. Default: `""`"""
    git_commit: str
    """The commit, all 40 digits; outlast up --latest writes it. Default: `""`"""
    git_path: str
    """Folder of the repository to work in, or that holds the trainer; empty is the whole
    repository. Default: `""`
    """
    git_ref: str
    """Branch that outlast up --latest takes the commit from. Default: `""`"""
    git_secret: str
    """Secret in Secret Manager that lets the VM read the repository: a token for https, a deploy
    key for ssh; NAME or projects/PROJECT/secrets/NAME; empty for a public one. Default: `""`
    """
    git_host_keys: list[Any]
    """Lines of known_hosts for the ssh host, as ssh-keyscan prints them. Default: `[]`"""
    secret_env: dict[str, Any]
    """Variables that only the trainer or the command gets, each with the secret in Secret
    Manager that holds its value, such as WANDB_API_KEY: wandb; NAME or
    projects/PROJECT/secrets/NAME. Default: `{}`
    """
    checkpoint_quiet_sec: int
    """Seconds without a change after which a command's checkpoint folder counts as complete,
    unless the command says so itself. Default: `10`
    """
    checkpoint_files: list[Any]
    """Globs of the files that make a command's checkpoint; empty: all but logs and by-products.
    Default: `[]`
    """
    log_files: list[Any]
    """More globs of files that only grow and make no checkpoint by themselves; others are known
    by default. Default: `[]`
    """
    by_product_files: list[Any]
    """More globs of files that come with a checkpoint but make none by themselves; others are
    known by default. Default: `[]`
    """
    checkpoint_dir: str
    """Folder in which a command saves, below the one that it runs in; empty: the folder in
    CHECKPOINT_DIR. Default: `""`
    """
    allow_no_output: bool
    """Whether a command that exits with 0 is done even if it saved nothing. Default: `false`
    """
    result_gb: int
    """Limit in GB for new files in a command's working folder, which become the result; above
    it, the run fails as result-too-large and its VM stays for an hour. Default: `20`
    """
    data_paths: list[Any]
    """gs:// paths that the VM may read in addition to data/ in its own bucket: objects or
    folders; a command finds them in DATA_DIR. Default: `[]`
    """
    public_data: list[Any]
    """Those of dataPaths that anyone may read; the VM gets no permission for them, so that their
    bucket may be a stranger's. Default: `[]`
    """
    data_payer: str
    """Project that pays for reading dataPaths, init and the recipe's data from buckets that let
    the requester pay; empty is none. Default: `""`
    """
    init: str
    """Another run's checkpoint to start from, as outlast checkpoints EXPERIMENT prints it; empty
    is none. Default: `""`
    """
    rerun: int
    """Counter; with another number, the same spec is another run. Default: `0`"""

    # How it continues
    checkpoint_every: str
    """When a checkpoint is made: auto, seconds such as 30s, or steps such as 200. Default:
    `"auto"`
    """
    keep_every_steps: int
    """Also keep one checkpoint every so many steps, besides the last ones and the best; 0 keeps
    no others. Default: `0`
    """
    trainer_python: str
    """The trainer's interpreter on the VM, an absolute path on the image; empty is the
    supervisor's own. Default: `""`
    """
    trainer_user: str
    """The user that the trainer or the command runs as on the VM: root; or own, a user without
    rights, for code that you do not trust: it can write only to its own folders and cannot
    get the VM's token (docs/teams.md). Default: `"root"`
    """
    processes: int
    """Processes that train together on the VM (torchrun's ranks); the trainer's interpreter
    needs torch for more than 1. Default: `1`
    """
    run: str
    """Pins the run by its ten digits, even if code or args change; empty names it by its
    content. Default: `""`
    """
    resume: int
    """Counter; a higher number reopens a run that failed, was stopped or has lost its group.
    Default: `0`
    """
    on_new_run: str
    """What to do if changed code or args would replace an open run that has checkpoints: refuse
    or replace. Default: `"refuse"`
    """
    update: str
    """When a change applies to a running VM: opportunistic, when the VM is next recreated; or
    now, which interrupts it. Default: `"opportunistic"`
    """
    retries_failures: int
    """How many of the trainer's own failures are retried; preemptions never count. Default: `0`
    """
    on_end: str
    """What to do with the VM at the run's end: delete it, or keep it for keepVmMinutes, but no
    longer than the limit. Default: `"delete"`
    """
    keep_vm_minutes: int
    """Minutes that a kept VM stays after the run's end. Default: `60`"""

    # Limits
    max_run_minutes: int
    """Minutes after the run was first declared at which its VM is deleted for the last time; a
    higher value applies from the next resume. Default: `1440`
    """
    max_stall_minutes: int
    """Minutes without a step after which a trainer is restarted, which counts as its own
    failure. Default: `30`
    """
    sweep: dict[str, Any]
    """The sweep that this run is a trial of, and when it stops early: name, metric, goal, rule,
    rungs or minStep, eta, startup (docs/sweeps.md); empty is none. Default: `{}`
    """
    budget_dollars: float
    """Dollars that the run's VMs may cost together, by the list prices at up; then the run makes
    a checkpoint and stops with the reason budget; 0: no budget. Default: `0.0`
    """

    # Where and on what
    zone: str
    """Zone of the VM; empty is gcp:zone. Default: `""`"""
    zones: list[Any]
    """Zones of one region, instead of zone: the VM is created in one with capacity, and
    recreated in another if necessary. Default: `[]`
    """
    region: str
    """Region, instead of zone: all of its zones may be used. Default: `""`"""
    machine_type: str
    """Machine type of the VM, a bare name. Default: `"e2-standard-2"`"""
    allow_unlisted: list[Any]
    """Regions, zones and machine types that are newer than Outlast's lists; they are not
    checked. Default: `[]`
    """
    mode: str
    """survive (resumes after any interruption), burst (a large machine, ends with its first
    failure) or dedicated (a VM that is not preempted). Default: `"survive"`
    """
    provisioning: str
    """spot (cheap and preemptible) or standard; empty is the mode's: standard for dedicated,
    else spot. Default: `""`
    """
    machine_types: list[Any]
    """Other machine types in order of preference, used if the region has no capacity for
    machineType; only with zones or region. Default: `[]`
    """
    accelerator: str
    """GPU that is attached to an N1 machine, such as nvidia-tesla-t4; machine types that include
    GPUs need none. Default: `""`
    """
    accelerator_count: int
    """Number of attached GPUs. Default: `0`"""
    local_ssd: int
    """How many local SSDs are attached; they are mounted as one disk, for data and snapshots.
    Default: `0`
    """
    min_cpu_platform: str
    """The oldest acceptable CPU platform, such as Intel Ice Lake; empty is any. Default: `""`
    """
    image: str
    """Image or image family of the boot disk; needs Python 3.11 to 3.13. Default:
    `"projects/debian-cloud/global/images/family/debian-13"`
    """
    image_recipe: dict[str, Any]
    """Recipe of the stack's own image, baked on top of outlast:image unless it names a base:
    family, packages, requirements, driver, cuda, script, data, trainers (docs/machines.md);
    empty bakes none. Default: `{}`
    """
    boot_disk_gb: int
    """Size of the boot disk. Default: `50`"""
    boot_disk_type: str
    """Type of the boot disk. Default: `"pd-balanced"`"""
    bucket: str
    """Bucket for all checkpoints and results, kept at destroy; empty is <gcp:project>-outlast.
    Default: `""`
    """
    bucket_mode: str
    """managed: the bucket is created, or adopted by its label; existing: someone else manages
    it, and it is used as it is. Default: `"managed"`
    """
    soft_delete_days: int
    """Days for which a managed bucket keeps deleted objects, 7 to 90, billed each day; 0 is
    none; a bucket that has more keeps its value. Default: `0`
    """
    versioning: bool
    """Whether a managed bucket keeps old versions of objects, billed until you delete them; a
    bucket with versioning keeps it. Default: `false`
    """

    # What is shared, and how VMs are reached
    part: str
    """What the stack declares: experiment, foundation (a bucket, network, role and image that
    experiments share), or sweep (the same with the identity of its trials' VMs; outlast sweep
    sets it). Default: `"experiment"`
    """
    foundation: str
    """Stack that declares the foundation of this experiment, by its name or as
    organization/project/stack; empty: the stack declares everything itself. Default: `""`
    """
    network: str
    """default, isolated (the stack's own network, without external addresses), or the name of an
    existing one. Default: `"default"`
    """
    subnetwork: str
    """Subnetwork of an existing network; empty is the network's own in the region. Default: `""`
    """
    ip_range: str
    """Addresses of an isolated network's subnetwork, as an IPv4 range. Default:
    `"10.128.0.0/20"`
    """
    external_ip: str
    """Whether VMs have external addresses, true or false; empty: in the default network only.
    Default: `""`
    """
    nat: bool
    """Whether VMs without external addresses reach the internet through a NAT; an isolated
    network gets one, an existing network must have one. Default: `false`
    """
    ssh: str
    """iap allows SSH through Identity-Aware Proxy and OS Login; empty allows none. Default: `""`
    """
    health: str
    """off, observe (the group shows which VM makes no progress) or repair (and replaces it).
    Default: `"off"`
    """
    health_limit_sec: int
    """Seconds without progress before a VM counts as unhealthy; 0: half of maxStallMinutes for
    observe, maxStallMinutes plus 600 s for repair. Default: `0`
    """
    labels: dict[str, Any]
    """Labels for every resource that can have labels, in addition to those of gcp:defaultLabels.
    Default: `{}`
    """
    resource_tags: dict[str, Any]
    """Resource Manager tags of the VM, such as tagKeys/281: tagValues/282; policies and
    firewalls of an organization can go by them. Default: `{}`
    """
    service_account: str
    """Address of an existing service account for the VM, where none may be created; it gets the
    same bindings; empty: the stack's own. Default: `""`
    """
    shielded_vm: bool
    """Whether VMs have Secure Boot, a virtual TPM and integrity monitoring. Default: `false`
    """
    confidential_vm: str
    """Technology that encrypts the VM's memory: SEV, SEV_SNP or TDX; empty is none. Default:
    `""`
    """
    kms_key: str
    """Cloud KMS key that encrypts the VM's boot disk and a bucket that Outlast creates:
    projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY; empty: Google's key.
    Default: `""`
    """
    webhook: str
    """An https address that gets a message when a run ends, is lost or needs a person
    (docs/operating.md); empty is none. Default: `""`
    """
    webhook_secret: str
    """Secret in Secret Manager that holds the webhook's address, if the address is a secret;
    NAME or projects/PROJECT/secrets/NAME; empty is none. Default: `""`
    """
    webhook_key_secret: str
    """Secret in Secret Manager that holds the key with which messages to the webhook are signed;
    NAME or projects/PROJECT/secrets/NAME; empty: they are not signed. Default: `""`
    """

    # Timeouts, in seconds
    notice_sec: int
    """Seconds of notice before a preemption: 120, or 0 for none. Default: `120`"""
    stop_sec: int
    """Seconds from SIGTERM to the end of the machine; 0 is what the platform gives: 30 for a
    Spot VM, 90 for a standard one. Default: `0`
    """
    heartbeat_sec: int
    """Seconds between two heartbeats in the bucket. Default: `10`"""
    failure_grace_sec: int
    """A failure counts only if the machine keeps running for this many seconds. Default: `45`
    """
    backoff_sec: int
    """Seconds to wait after the first refused call. Default: `10`"""
    iam_propagation_sec: int
    """Seconds that new permissions may take to reach the VM. Default: `600`"""
    silence_sec: int
    """Seconds without an answer from storage after which an attempt ends; from storage or the
    metadata server, after which a booting VM leaves its group. Default: `900`
    """
    driver_install_sec: int
    """Seconds that a VM with GPUs may take to install its driver. Default: `600`"""
    successor_silence_sec: int
    """Seconds without a heartbeat after which a successor counts as dead. Default: `600`"""
    storage_timeout_sec: int
    """Seconds that the upload of a chunk of 8 MiB may take before it is sent again; an answer
    may take twice as long. Default: `30`
    """
