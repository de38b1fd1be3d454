"""Checks machine types and combinations of settings: pure rules for `outlast/settings`.

`families.py` is the table. A machine type of an unknown family passes with a note, and one that is
newer than the table passes if `outlast:allowUnlisted` names it. `regions.py` says where machines
are.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.base.suggest import did_you_mean, nearest
from outlast.machines.families import (
    AS_OF,
    FAMILIES,
    MIGRATE,
    N1_GPUS,
    TERMINATE,
    Custom,
    Family,
)

SPOT, STANDARD, FLEX = "spot", "standard", "flex-start"
SURVIVE, BURST, DEDICATED = "survive", "burst", "dedicated"
MODES = (SURVIVE, BURST, DEDICATED)
STOP_SPOT_SEC, STOP_STANDARD_SEC = 30, 90
"""Seconds that the platform gives a system to shut down. For a standard VM, Google's page on
shutdown scripts says 90, the API's own text 120 (`skipGuestOsShutdown`, revision 20261106); the
lower counts.
"""
MOST_GPUS, MOST_SSDS = 16, 32
"""The most of any machine in the table; a family may allow fewer."""
RANKED_LIMIT = 10
"""The most machine types of one group; more are surely a mistake."""


CONFIDENTIAL = {
    "SEV": ("n2d", "c2d", "c3d", "c4d"),
    "SEV_SNP": ("n2d",),
    "TDX": ("c3",),
}
"""Families with each technology of Confidential VM (page "Supported configurations" of Confidential
VM, as known in November 2026; newer ones by `outlast:allowUnlisted`).
"""


class MachineError(ValueError):
    """An impossible combination: the setting, the value found, the rule and what to do."""

    def __init__(self, key: str, value: object, rule: str, action: str = "") -> None:
        """`action`: what to do, if it is not just to set the key."""
        key = key if ":" in key else f"outlast:{key}"
        super().__init__(f"{key} {value!r}: {rule}; {action or f'set {key}'}")


_CUSTOM = re.compile(
    r"(?:(?P<family>[a-z][a-z0-9]*)-)?custom-(?P<cpus>[0-9]+)-(?P<mb>[0-9]+)(?P<ext>-ext)?"
)
_SHARED_E2 = re.compile(r"e2-custom-(?P<size>micro|small|medium)-(?P<mb>[0-9]+)")
_HOW_MANY = re.compile(r"-([0-9]+)g(?:-|$)")
_SIZE = re.compile(r"-[0-9]+(?=g?(?:-|$))")
_A2_CPUS = {"1": 12, "2": 24, "4": 48, "8": 96, "16": 96}
_SHARED_N1 = ("f1", "g1")
_SHARED_E2_GB = {"micro": (1, 2), "small": (1, 4), "medium": (1, 8)}


@dataclass(frozen=True)
class Machine:
    """A parsed machine type."""

    type: str
    family: str
    """Its key in `FAMILIES`, or the first word of its name if the table does not have it."""
    cpus: int
    """0 if the name does not say."""
    memory_gb: float
    """0 if the table does not say."""

    @property
    def rules(self) -> Family | None:
        """None for a family that is not in the table."""
        return FAMILIES.get(self.family)

    @property
    def maintenance(self) -> str:
        """MIGRATE or TERMINATE if the platform accepts nothing else; empty for either, or
        unknown.
        """
        rules = self.rules
        if self.gpus or self.type.endswith("-metal"):
            return TERMINATE
        if rules is None:
            return ""
        return TERMINATE if self.type in rules.stopped else rules.maintenance

    @property
    def gpus(self) -> int:
        """GPUs that it includes."""
        rules = self.rules
        if rules is None or rules.gpu is None:
            return 0
        if rules.gpus is not None:
            return rules.gpus.get(str(self.cpus), 1)
        many = _HOW_MANY.search(self.type)
        return int(many[1]) if many else 1


@dataclass(frozen=True)
class Choice:
    """A stack's choice of machines; `check` says whether it is possible."""

    mode: str = SURVIVE
    provisioning: str = ""
    """Empty: the mode's."""
    machine_type: str = "e2-standard-2"
    more_types: tuple[str, ...] = ()
    """The other machine types, by rank."""
    accelerator: str = ""
    accelerator_count: int = 0
    local_ssd: int = 0
    min_cpu_platform: str = ""
    disk_type: str = "pd-balanced"
    regional: bool = False
    retries_failures: int = 0
    image: str = ""
    unlisted: tuple[str, ...] = ()
    """Machine types that are newer than the table; nothing about them is checked."""

    @property
    def types(self) -> tuple[str, ...]:
        """All machine types, by rank."""
        return (self.machine_type, *self.more_types)


