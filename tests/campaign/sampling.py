"""What a campaign trains, and what goes wrong with each run: drawn from the campaign's seed.

The same seed and number give the same run: its scenario, which is one that `outlast rehearse
--scenario` reads, and what its operator does, which a scenario cannot say. VMs live as long as
`draw: spot` says (docs/scenarios.md), on a scaled clock.
"""

import json
import random
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from outlast.cli.rehearsal.settings import LOCAL_PLACE
from outlast.localcloud.scenarios.lifetimes import death
from outlast.localcloud.scenarios.scenario import Lifetimes

DATA = f"gs://{LOCAL_PLACE['gcp:project']}-outlast/data/adult.data"
"""Made-up rows, which the campaign puts there."""
STACK = {
    "outlast:storageTimeoutSec": "2",
    "outlast:noticeSec": "10",
    "outlast:stopSec": "5",
}
"""Of every run. The notice is longer than in a rehearsal: some runs share two cores."""
SCALES = (0.003, 0.0003, 0.0001)
"""Of the lifetimes. In real life 54 % of the VMs live 0.78 h on average and the others 36 h: here
8.4 s and 389 s, 0.8 s and 39 s, or 0.3 s and 13 s."""
DEATHS_MOST = 5
BOOTS = (1, 1, 2, 3)
"""The boots that something happens to: many runs have no third one."""
FOREVER_SEC = 86_400.0
WITHIN_SEC = 420.0
SWEEP = "sweep"
SWEEP_RATES = (0.1, 0.2, 0.3)
MUST_HOLD = (
    *("same-bytes", "resumed", "committed-kept", "each-step-once", "single-lineage"),
    *("head-never-goes-back", "no-failure-counted", "no-vm-left", "only-bucket-left"),
    *("no-process-left", "reason-recorded"),
)
"""What every run must hold."""
UNDISTURBED = tuple(name for name in MUST_HOLD if name != "same-bytes")


@dataclass(frozen=True)
class Job:
    """What a run trains."""

    name: str
    settings: Mapping[str, Any]
    """Of its stack, by full key."""
    needs: tuple[str, ...] = ()
    """Modules that its VM must have."""


def _trainer(name: str, needs: tuple[str, ...], **args: Any) -> Job:
    named = {key.replace("_", "-"): value for key, value in args.items()}
    settings = {"outlast:trainer": name, "outlast:args": named}
    return Job(name.replace("_", "-"), settings, needs)


JOBS = (
    _trainer("dummy", ("numpy",), epochs=20, step_ms=20),
    Job(
        "command-marks",
        {
            "outlast:command": "n=$(cat {checkpoint}/n || echo 0);"
            " while [ $n -lt 24 ]; do n=$((n + 1)); echo $n > {checkpoint}/n;"
            " outlast mark; sleep 0.5; done; seq $n > {result}/numbers"
        },
    ),
    _trainer("digits", ("sklearn", "threadpoolctl"), limit_rows=900, epochs=120, eval_every=12),
    # It saves by itself, and never says when: the folder is copied when it has been quiet.
    Job(
        "command-saves",
        {
            "outlast:source": "examples/commands",
            "outlast:command": "PACE=4 python3 perceptron.py --epochs 6"
            " --checkpoints {checkpoint} --output {result}/weights.json",
            "outlast:checkpointQuietSec": "1",
        },
    ),
    _trainer(
        *("census", ("xgboost", "sklearn")),
        **{"data": DATA, "epochs": 200, "eval_every": 40, "cv_iterations": 4, "threads": 1},
    ),
    Job(SWEEP, {"outlast:trainer": "dummy", "outlast:args": {"epochs": 12, "step-ms": 20}}),
    _trainer(
        *("torch_cnn", ("torch", "safetensors", "sklearn")),
        **{"limit_rows": 900, "epochs": 16, "eval_every": 2, "threads": 1},
    ),
    _trainer(
        *("keras_mlp", ("keras", "torch", "sklearn")),
        **{"limit_rows": 900, "epochs": 36, "eval_every": 4, "threads": 1},
    ),
    _trainer(
        *("jax_mlp", ("jax", "optax", "sklearn")),
        **{"limit_rows": 900, "epochs": 48, "eval_every": 8, "threads": 1},
    ),
)
"""In the order in which the runs take turns."""


