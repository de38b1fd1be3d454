"""Which machines there are, and what goes together: pure rules that `settings.py` asks.

`FAMILIES` is the one table: GPUs, local SSDs, disk types, CPU platforms, custom types, Spot. What
it does not know it does not refuse: a machine type of a new family passes with a word of advice.

Sources, as of November 2026: which machines have GPUs and the scheduling rules, the discovery
document of the Compute API, revision 20261106, and Compute Engine's page "Accelerator-optimized
machine family"; which families bring their local SSDs and which take a count, its page "Add Local
SSD". Disk types, counts of SSDs by size, CPU platforms, limits of N1 beside GPUs and ranges of
custom types follow Compute Engine's pages on each family and were not read again line by line:
where the API takes what this table refuses, the table is wrong.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SPOT, STANDARD, FLEX = "spot", "standard", "flex-start"
SURVIVE, BURST, DEDICATED = "survive", "burst", "dedicated"
MODES = (SURVIVE, BURST, DEDICATED)
RANKED_LIMIT = 10
"""Machine types of one group; more choices than that are a slip."""

PERSISTENT = ("pd-standard", "pd-balanced", "pd-ssd")
HYPERDISK = ("hyperdisk-balanced", "hyperdisk-extreme", "hyperdisk-throughput")

Counts = Mapping[int, tuple[int, ...]]
"""By the most CPUs that it holds for: how many local SSDs may be attached."""


class MachineError(ValueError):
    """A combination that cannot be: the setting, the value found, the rule and what to do."""

    def __init__(self, key: str, value: object, rule: str, action: str = "") -> None:
        """`action`: what to do, where it is not just to set the key."""
        action = action or f"set outlast:{key}"
        super().__init__(f"outlast:{key} {value!r}: {rule}; {action}")


@dataclass(frozen=True)
class Gpu:
    """A GPU model of its own machines, or for N1."""

    name: str
    """As the API names it."""
    memory_gb: int
    cpus: Mapping[int, int] = field(default_factory=dict)
    """For N1: by how many are attached, the most CPUs of the machine."""


@dataclass(frozen=True)
class Custom:
    """Custom machine types of a family: `n2-custom-8-16384`."""

    least_cpus: int
    most_cpus: int
    steps: Mapping[int, int]
    """By the most CPUs that it holds for: CPUs come in multiples of it."""
    least_gb: float
    most_gb: float
    """Memory by CPU; `-ext` lifts the upper bound."""
    extended: bool = True


@dataclass(frozen=True)
class Family:
    """What goes with the machine types whose names begin with the family's."""

    disks: tuple[str, ...] = (*PERSISTENT, *HYPERDISK)
    ssds: Counts | None = None
    """None: a count is not taken, since the family has none, or they come by themselves."""
    own_ssds: str = ""
    """Which of its types bring local SSDs by themselves: `all`, or a suffix of their names."""
    platforms: tuple[str, ...] = ()
    """CPU platforms that can be asked for, the newest last."""
    gpu: Gpu | None = None
    """The model that its machines have already."""
    gpus: Mapping[str, int] | None = None
    """By machine type where the name does not say it (`-8g`): how many it has."""
    gb_per_cpu: Mapping[str, float] | None = None
    """Memory by CPU of its predefined types, by their middle word; where it is advised on."""
    custom: Custom | None = None
    spot: bool = True
    only_spot: tuple[str, ...] = ()
    """Its machine types that come as Spot (or flex-start) VMs and no other way."""


N1_GPUS = {
    "nvidia-tesla-t4": Gpu("nvidia-tesla-t4", 16, {1: 48, 2: 48, 4: 96}),
    "nvidia-tesla-p4": Gpu("nvidia-tesla-p4", 8, {1: 24, 2: 48, 4: 96}),
    "nvidia-tesla-p100": Gpu("nvidia-tesla-p100", 16, {1: 16, 2: 32, 4: 96}),
    "nvidia-tesla-v100": Gpu("nvidia-tesla-v100", 16, {1: 12, 2: 24, 4: 48, 8: 96}),
}
"""What an N1 machine takes, and nothing else does."""