@dataclass(frozen=True)
class Checked:
    """What follows from a possible choice."""

    spot: bool
    gpus: int
    """The least number of GPUs of its VMs."""
    restarts: bool
    """Whether a standard VM stops and boots again when its host is maintained; otherwise it is
    moved. Mode dedicated prefers stopping, if its machine types can be stopped.
    """
    modules: str
    """NVIDIA's kernel modules that its GPUs need; empty for either, or without GPUs."""
    advice: tuple[str, ...]


def check(choice: Choice) -> Checked:
    """Raises MachineError for the first impossible setting."""
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
            "a zonal group can have only one machine type",
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
    restarts = not spot and _stops(choice, machines)
    attached = N1_GPUS.get(choice.accelerator)
    kinds = [attached] if attached else [one.rules.gpu for one in machines if one.rules]
    modules = next((gpu.modules for gpu in kinds if gpu and gpu.modules), "")
    return Checked(spot, gpus, restarts, modules, tuple(_advice(choice, machines)))


def _stops(choice: Choice, machines: Sequence[Machine]) -> bool:
    """Whether a standard VM is stopped for its host's maintenance; all types share one template."""
    if choice.accelerator:
        return True
    only = {machine.type: machine.maintenance for machine in machines}
    moved = [name for name, way in only.items() if way == MIGRATE]
    stopped = [name for name, way in only.items() if way == TERMINATE]
    if moved and stopped:
        raise MachineError(
            "machineTypes",
            list(choice.more_types),
            f"while its host is maintained, {moved[0]} can only be moved and {stopped[0]} only be"
            " stopped, and all machine types of a group have one policy",
            f"leave out {moved[0]} or {stopped[0]}, or set outlast:provisioning spot",
        )
    return bool(stopped) or (choice.mode == DEDICATED and not moved)


def check_builder(key: str, name: str, disk_type: str, unlisted: Sequence[str] = ()) -> None:
    """Raises MachineError if no standard VM of this type can have such a boot disk."""
    machine = parse(name)
    rules = machine.rules
    if name in unlisted:
        return
    if rules is None:
        _check_name(key, name)
        return
    _check_size(key, machine, rules)
    why = ""
    if disk_type not in rules.disks:
        why = f"the builder's disk is {disk_type}, and it takes {either(rules.disks)}"
    elif name in rules.only_spot:
        why = "exists only as a Spot VM, and a builder is a standard VM"
    if why:
        raise MachineError(key, name, why, f"set outlast:{key} to e2-standard-8 for example")


def stop_sec(*, spot: bool) -> int:
    """Seconds from SIGTERM to the end of the machine."""
    return STOP_SPOT_SEC if spot else STOP_STANDARD_SEC


def parse(name: str) -> Machine:
    """Parses a machine type's name."""
    custom = _CUSTOM.fullmatch(name)
    if custom:
        family = custom["family"] or "n1"
        return Machine(name, family, int(custom["cpus"]), int(custom["mb"]) / 1024)
    shared = _SHARED_E2.fullmatch(name)
    if shared:
        return Machine(name, "e2", 0, int(shared["mb"]) / 1024)
    words = name.split("-")
    family = next(
        (f for f in ("-".join(words[:2]), words[0]) if f in FAMILIES),
        words[0],
    )
    many = _HOW_MANY.search(name)
    cpus = _A2_CPUS.get(many[1], 0) if many and words[0] == "a2" else 0 if many else _cpus(name)
    rules = FAMILIES.get(family)
    per_cpu = (rules.gb_per_cpu or {}) if rules else {}
    return Machine(name, family, cpus, per_cpu.get("-".join(words[1:2]), 0.0) * cpus)


