"""What `--json` prints: one type for each document. `docs/json.md` is generated from them.

Later versions may add fields. Times are ISO 8601 in UTC, durations seconds, prices US dollars.
"""

from typing import Any, NotRequired, TypedDict


class Attempt(TypedDict):
    """One life of a VM on a run."""

    attempt: int
    """its number"""
    start: str
    end: str | None
    """null while it works"""
    reason: str | None
    """why it ended, null while it works"""
    instance: str
    """name of its VM"""
    zone: str
    from_step: int
    """step of the checkpoint that it resumed from; 0 for a fresh start"""
    step: int
    """last step in its records"""
    steps: int
    """steps that it made, including lost ones"""
    steps_lost: int
    """steps that the next attempt repeats"""
    changed: list[str]
    """what changed since the attempt before, in words"""
    why: str
    """message of a failure; else empty"""
    stderr: list[str]
    """last lines of a trainer that failed"""
    warnings: list[str]
    """warnings of the trainer"""
    last_heartbeat: str | None


class Wait(TypedDict):
    """What a run without a working attempt waits for."""

    what: str
    """`waiting`, `booting` or `never-started`"""
    since: str | None
    why: str
    serial: NotRequired[list[str]]
    """last lines on the serial port of a VM that never started"""


class Part(TypedDict):
    """One part of a run."""

    part: str
    step: int
    """its own steps"""
    done: bool


class Status(TypedDict):
    """How a run stands."""

    experiment: str
    run: str
    url: str
    """`gs://…` or a folder"""
    state: str
    """`waiting`, `booting`, `never-started`, `running`, `silent`, `lost`, `interrupted`, `expired`,
    `done`, `failed`, `stopped` or `pruned`"""
    reason: str | None
    """why the run ended"""
    why: str
    """why the trainer ended it before its last step; else empty"""
    step: int
    total: int | None
    """steps of the whole run, null until the trainer has said"""
    boots: int
    """recorded boots of VMs"""
    waits: Wait | None
    """null while an attempt works or nothing is expected"""
    deadline: str | None
    attempts: list[Attempt]
    rate: float | None
    """steps a second"""
    left_sec: int | None
    """seconds for the remaining steps"""
    silent_sec: int | None
    """seconds since the last heartbeat of an attempt that has not ended"""
    metrics: dict[str, Any]
    """last value of each metric"""
    metric_steps: dict[str, int]
    """the step of that value"""
    result: str | None
    """where a finished run's result is"""
    parts: NotRequired[list[Part]]
    """only of a run with parts"""


class Line(Status):
    """A run in a list."""

    dollars: float
    """what its VMs cost so far, as far as prices are known"""
    cost: str
    """the same in words: `$1.23`, `at least $1.23` or `unknown`"""
    pricesOf: str
    """date of the price list"""


class Price(TypedDict):
    """One item of a price."""

    what: str
    hour: float | None
    """dollars an hour, null if unknown"""


class Life(TypedDict):
    """One VM's life, as far as the bucket has records of it."""

    instance: str
    zone: str
    attempts: list[int]
    """those that it worked on"""
    start: str
    end: str | None
    """null while it works"""
    hours: float
    """billed"""
    items: list[Price]
    dollars: float
    unknown: list[str]
    """what has no known price"""


class Storage(TypedDict):
    """What a run keeps in the bucket."""

    gib: float
    gibMonth: float | None
    """dollars a GiB and month, null if unknown"""


class AttemptCost(TypedDict):
    """What one attempt cost, or a VM that never came to one."""

    attempt: int | None
    instance: str
    reason: str | None
    hours: float
    dollars: float
    committed: int
    """its steps that were kept"""


class Preemptions(TypedDict):
    """What interruptions of the platform cost."""

    count: int
    stepsLost: int
    lostHours: float
    """in which lost steps were made"""
    bootHours: float
    """of boots after which the run continued"""
    dollars: float


class OnDemand(TypedDict):
    """What the same steps cost without interruptions on VMs that are not Spot."""

    hours: float
    dollars: float


class Costs(TypedDict):
    """What a run has cost so far."""

    experiment: str
    run: str
    state: str
    pricesOf: str
    """date of the price list"""
    dollars: float
    hours: float
    unknown: list[str]
    vms: list[Life]
    attempts: list[AttemptCost]
    committed: int
    """step of the newest checkpoint, or the last step of a run that is done"""
    dollarsPerStep: float | None
    preemptions: Preemptions
    onDemand: OnDemand | None
    storage: Storage