_N1_SSDS = {10**6: (*range(1, 9), 16, 24)}
_N2_SSDS = {
    10: (1, 2, 4, 8, 16, 24),
    20: (2, 4, 8, 16, 24),
    40: (4, 8, 16, 24),
    80: (8, 16, 24),
    128: (16, 24),
}
_N2D_SSDS = {
    16: (1, 2, 4, 8, 16, 24),
    48: (2, 4, 8, 16, 24),
    80: (4, 8, 16, 24),
    224: (8, 16, 24),
}
_L4 = Gpu("nvidia-l4", 24)
_H100 = Gpu("nvidia-h100-80gb", 80)
_NO_PD_STANDARD = ("pd-balanced", "pd-ssd", *HYPERDISK)

FAMILIES: Mapping[str, Family] = {
    # General purpose
    "e2": Family(
        disks=(*PERSISTENT, "hyperdisk-balanced"),
        custom=Custom(2, 32, {32: 2}, 0.5, 8, extended=False),
    ),
    "n1": Family(
        disks=(*PERSISTENT, *HYPERDISK),
        ssds=_N1_SSDS,
        platforms=(
            *("Intel Sandy Bridge", "Intel Ivy Bridge", "Intel Haswell"),
            *("Intel Broadwell", "Intel Skylake"),
        ),
        gb_per_cpu={"standard": 3.75, "highmem": 6.5, "highcpu": 0.9, "megamem": 14.9},
        custom=Custom(1, 96, {1: 1, 96: 2}, 0.9, 6.5),
    ),
    "n2": Family(
        disks=(*PERSISTENT, "pd-extreme", *HYPERDISK),
        ssds=_N2_SSDS,
        platforms=("Intel Cascade Lake", "Intel Ice Lake"),
        custom=Custom(2, 128, {32: 2, 128: 4}, 0.5, 8),
    ),
    "n2d": Family(
        ssds=_N2D_SSDS,
        platforms=("AMD Rome", "AMD Milan"),
        custom=Custom(2, 96, {2: 2, 4: 4, 8: 8, 96: 16}, 0.5, 8),
    ),
    "n4": Family(disks=HYPERDISK, custom=Custom(2, 80, {80: 2}, 2, 8)),
    "n4a": Family(disks=HYPERDISK),
    "n4d": Family(disks=HYPERDISK),
    "t2d": Family(disks=PERSISTENT, platforms=("AMD Milan",)),
    "c3": Family(disks=_NO_PD_STANDARD, own_ssds="-lssd"),
    "c3d": Family(disks=_NO_PD_STANDARD, own_ssds="-lssd"),
    "c4": Family(disks=HYPERDISK, own_ssds="-lssd"),
    "c4a": Family(disks=HYPERDISK, own_ssds="-lssd"),
    "c4d": Family(disks=HYPERDISK, own_ssds="-lssd"),
    # Compute-, storage- and memory-optimised
    "c2": Family(
        disks=PERSISTENT,
        ssds={8: (1, 2, 4, 8), 16: (2, 4, 8), 30: (4, 8), 60: (8,)},
        platforms=("Intel Cascade Lake",),
    ),
    "c2d": Family(
        disks=PERSISTENT,
        ssds={16: (1, 2, 4, 8), 32: (2, 4, 8), 56: (4, 8), 112: (8,)},
        platforms=("AMD Milan",),
    ),
    "h3": Family(disks=("pd-balanced", *HYPERDISK)),
    "h4d": Family(disks=HYPERDISK, own_ssds="-lssd"),
    "z3": Family(disks=_NO_PD_STANDARD, own_ssds="all"),
    "m3": Family(disks=_NO_PD_STANDARD, ssds={64: (4, 8), 128: (8,)}),
    # With GPUs
    "g2": Family(
        disks=_NO_PD_STANDARD,
        ssds={16: (1,), 24: (2,), 32: (1,), 48: (4,), 96: (8,)},
        platforms=("Intel Cascade Lake",),
        gpu=_L4,
        gpus={"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8},
        gb_per_cpu={"standard": 4},
    ),
    "g4": Family(
        disks=HYPERDISK,
        ssds={48: (4,), 96: (8,), 192: (16,), 384: (32,)},
        gpu=Gpu("nvidia-rtx-pro-6000", 96),
        # Below 48 CPUs the machine has a part of one.
        gpus={"6": 1, "12": 1, "24": 1, "48": 1, "96": 2, "192": 4, "384": 8},
    ),
    "a2-highgpu": Family(
        ssds={12: (1, 2, 4, 8), 24: (2, 4, 8), 48: (4, 8), 96: (8,)},
        platforms=("Intel Cascade Lake",),
        gpu=Gpu("nvidia-tesla-a100", 40),
    ),
    "a2-megagpu": Family(
        ssds={96: (8,)},
        platforms=("Intel Cascade Lake",),
        gpu=Gpu("nvidia-tesla-a100", 40),
    ),
    "a2-ultragpu": Family(
        own_ssds="all", platforms=("Intel Cascade Lake",), gpu=Gpu("nvidia-a100-80gb", 80)
    ),
    "a3-highgpu": Family(
        disks=_NO_PD_STANDARD,
        own_ssds="all",
        gpu=_H100,
        only_spot=("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"),
    ),
    "a3-edgegpu": Family(disks=_NO_PD_STANDARD, own_ssds="all", gpu=_H100),
    "a3-megagpu": Family(
        disks=_NO_PD_STANDARD, own_ssds="all", gpu=Gpu("nvidia-h100-mega-80gb", 80)
    ),
    "a3-ultragpu": Family(disks=HYPERDISK, own_ssds="all", gpu=Gpu("nvidia-h200-141gb", 141)),
    "a4": Family(disks=HYPERDISK, own_ssds="all", gpu=Gpu("nvidia-b200", 180)),
    "a4x": Family(disks=HYPERDISK, own_ssds="all", gpu=Gpu("nvidia-gb200", 186), spot=False),
}

_CUSTOM = re.compile(
    r"(?:(?P<family>[a-z][a-z0-9]*)-)?custom-(?P<cpus>\d+)-(?P<mb>\d+)(?P<ext>-ext)?"
)
_CPUS = re.compile(r"-(\d+)(?:-(?:lssd|metal|highlssd|standardlssd))?$")
_HOW_MANY = re.compile(r"-(\d+)g(?:-|$)")
_A2_CPUS = {"1": 12, "2": 24, "4": 48, "8": 96, "16": 96}
_SHARED_N1 = ("f1", "g1")


@dataclass(frozen=True)
class Machine:
    """A machine type, taken apart."""

    type: str
    family: str
    """Its key in `FAMILIES`, or the first word of its name where the table has none."""
    cpus: int
    """0 where the name does not say."""
    memory_gb: float
    """0 where the table does not say."""

    @property
    def rules(self) -> Family | None:
        """None: a family that the table does not know."""
        return FAMILIES.get(self.family)

    @property
    def gpus(self) -> int:
        """GPUs that it has without being asked."""
        rules = self.rules
        if rules is None or rules.gpu is None:
            return 0
        if rules.gpus is not None:
            return rules.gpus.get(str(self.cpus), 1)
        many = _HOW_MANY.search(self.type)
        return int(many[1]) if many else 1


@dataclass(frozen=True)
class Choice:
    """What a stack asks for; `check` says whether it can be."""

    mode: str = SURVIVE
    provisioning: str = ""
    """Empty: as the mode has it."""
    machine_type: str = "e2-standard-2"
    more_types: tuple[str, ...] = ()
    """By rank after the first."""
    accelerator: str = ""
    accelerator_count: int = 0
    local_ssd: int = 0
    min_cpu_platform: str = ""
    disk_type: str = "pd-balanced"
    regional: bool = False
    retries_failures: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        """All of them, by rank."""
        return (self.machine_type, *self.more_types)


@dataclass(frozen=True)
class Checked:
    """What follows from a choice that can be."""

    spot: bool
    gpus: int
    """GPUs that each of its VMs has at least."""
    restarts: bool
    """A standard VM whose host is maintained stops and boots again; any other is moved."""
    advice: tuple[str, ...]


@dataclass(frozen=True)
class Location:
    """Where the group is: in a zone, or in zones of a region."""

    region: str
    zone: str = ""
    """Empty where the group is regional."""
    zones: tuple[str, ...] = ()
    """Of a regional group; empty: all of the region's."""


def locate(zone: str, region: str, zones: Sequence[str], *, default: str = "") -> Location:
    """`default`: the zone where nothing is said. MachineError: they contradict each other."""
    if not zones and not region:
        zone = zone or default
        return Location(zone.rpartition("-")[0], zone)
    key, value = ("zones", list(zones)) if zones else ("region", region)
    if zone:
        raise MachineError(
            "zone",
            zone,
            f"is one zone, beside outlast:{key} {value}",
            f"leave outlast:zone or outlast:{key} out",
        )
    regions = sorted({one.rpartition("-")[0] for one in zones} | ({region} if region else set()))
    if len(regions) > 1:
        raise MachineError(
            key, value, f"a group has zones of one region, these are in {' and '.join(regions)}"
        )
    if len(zones) == 1 or len(set(zones)) < len(zones):
        raise MachineError(
            "zones",
            list(zones),
            "must be two zones or more, each once",
            "set outlast:zones, or outlast:zone for a single one",
        )
    return Location(regions[0], "", tuple(zones))


def check(choice: Choice) -> Checked:
    """MachineError: the first thing that cannot be."""
    spot = _provisioning(choice)
    if choice.mode == BURST and choice.retries_failures:
        raise MachineError(
            "retriesFailures",
            choice.retries_failures,
            "a burst run ends with its first failure",
            "set outlast:retriesFailures 0, or outlast:mode survive",
        )
    if choice.more_types and not choice.regional:
        raise MachineError(
            "machineTypes",
            list(choice.more_types),
            "a zonal group takes one machine type",
            "set outlast:zones to zones of one region, or leave it out",
        )
    if len(set(choice.types)) < len(choice.types) or len(choice.types) > RANKED_LIMIT:
        raise MachineError(
            "machineTypes",
            list(choice.more_types),
            f"must name at most {RANKED_LIMIT - 1} others, each once and none of them"
            f" {choice.machine_type}",
        )
    machines = []
    for rank, name in enumerate(choice.types):
        key = "machineTypes" if rank else "machineType"
        machines.append(_machine(key, name, choice, spot=spot))
    _check_accelerator(choice, machines)
    gpus = min(choice.accelerator_count or machine.gpus for machine in machines)
    if not gpus and any(machine.gpus for machine in machines):
        raise MachineError(
            "machineTypes",
            list(choice.more_types),
            "some have GPUs and some have none",
            "name machine types with GPUs, or without",
        )
    restarts = not spot and (choice.mode == DEDICATED or gpus > 0)
    return Checked(spot, gpus, restarts, tuple(_advice(choice, machines)))


def parse(name: str) -> Machine:
    """Takes a machine type's name apart."""
    custom = _CUSTOM.fullmatch(name)
    if custom:
        family = custom["family"] or "n1"
        return Machine(name, family, int(custom["cpus"]), int(custom["mb"]) / 1024)
    words = name.split("-")
    family = next(
        (f for f in ("-".join(words[:2]), words[0]) if f in FAMILIES),
        words[0],
    )
    found = _CPUS.search(name)
    many = _HOW_MANY.search(name)
    cpus = int(found[1]) if found else _A2_CPUS.get(many[1], 0) if many and words[0] == "a2" else 0
    rules = FAMILIES.get(family)
    per_cpu = (rules.gb_per_cpu or {}) if rules else {}
    return Machine(name, family, cpus, per_cpu.get("-".join(words[1:2]), 0.0) * cpus)


# ---------------------------------------------------------------------------------------------
# Rules


def _provisioning(choice: Choice) -> bool:
    """Whether the VM is a Spot VM."""
    if choice.mode not in MODES:
        raise MachineError("mode", choice.mode, f"must be {', '.join(MODES[:-1])} or {MODES[-1]}")
    wanted = choice.provisioning or (STANDARD if choice.mode == DEDICATED else SPOT)
    if wanted == FLEX:
        raise MachineError(
            "provisioning",
            FLEX,
            "flex-start VMs come once, by a resize request, to a group that repairs nothing: a VM"
            " that is lost is not made anew, and the run would stand still",
            "set outlast:provisioning spot or standard",
        )
    if wanted not in (SPOT, STANDARD):
        raise MachineError(
            "provisioning",
            wanted,
            "must be spot or standard",
            "set outlast:provisioning, or leave it empty for the mode's",
        )
    if wanted == SPOT and choice.mode == DEDICATED:
        raise MachineError(
            "provisioning",
            SPOT,
            "mode dedicated is a VM that is not preempted",
            "set outlast:provisioning standard, or outlast:mode survive",
        )
    return wanted == SPOT


def _machine(key: str, name: str, choice: Choice, *, spot: bool) -> Machine:
    """One machine type against the family's rules."""
    machine = parse(name)
    rules = machine.rules
    if rules is None:
        _check_shared(choice, machine)
        return machine
    _check_custom(key, machine)
    if spot and not rules.spot:
        raise MachineError(
            "provisioning",
            SPOT,
            f"{name} is not there as a Spot VM",
            "set outlast:provisioning standard",
        )
    if not spot and name in rules.only_spot:
        raise MachineError(
            "provisioning",
            STANDARD,
            f"{name} is there as a Spot VM only",
            "set outlast:provisioning spot, or a whole machine such as a3-highgpu-8g",
        )
    if choice.disk_type not in rules.disks:
        raise MachineError(
            "bootDiskType",
            choice.disk_type,
            f"{name} takes {either(rules.disks)}",
        )
    if choice.local_ssd:
        _check_ssds(choice, machine, rules)
    if choice.min_cpu_platform and choice.min_cpu_platform not in rules.platforms:
        which = either(rules.platforms) if rules.platforms else "no other than its own"
        raise MachineError(
            "minCpuPlatform",
            choice.min_cpu_platform,
            f"{name} has {which}",
            "set outlast:minCpuPlatform, or leave it empty",
        )
    return machine


def _check_shared(choice: Choice, machine: Machine) -> None:
    if machine.family in _SHARED_N1 and choice.accelerator:
        raise MachineError(
            "accelerator",
            choice.accelerator,
            f"{machine.type} has part of a CPU and takes no GPU",
            "set outlast:machineType n1-standard-4 for example",
        )


def _check_custom(key: str, machine: Machine) -> None:
    custom = _CUSTOM.fullmatch(machine.type)
    if custom is None:
        return
    rules = FAMILIES[machine.family].custom
    if rules is None:
        having = [name for name, family in FAMILIES.items() if family.custom]
        raise MachineError(
            key, machine.type, f"{machine.family} has no custom types; {either(having)} have"
        )
    cpus, memory_mb = machine.cpus, int(custom["mb"])
    step = next((step for most, step in rules.steps.items() if cpus <= most), 1)
    if not rules.least_cpus <= cpus <= rules.most_cpus or cpus % step:
        raise MachineError(
            key,
            machine.type,
            f"must have {rules.least_cpus} to {rules.most_cpus} CPUs, here a multiple of {step}",
        )
    if memory_mb % 256:
        raise MachineError(
            key, machine.type, f"memory is {memory_mb} MB, must be a multiple of 256"
        )
    if custom["ext"] and not rules.extended:
        raise MachineError(key, machine.type, f"{machine.family} has no extended memory (-ext)")
    least, most = rules.least_gb * cpus, rules.most_gb * cpus
    if machine.memory_gb < least or (machine.memory_gb > most and not custom["ext"]):
        more = "; more takes -ext" if rules.extended else ""
        raise MachineError(
            key,
            machine.type,
            f"{cpus} CPUs take {round(least * 1024)} to {round(most * 1024)} MB of memory{more}",
        )


def _check_ssds(choice: Choice, machine: Machine, rules: Family) -> None:
    name, count = machine.type, choice.local_ssd
    if rules.ssds is not None:
        allowed = next((n for most, n in rules.ssds.items() if machine.cpus <= most), ())
        if machine.cpus and count not in allowed:
            rule = f"{name} takes {either(allowed)}" if allowed else f"{name} takes none"
            raise MachineError("localSsd", count, rule, "set outlast:localSsd, or leave it out")
        return
    if rules.own_ssds == "all" or (rules.own_ssds and name.endswith(rules.own_ssds)):
        why = f"{name} brings its local SSDs, which are mounted by themselves"
    elif rules.own_ssds:
        why = f"{name} takes none; a type whose name ends in {rules.own_ssds} brings its own"
    else:
        why = f"{name} takes none"
    raise MachineError("localSsd", count, why, "leave it out")


def _check_accelerator(choice: Choice, machines: Sequence[Machine]) -> None:
    name, count = choice.accelerator, choice.accelerator_count
    if not name:
        if count:
            raise MachineError(
                "acceleratorCount",
                count,
                "there is no outlast:accelerator that it counts",
                "leave it out, or set outlast:accelerator",
            )
        return
    machine = machines[0]
    attached = [family for family in FAMILIES.values() if family.gpu and family.gpu.name == name]
    for one in machines:
        if one.gpus:
            raise MachineError(
                "accelerator",
                name,
                f"{one.type} has {one.gpus} {FAMILIES[one.family].gpu.name} already",  # type: ignore[union-attr]
                "leave it out",
            )
    if attached:
        families = [key for key, family in FAMILIES.items() if family in attached]
        raise MachineError(
            "accelerator",
            name,
            f"is part of the machine types of {either(families)}",
            f"leave it out and set outlast:machineType to one of {families[0]}",
        )
    if name not in N1_GPUS:
        near = difflib.get_close_matches(name, N1_GPUS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"must be {either(list(N1_GPUS))}"
        raise MachineError("accelerator", name, f"is no GPU that can be attached; {hint}")
    if machine.family != "n1":
        raise MachineError(
            "accelerator",
            name,
            f"{machine.type} takes no GPU, only N1 machines do",
            "leave it out, or set outlast:machineType n1-standard-4 for example",
        )
    if choice.more_types:
        raise MachineError(
            "machineTypes",
            list(choice.more_types),
            "a choice of machine types cannot have GPUs attached",
            "leave it out, or choose machine types that have GPUs, such as g2-standard-8",
        )
    most = N1_GPUS[name].cpus
    if count not in most:
        raise MachineError("acceleratorCount", count, f"must be {either(sorted(most))} for {name}")
    if machine.cpus > most[count]:
        raise MachineError(
            "machineType",
            machine.type,
            f"beside {count} {name} a machine has at most {most[count]} CPUs",
            "choose a smaller one, or set outlast:acceleratorCount higher",
        )


# ---------------------------------------------------------------------------------------------
# Advice


def _advice(choice: Choice, machines: Sequence[Machine]) -> list[str]:
    said = []
    for machine in machines:
        rules = machine.rules
        if rules is None:
            near = difflib.get_close_matches(machine.family, FAMILIES, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            said.append(
                f"outlast:machineType {machine.type}: family {machine.family} is not in Outlast's"
                f" table{hint}; nothing about it is checked here"
            )
            continue
        gpu = N1_GPUS.get(choice.accelerator) or rules.gpu
        count = choice.accelerator_count or machine.gpus
        if gpu and machine.memory_gb:
            graphics_gb = count * gpu.memory_gb
            if not 2 * graphics_gb <= machine.memory_gb <= 4 * graphics_gb:
                said.append(
                    f"outlast:machineType {machine.type}: has {machine.memory_gb:g} GB of memory"
                    f" beside {graphics_gb} GB on its GPUs; 2 to 4 times as much is a good measure"
                )
        if len(rules.platforms) > 1 and (gpu or choice.min_cpu_platform):
            newest = rules.platforms[-1]
            if choice.min_cpu_platform != newest:
                said.append(
                    f"outlast:minCpuPlatform {choice.min_cpu_platform or 'is empty'}:"
                    f" {machine.family} machines come with CPUs as new as {newest}; where the zone"
                    " has them, they are faster, and all VMs of the run are alike"
                )
    return said


def either(words: Sequence[object]) -> str:
    """The words as a sentence has them: `a, b or c`."""
    texts = [str(word) for word in words]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