def _cpus(name: str) -> int:
    """The number in its name, which counts GPUs if a `g` follows; 0 if there is none."""
    found = _SIZE.search(name)
    return int(found[0][1:]) if found else 0


# ---------------------------------------------------------------------------------------------
# Rules


def _provisioning(choice: Choice) -> bool:
    """Whether the VM is a Spot VM."""
    wanted = choice.provisioning or (STANDARD if choice.mode == DEDICATED else SPOT)
    if wanted == FLEX:
        raise MachineError(
            "provisioning",
            FLEX,
            "flex-start VMs are created once, by a resize request, in a group that repairs "
            "nothing: a VM that is lost is not recreated, and the run would stop",
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
    """Checks one machine type against its family's rules."""
    machine = parse(name)
    rules = machine.rules
    if name in choice.unlisted:
        return machine
    if rules is None:
        _check_name(key, name)
        return machine
    _check_shared(choice, machine)
    _check_size(key, machine, rules)
    if spot and not rules.spot:
        raise MachineError(
            "provisioning",
            SPOT,
            f"{name} does not exist as a Spot VM",
            "set outlast:provisioning standard",
        )
    if not spot and name in rules.only_spot:
        raise MachineError(
            "provisioning",
            STANDARD,
            f"{name} exists only as a Spot VM",
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
        which = either(rules.platforms) if rules.platforms else "only its own"
        raise MachineError(
            "minCpuPlatform",
            choice.min_cpu_platform,
            f"{name} has {which}",
            "set outlast:minCpuPlatform, or leave it empty",
        )
    return machine


def _check_name(key: str, name: str) -> None:
    """A family that is not in the table: a size must still follow."""
    if "-" not in name:
        hint = did_you_mean(name, (t for f in FAMILIES.values() for t in f.types))
        rule = f"must be a family and a size, such as e2-standard-2{hint and '; '}{hint}"
        raise MachineError(key, name, rule)


def _check_shared(choice: Choice, machine: Machine) -> None:
    if machine.family in _SHARED_N1 and choice.accelerator:
        raise MachineError(
            "accelerator",
            choice.accelerator,
            f"{machine.type} has a part of a CPU and takes no GPU",
            "set outlast:machineType n1-standard-4 for example",
        )


def _check_size(key: str, machine: Machine, rules: Family) -> None:
    """Checks that the type is in the table, or is a custom type."""
    custom = _CUSTOM.fullmatch(machine.type)
    if custom:
        _check_custom(key, machine, custom, rules.custom)
        return
    shared = _SHARED_E2.fullmatch(machine.type)
    if shared:
        least, most = _SHARED_E2_GB[shared["size"]]
        if not least * 1024 <= int(shared["mb"]) <= most * 1024 or int(shared["mb"]) % 256:
            raise MachineError(
                key,
                machine.type,
                f"e2-{shared['size']} takes {least * 1024} to {most * 1024} MB of memory, in"
                " multiples of 256",
            )
        return
    if machine.type in rules.types:
        return
    raise MachineError(
        key,
        machine.type,
        f"there is no such machine type; the nearest: {either(_nearest(machine, rules))}",
        f"set outlast:{key}, or name it in outlast:allowUnlisted too if it is newer than {AS_OF}",
    )


def _nearest(machine: Machine, rules: Family) -> list[str]:
    """The next smaller and larger type of the same kind, or similar names."""
    kind = _SIZE.sub("-#", machine.type)
    alike = [(_cpus(name), name) for name in rules.types if _SIZE.sub("-#", name) == kind]
    wanted = _cpus(machine.type)
    below = max((one for one in alike if one[0] < wanted), default=None)
    above = min((one for one in alike if one[0] > wanted), default=None)
    found = [one[1] for one in (below, above) if one]
    return found or nearest(machine.type, rules.types, most=3, cutoff=0)


def _check_custom(key: str, machine: Machine, custom: re.Match[str], rules: Custom | None) -> None:
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
    # Memory is a multiple of 256 MB.
    least_mb = math.ceil(rules.least_gb * cpus * 4) * 256
    most_mb = round(min(rules.most_gb * cpus, rules.total_gb) * 1024)
    if machine.memory_gb > rules.total_gb:
        raise MachineError(
            key,
            machine.type,
            f"no {machine.family} machine has more than {rules.total_gb * 1024} MB of memory",
        )
    if memory_mb < least_mb or (memory_mb > most_mb and not custom["ext"]):
        more = "; more takes -ext" if rules.extended else ""
        raise MachineError(
            key,
            machine.type,
            f"{cpus} CPUs take {least_mb} to {most_mb} MB of memory{more}",
        )


def _check_ssds(choice: Choice, machine: Machine, rules: Family) -> None:
    name, count = machine.type, choice.local_ssd
    gpu = N1_GPUS.get(choice.accelerator)
    if gpu and count > gpu.most_ssds:
        rule = f"beside {gpu.name} a machine takes at most {gpu.most_ssds}"
        raise MachineError("localSsd", count, rule, "set outlast:localSsd, or leave it out")
    if rules.ssds is not None:
        allowed = next((n for most, n in rules.ssds.items() if machine.cpus <= most), ())
        if machine.cpus and count not in allowed:
            rule = f"{name} takes {either(allowed)}" if allowed else f"{name} takes none"
            raise MachineError("localSsd", count, rule, "set outlast:localSsd, or leave it out")
        return
    suffix = "" if rules.own_ssds == "all" else rules.own_ssds
    if rules.own_ssds and suffix in name and not name.endswith("-nolssd"):
        why = f"{name} includes local SSDs, which are mounted automatically"
    elif suffix:
        why = f"{name} takes none; a type whose name ends in {suffix} includes its own"
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
                "outlast:accelerator, which it counts, is not set",
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
                f"{one.type} already has {one.gpus} {FAMILIES[one.family].gpu.name}",  # type: ignore[union-attr]
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
        hint = did_you_mean(name, N1_GPUS, f"must be {either(list(N1_GPUS))}")
        raise MachineError("accelerator", name, f"is not a GPU that can be attached; {hint}")
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
        if machine.type in choice.unlisted:
            said.append(
                f"outlast:machineType {machine.type}: is named in outlast:allowUnlisted; nothing"
                " about it is checked here"
            )
            continue
        if rules is None:
            hint = did_you_mean(machine.family, FAMILIES)
            said.append(
                f"outlast:machineType {machine.type}: family {machine.family} is not in Outlast's"
                f" table{f' ({hint})' if hint else ''}; nothing about it is checked here"
            )
            continue
        if rules.arm and "arm64" not in choice.image:
            said.append(
                f"outlast:machineType {machine.type}: its CPUs are Arm; outlast:image"
                f" {choice.image} must be an Arm image, and packages must exist for Arm"
            )
        gpu = N1_GPUS.get(choice.accelerator) or rules.gpu
        count = choice.accelerator_count or machine.gpus
        if gpu and machine.memory_gb:
            graphics_gb = count * gpu.memory_gb
            if not 2 * graphics_gb <= machine.memory_gb <= 4 * graphics_gb:
                said.append(
                    f"outlast:machineType {machine.type}: has {machine.memory_gb:g} GB of memory"
                    f" beside {graphics_gb} GB on its GPUs; 2 to 4 times as much is a good rule"
                )
        if len(rules.platforms) > 1 and (gpu or choice.min_cpu_platform):
            newest = rules.platforms[-1]
            if choice.min_cpu_platform != newest:
                said.append(
                    f"outlast:minCpuPlatform {choice.min_cpu_platform or 'is empty'}:"
                    f" {machine.family} machines have CPUs as new as {newest}; if the zone"
                    " has them, they are faster, and all VMs of the run are the same"
                )
    return said


def either(words: Sequence[object], last: str = "or") -> str:
    """Joins words for a sentence: `a, b or c`."""
    texts = [str(word) for word in words]
    return f" {last} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