class ProjectCosts(TypedDict):
    """What all runs cost: with --all."""

    pricesOf: str
    dollars: float
    unknown: list[str]
    preemptionDollars: float
    storageMonth: float
    unread: list[str]
    """what could not be read, a sentence each"""
    runs: list[Costs]


class RefreshedPrices(TypedDict):
    """A price list from Google's catalog: with --refresh-prices."""

    file: str
    date: str
    prices: int
    """how many it has"""
    regions: int
    ambiguous: int
    """prices with two values, which stay as they were"""


class Use(TypedDict):
    """What a part of a run's time was used for."""

    use: str
    google: str | None
    """Google's category"""
    sec: float


class Goodput(TypedDict):
    """The share of a run's time in which kept steps were made."""

    share: float
    scheduling: float
    """share of the time with a VM"""
    runtime: float
    """share of that in which kept steps were made"""
    program: None
    """not measured"""
    wall_sec: float
    causes: list[Use]


class Best(TypedDict):
    """A best checkpoint."""

    step: int
    part: str
    values: dict[str, Any]


class LogPath(TypedDict):
    """Where an attempt's output is."""

    attempt: int
    path: str


class Facts(Status):
    """What a report shows."""

    made: str
    """when it was read"""
    best: list[Best]
    interruptions: int
    """attempts that the platform ended"""
    steps_lost: int
    goodput: Goodput | None
    costs: Costs | None
    configuration: dict[str, dict[str, str]]
    """tables by their titles"""
    logs: list[LogPath]
    problems: list[str]
    """what could not be read, a sentence each"""


class TrialLine(TypedDict):
    """A trial in a leaderboard."""

    id: str
    experiment: str
    number: int | None
    parameters: dict[str, Any]
    state: str
    step: int
    total: int | None
    compared: bool
    """false: it has no value at the step of the comparison"""
    value: Any
    """of the metric at that step"""
    value_step: int | None
    best: Any
    best_step: int | None
    dollars: float
    url: str | None
    why: str
    """why it did not start, or failed"""


class TrialGroup(TypedDict):
    """Trials that differ in their seed only."""

    parameters: dict[str, Any]
    trials: list[str]
    mean: Any
    spread: Any


class Leaderboard(TypedDict):
    """The trials of a sweep, the best first."""

    sweep: str
    metric: str
    goal: str
    step: int | None
    """of the comparison"""
    best: str | None
    trials: list[TrialLine]
    groups: list[TrialGroup]
    earlier: int
    """trials of earlier code and parameters"""
    dollars: float
    dollars_known: bool


class PreviewedTrial(TypedDict):
    """A trial before it starts."""

    id: str
    number: int | None
    parameters: dict[str, Any]
    state: str
    """`new`, or how its run stands"""
    waits: str | None
    """why it does not start now"""


class SweepCost(TypedDict):
    """The worst cost of a sweep."""

    prices_of: str
    hour: float | None
    """of one trial, null if a price is unknown"""
    trial_hours: float
    trial: float | None
    all: float | None
    spent: float
    unknown: list[str]


class SweepPreview(TypedDict):
    """What a sweep would start."""

    sweep: str
    base: str
    trials: list[PreviewedTrial]
    equal_samples: int
    parallel: int
    starts: int
    cost: SweepCost
    budget: dict[str, float] | None
    hours: float | None
    limits: list[str]
    """what it needs of the project's limits, and which are too low"""
    warnings: list[str]


class SweepOutcome(TypedDict):
    """The trials of a sweep that were brought up or destroyed."""

    sweep: str
    done: list[str]
    failed: dict[str, str]
    """by experiment, why"""
    waiting: dict[str, str]
    """by experiment, why"""


class Asked(TypedDict):
    """A trial that an optimiser has added."""

    id: str
    experiment: str
    parameters: dict[str, Any]
    new: bool
    """false: there was one with these parameters"""


class SweepFacts(Leaderboard):
    """What a report about a sweep shows."""

    made: str
    states: dict[str, int]
    interruptions: int
    steps_lost: int
    problems: list[str]


class Checkpoint(TypedDict):
    """A kept checkpoint."""

    part: NotRequired[str]
    """only of a run with parts"""
    step: int
    term: int
    """the attempt that made it"""
    tags: str
    """separated by commas"""
    path: str
    init: str
    """the name by which another run starts from it"""