@dataclass(frozen=True)
class Operator:
    """What the operator does to a run."""

    cuts: tuple[float, ...] = ()
    """Moments of an `up` at which the engine and all that it has started are killed, as shares of
    the time that an undisturbed `up` took."""
    watch_sec: float | None = None
    """Seconds after which an `outlast watch` gets Ctrl-C; of a sweep, its `up`."""
    damages: bool = False
    """Whether the newest checkpoint's bytes are changed in the bucket after a sudden death."""

    @property
    def acts(self) -> bool:
        return self != Operator()


@dataclass(frozen=True, eq=False)
class Plan:
    """Faults that go together."""

    events: Sequence[Mapping[str, Any]]
    world: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """One run of a campaign, or one sweep."""

    name: str
    """Of its experiment, or sweep."""
    job: str
    scenarios: tuple[Mapping[str, Any], ...]
    """One; of a sweep, one for each trial."""
    operator: Operator = field(default_factory=Operator)

    @property
    def is_baseline(self) -> bool:
        """Whether it is its job's undisturbed run."""
        return self.name.startswith("b-")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Member":
        """Reads what `as_json` made."""
        operator = {**found["operator"], "cuts": tuple(found["operator"]["cuts"])}
        scenarios = tuple(found["scenarios"])
        return cls(found["name"], found["job"], scenarios, Operator(**operator))