class LogLine(TypedDict):
    """A line that a trainer wrote, or of a serial port."""

    attempt: int
    """0 for a serial port without --attempt"""
    line: str


class Fetched(TypedDict):
    """A folder with verified files."""

    experiment: str
    run: str
    path: str
    files: list[str]
    step: int | None
    """of a checkpoint, null for a result"""
    written: list[str]
    """files that were made from the rows"""
    without: str
    """why there is no result beside the written files; else empty"""


class DataUse(TypedDict):
    """A run that names data."""

    experiment: str
    run: str
    state: str
    """`open`, `done`, `failed`, `stopped` or `pruned`"""


class DataListed(TypedDict):
    """Data of one name in the bucket."""

    name: str
    url: str
    files: int
    bytes: int
    crc32c: str
    """of the fingerprint, with the bytes"""
    used_by: list[DataUse]


class DataPushed(TypedDict):
    """Data as it is in the bucket after a push."""

    url: str
    files: int
    bytes: int
    crc32c: str
    """of the fingerprint, with the bytes"""
    sent: int
    """files that were not there, or had changed"""
    deleted: int


class Pulled(TypedDict):
    """A file or folder that was copied from a VM."""

    path: str
    files: int
    bytes: int


class Parameter(TypedDict):
    """One array of a file."""

    file: str
    name: str
    shape: list[int]
    dtype: str
    count: int
    norm: float | None
    """root of the sum of squares, null for what has none"""


class Trees(TypedDict):
    """A model of trees."""

    file: str
    trees: int
    nodes: int
    depth: int
    """of the deepest tree"""
    features: int
    objective: str


class Inspected(TypedDict):
    """What a result or checkpoint holds."""

    parameters: list[Parameter]
    trees: list[Trees]
    others: dict[str, str]
    """files that are only named, with the reason"""
    count: int
    """numbers in all parameters"""


class Stopped(TypedDict):
    """A run that was ended."""

    experiment: str
    run: str
    state: str
    """`stopped`, unless it ended otherwise meanwhile"""
    reason: str | None
    step: int
    steps_lost: int
    """steps since its newest checkpoint"""
    how: str
    """`checkpoint`: by its VM; `at-once`: no VM was at work, or --now; `timed-out`: its VM took too
    long"""
    why: str
    """why no checkpoint was taken; else empty"""


class Upped(TypedDict):
    """A stack that is up. Pulumi's own output goes to stderr."""

    experiment: str
    """empty for a foundation"""
    recovered: bool
    """whether an interrupted update was recovered first"""
    commit: str | None
    """the commit that --latest has set"""
    why: str
    """why its group creates no VM; else empty"""


class Destroyed(TypedDict):
    """A stack that was destroyed. Pulumi's own output goes to stderr."""

    experiment: str
    recovered: bool
    """whether an interrupted update was recovered first"""
    left: str
    """what stays of its run, in words; empty for nothing"""


class Recovered(TypedDict):
    """A stack after a recovery."""

    experiment: str
    recovered: bool
    """false: there was nothing to recover"""
    resources: list[str]
    """those that were being created, now in the state if they exist"""


class Resumed(TypedDict):
    """A run that the next up reopens, or that was set back."""

    experiment: str
    resume: int | None
    """the counter's new value; null for a run without a stack"""
    step: int
    """where it resumes"""
    dropped: int
    """newer checkpoints that were given up"""
    keeps_name: bool
    """whether outlast:run keeps its name, because its content changed"""
    changed: list[str]


class Repaired(TypedDict):
    """A run whose HEAD is repaired."""

    experiment: str
    state: str
    step: int
    set_aside: int
    """newer checkpoints that could not be used"""


class HandedOver(TypedDict):
    """A run that belongs to another stack."""

    run: str
    """its path now"""
    owner: str
    before: str
    """the owner until now"""
    step: int
    copied: bool
    """whether it was copied into another bucket"""


class RunChange(TypedDict):
    """What a change does to one run."""

    run: str
    then: str
    step: int | None
    why: str


class StackCost(TypedDict):
    """The cost of a stack before or after a change."""

    hour: float
    day: float
    limit: float
    """dollars to the run's limit or budget, with the dearest machine type"""
    budget: float | None
    hours: float
    """that it may still run"""
    unknown: list[str]
    items: list[Price]