def job_of(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def available(python: str) -> list[Job]:
    """The jobs whose packages an interpreter has."""
    needed = sorted({module for job in JOBS for module in job.needs})
    find = "import importlib.util as u, json, sys;"
    find += "print(json.dumps([m for m in sys.argv[1:] if u.find_spec(m)]))"
    done = subprocess.run(
        [python, "-c", find, *needed], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    return [job for job in JOBS if set(job.needs) <= set(found)]


def baseline(job: Job) -> Member:
    """The job's run without a fault."""
    scenarios = tuple(
        _document(f"baseline-{job.name}", "A run without faults.", 0, one, UNDISTURBED)
        for one in _trials(job)
    )
    return Member(f"b-{job.name}", job.name, scenarios)


def draw(seed: int, number: int, job: Job) -> Member:
    """The run of that number."""
    dice = random.Random(f"{seed}/{number}/operator")
    is_sweep = job.name == SWEEP
    planned = None if is_sweep else _planned(seed, number)
    cuts = tuple(_some(dice, 0.35, lambda: dice.uniform(0.1, 0.9)))
    operator = Operator(
        cuts=() if is_sweep or planned is DAMAGE else cuts,  # it damages only when it is up
        watch_sec=round(dice.uniform(1, 6), 1) if dice.random() < 0.5 else None,
        damages=planned is DAMAGE,
    )
    dice = random.Random(f"{seed}/{number}")
    scenarios = tuple(
        _scenario(seed, number, f"-{index}" if index else "", one, dice, planned)
        for index, one in enumerate(_trials(job), 1 if is_sweep else 0)
    )
    return Member(f"m{number}-{job.name}", job.name, scenarios, operator)


def _planned(seed: int, number: int) -> Plan | None:
    """What is not left to chance: of four runs in a row, one meets each plan, in a drawn order."""
    order = random.Random(f"{seed}/{number // TURNS}/plans").sample((*PLANS, None, None), TURNS)
    return order[number % TURNS]


def named(seed: int, name: str) -> Member:
    """The run of that name. Raises ValueError for another name."""
    match = re.fullmatch(r"m(\d+)-([a-z-]+)", name)
    if match is None or match[2] not in [job.name for job in JOBS]:
        raise ValueError(f"run {name!r}: must be as a campaign printed it, such as m12-digits")
    return draw(seed, int(match[1]), job_of(match[2]))


def _trials(job: Job) -> list[Job]:
    """The job itself; of a sweep, its trials."""
    if job.name != SWEEP:
        return [job]
    args = job.settings["outlast:args"]
    with_rate = ({**args, "learning-rate": rate} for rate in SWEEP_RATES)
    return [replace(job, settings={**job.settings, "outlast:args": each}) for each in with_rate]


def _document(
    name: str, about: str, seed: int, job: Job, guarantees: Sequence[str], **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "about": about,
        "seed": seed,
        "stack": {**STACK, **job.settings},
        **more,
        "expect": {
            "end": {"state": "done"},
            "within_sec": WITHIN_SEC,
            "guarantees": list(guarantees),
        },
    }


def _scenario(
    seed: int, number: int, part: str, job: Job, dice: random.Random, planned: Plan | None
) -> Mapping[str, Any]:
    own_seed = dice.randrange(1 << 31)
    drawn = Lifetimes(draw="spot", scale=dice.choice(SCALES), notice_share=0.6)
    found = [death(own_seed, drawn, boot) for boot in range(1, 2 * DEATHS_MOST)]
    ages = [round(one[0], 1) for one in found if one]
    world: dict[str, Any] = {}
    faults = [rule(dice) for rule in _some_of(dice, STORAGE, 0.6, 4)]
    faults += [rule(dice) for rule in _some_of(dice, CALLS, 0.4, 2)]
    if faults:
        world["faults"] = faults
    for condition in _some_of(dice, WORLD, 0.5, 2):
        world |= condition(dice)
    events = [event(dice) for event in _some_of(dice, PAUSES, 0.4, 2)]
    ended: list[Mapping[str, Any]] = [event(dice) for event in _some_of(dice, ENDINGS, 0.4, 1)]
    if planned is not None:
        ended = list(planned.events)
        world |= planned.world
    for event in ended:  # nothing else ends that boot
        ages[event["when"]["boot"] - 1] = FOREVER_SEC
    late = any("late-create" in event["do"] or "lost" in event["do"] for event in ended)
    world["lifetimes"] = {
        "ages_sec": ages,
        "notice_share": 0.6,
        "notice_sec": dice.choice((5, 10)),
        "deaths": DEATHS_MOST,
    }
    asked = list(MUST_HOLD)
    if not late:
        asked.append("only-faults-end-attempts")
    if not (faults or events or "network" in world):
        asked.append("notice-loses-nothing")
    about = f"Run {number} of the campaign with seed {seed}, {job.name}."
    return _document(
        *(f"campaign-{seed}-{number}{part}", about, own_seed, job, asked),
        world=world,
        events=[*ended, *events],
    )


Dice = random.Random
Draw = Callable[[random.Random], dict[str, Any]]


def _some(dice: Dice, chance: float, draw: Callable[[], float]) -> list[float]:
    """One value, or two, with that chance."""
    return [round(draw(), 3) for _ in range(dice.randint(1, 2))] if dice.random() < chance else []


def _some_of(dice: Dice, choices: Sequence[Draw], chance: float, most: int) -> list[Draw]:
    return dice.sample(choices, dice.randint(1, most)) if dice.random() < chance else []


def _rule(when: str = "before", *, count: int = 1, **parts: Any) -> Draw:
    """A fault rule: `do`, of the nth request that the other parts match."""

    def made(dice: Dice) -> dict[str, Any]:
        do = parts["do"]
        match = {key: value for key, value in parts.items() if key != "do"}
        match |= {"nth": dice.randint(1, 8), "count": dice.randint(1, count)}
        return {"match": match, "when": when, "do": do}

    return made


SNAPSHOT = "/s[0-9]{12}-"
STORAGE: Sequence[Draw] = (
    _rule(method="POST", path="/upload/", do={"status": 503}, count=3),
    _rule(method="POST", object="/HEAD$", do={"status": 429}, count=2),
    _rule(method="GET", object="/HEAD$", do={"status": 503, "retry_after_sec": 1}, count=2),
    _rule("after", method="POST", object="/HEAD$", do={"drop_answer": True}),
    _rule("after", method="POST", object="MANIFEST", do={"drop_answer": True}),
    _rule("after", method="POST", object="/END-r", do={"drop_answer": True}),
    _rule("mid-body", method="POST", object=SNAPSHOT, do={"reset": True}, count=2),
    _rule("mid-body", method="GET", object=SNAPSHOT, do={"reset": True}, count=2),
    _rule("mid-body", method="POST", object=SNAPSHOT, do={"stall": True}),
    _rule("mid-body", method="GET", object=SNAPSHOT, do={"stall": True}),
    _rule(method="POST", object="heartbeat", do={"delay_sec": 2}, count=2),
    _rule(method="POST", object="/metrics/", do={"reset": True}, count=2),
    _rule(method="POST", object="/result/", do={"status": 500}, count=2),
    _rule(method="GET", object=SNAPSHOT, do={"bytes_per_sec": 100_000}),
)
"""What storage does to one request, or a few."""
CALLS: Sequence[Draw] = (
    _rule(path="instanceGroupManagers/[^/]+/(deleteInstances|resize)", do={"status": 503}, count=2),
    _rule("after", path="instanceGroupManagers/[^/]+/(deleteInstances|resize)",
          do={"drop_answer": True}),
    _rule(method="GET", path="instanceGroupManagers/", do={"status": 503}, count=2),
    _rule(method="GET", path="instanceTemplates/", do={"status": 503}, count=2),
)  # fmt: skip
"""The same of Compute, for the VM and the engine."""
WORLD: Sequence[Draw] = (
    lambda dice: {"metadata": {"status": 503, "count": 2, "boots": [dice.choice(BOOTS)]}},
    lambda dice: {"metadata": {"late_sec": 2, "boots": [dice.choice(BOOTS)]}},
    lambda dice: {"network": {"late_sec": dice.randint(1, 4), "boots": [dice.choice(BOOTS)]}},
    lambda dice: {"iam_delay_sec": dice.randint(1, 4)},
    lambda dice: {
        "zones": {LOCAL_PLACE["gcp:zone"]: {"capacity": [_window(dice) | {"vms": 0}]}},
    },
    lambda dice: {"quota": [_window(dice) | {"metric": "PREEMPTIBLE_CPUS", "limit": 0}]},
    lambda dice: {
        "operations": [
            {"match": "POST zones/.*/instanceGroupManagers/.*", "delay_sec": dice.randint(1, 4)}
        ]
    },
)
"""Conditions from the start."""


def _window(dice: Dice) -> dict[str, int]:
    start = dice.choice((0, 0, dice.randint(5, 20)))
    return {"from_sec": start, "to_sec": start + dice.randint(2, 8)}


def _paused(action: str) -> Draw:
    return lambda dice: {
        "when": {"boot": dice.choice(BOOTS), "phase": "step", "nth": dice.randint(1, 6)},
        "do": {action: {"for_sec": dice.randint(1, 5)}},
    }


PAUSES: Sequence[Draw] = (_paused("freeze"), _paused("network-down"))


def _ended(action: str, options: Mapping[str, Any], phases: Sequence[str]) -> Draw:
    return lambda dice: {
        "when": {"boot": dice.choice(BOOTS), "phase": dice.choice(phases)},
        "do": {action: dict(options)},
    }


MIDDLE = ("step", "snapshot", "upload", "commit", "committed")


DAMAGE = Plan(
    ({"when": {"boot": 1, "phase": "committed", "commits": 2}, "do": {"kill": {}}},),
    {"network": {"late_sec": 10, "boots": [2]}},
)
"""The operator damages the newest checkpoint before the successor reads it; there is an older
one."""
ZOMBIE = Plan(
    (
        {
            "when": {"boot": 1, "phase": "committed", "commits": 1},
            "do": {"lost": {"frozen": True, "lives_sec": 120}},
        },
        {"when": {"boot": 2, "phase": "committed", "commits": 1}, "do": {"thaw": {"boot": 1}}},
    )
)
"""A VM is frozen while a successor works, and then continues."""
PLANS = (DAMAGE, ZOMBIE)
TURNS = 4
"""Runs, of which one meets each plan."""
ENDINGS: Sequence[Draw] = (
    _ended("kill", {}, ("boot", "setup", *MIDDLE, "final-upload", "end", "leaving")),
    _ended("preempt", {}, ("committed", "step")),
    _ended("stop", {}, ("committed", "step")),
    _ended("delete", {}, MIDDLE),
    _ended("lost", {"lives_sec": 60}, ("committed", "step")),
    _ended("lost", {"lives_sec": 60, "frozen_sec": 5}, MIDDLE),
    _ended("late-create", {"after_sec": 1, "lives_sec": 15}, ("committed",)),
)
"""Faults that end a boot, or make a second VM beside it."""