class CostChange(TypedDict):
    """What a change does to the bill."""

    pricesOf: str
    before: StackCost
    after: StackCost
    bakes: list[str]
    storage: list[str]


class Broken(TypedDict):
    """A broken rule."""

    rule: str
    resource: str
    why: str


class Review(TypedDict):
    """What an up would do. A preview that is refused prints `stack`, `refused` and `exitCode`."""

    stack: str
    runs: NotRequired[list[RunChange]]
    changes: NotRequired[dict[str, list[str]]]
    """resources by what happens to them"""
    cost: NotRequired[CostChange]
    warnings: NotRequired[list[str]]
    broken: NotRequired[list[Broken]]
    notChecked: NotRequired[list[str]]
    advice: NotRequired[list[str]]
    refused: NotRequired[str]
    """why no preview was made"""
    exitCode: int


class Fault(TypedDict):
    """A fault that happened."""

    do: str
    boot: int | None
    """number of the VM's boot"""
    attempt: int | None
    planned: NotRequired[str]
    """what the scenario asks for, where Google has something similar only"""


class Guarantee(TypedDict):
    """A guarantee and whether it was held."""

    name: str
    promise: str
    verdict: str
    """`held`, `broken` or `not exercised`"""
    held: bool
    detail: str


class Rehearsal(TypedDict):
    """The report of a rehearsal."""

    scenario: str
    experiment: str
    run: str
    end: str
    held: bool
    """whether every guarantee was"""
    seconds: float
    metrics: dict[str, Any]
    result: str | None
    """its digest"""
    goodput: float | None
    goodput_baseline: float | None
    faults: list[Fault]
    parts: NotRequired[list[Part]]
    attempts: list[Attempt]
    attempts_baseline: list[Attempt]
    guarantees: list[Guarantee]


class Assumption(TypedDict):
    """An assumption about Google."""

    name: str
    says: str
    outcome: str
    """`holds`, `does not hold` or `could not be asked`"""
    seen: str


class WorstCost(TypedDict):
    """What a rehearsal on Google can cost at most."""

    dollars: float
    parts: dict[str, float]


class OnGoogle(TypedDict):
    """The report of a rehearsal on Google."""

    on: str
    outlast: str
    began: str
    zone: str
    image: str
    machine_type: str
    worst_cost: WorstCost
    assumptions: list[Assumption]
    left: list[str]
    """what may still exist"""
    run: NotRequired[Rehearsal]


class Finding(TypedDict):
    """Something that no stack owns, or that outlived its run."""

    kind: str
    name: str
    why: str
    stack: str
    """project/stack/experiment of its labels; empty for what is in a bucket"""
    dollarsMonth: float
    """what it costs a month, as far as prices are known"""
    unknown: list[str]
    """what has no known price"""
    held: str
    """why it is only removed with --open-runs; else empty"""


class Audit(TypedDict):
    """What exists in a Google project although no stack owns it."""

    project: str
    pricesOf: str
    """date of the price list"""
    findings: list[Finding]
    dollarsMonth: float
    """of all findings, as far as prices are known"""
    waiting: list[str]
    """what is not judged yet, and why"""
    kept: list[str]
    """buckets that keep runs without a stack"""
    otherProjects: dict[str, int]
    """resources of each other Pulumi project, which were not looked at"""
    unread: list[str]
    """what could not be looked at, and why"""
    exitCode: int


class ToPrune(TypedDict):
    """Something that a prune deletes."""

    kind: str
    """`run`, `checkpoints`, `bundle` or `environment`"""
    url: str
    why: str
    bytes: int
    dollarsMonth: float
    """what it costs a month, as far as the price is known"""
    unknown: list[str]
    """what has no known price"""


class Prune(TypedDict):
    """What a prune would delete; with `--yes`, it then does."""

    items: list[ToPrune]
    bytes: int
    pricesOf: str
    """date of the price list"""
    left: list[str]
    """what stays although the rule names it, and why"""
    unread: list[str]
    """what could not be read, and why"""


class Checked(TypedDict):
    """One check of `outlast doctor`."""

    name: str
    verdict: str
    """`ok`, `warning` or `problem`"""
    says: str
    """one sentence and what to do, or what was found"""


class Diagnosis(TypedDict):
    """What would keep an `up` from working; without secrets."""

    outlast: str
    """its version"""
    project: str
    by: str
    """what named the project"""
    stack: str
    """empty without one"""
    checks: list[Checked]
    exitCode: int
