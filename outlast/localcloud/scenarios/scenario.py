"""A scenario file: planned faults of the local cloud, and their times; see `docs/scenarios.md`.

The whole file is checked before any of it happens. `director.py` plays it.

    ScenarioError           the mistake in a scenario: one sentence that names the place
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from outlast.localcloud.base import switches
from outlast.localcloud.base.checked import (
    Count,
    Ordinal,
    Part,
    Pattern,
    Sec,
    sentence_of,
)
from outlast.localcloud.base.errors import UsageError
from outlast.localcloud.compute.catalogue import has_zone
from outlast.localcloud.compute.fleet.model import Switches as ComputeSwitches
from outlast.localcloud.faults.rules import FaultRule
from outlast.localcloud.storage.store import Switches as StorageSwitches

PHASES = (
    *("boot", "setup", "step", "snapshot", "upload", "commit", "committed"),
    *("final-upload", "end", "leaving"),
)
"""Phases of a VM's life, in order; `moments.MOMENTS` says how each is noticed."""
BEFORE_ATTEMPT = ("boot", "setup")
ONCE_A_BOOT = ("boot", "setup", "end")
"""Phases that a boot reaches at most once."""
SWITCHES = (ComputeSwitches, StorageSwitches)
"""The switches that a scenario can set."""
STEPPED = ("step", "snapshot", "upload", "commit", "committed")
"""Phases that have a step, and so a share of all steps."""


MAX_BYTES = 1 << 20
"""Maximum size of a file, in bytes."""


class ScenarioError(UsageError):
    """The mistake in a scenario: one sentence that names the place."""


def _zone(value: Any) -> Any:
    if isinstance(value, str) and not has_zone(value):
        raise ValueError("the local cloud has no such zone")
    return value


def _switches(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of switches")
    for name, setting in value.items():
        kind = next((one for one in SWITCHES if name in switches.names(one)), None)
        if kind is None:
            known = ", ".join(known for one in SWITCHES for known in switches.names(one))
            raise ValueError(f"{name!r} is not a switch; must be one of {known}")
        try:
            switches.checked(kind, name, setting)
        except ValueError as error:
            raise ValueError(f"{name} {setting!r}: {error}") from None
    return value


def _setting_name(name: Any) -> Any:
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][-a-z0-9]*:[a-zA-Z][a-zA-Z0-9]*", name)):
        raise ValueError("must be the whole name of a setting, such as outlast:trainer")
    return name


def _setting(value: Any) -> Any:
    """Checks a setting of a stack, with the values that a stack's own file may have."""
    match value:
        case None:
            raise ValueError('is empty; must be a value, or "" for none')
        case dict():
            if unfit := [key for key in value if not isinstance(key, str)]:
                raise ValueError(f"key {unfit[0]!r}: must be text")
            return {key: _setting(item) for key, item in value.items()}
        case list():
            return [_setting(item) for item in value]
        case float() if not math.isfinite(value):
            raise ValueError("must be a finite number")
        case str() | bool() | int() | float():
            return value
    raise ValueError(
        f"is of type {type(value).__name__}; must be text, a number, a list or a mapping"
    )


Share = Annotated[float, Field(ge=0, le=1)]
Zone = Annotated[str, BeforeValidator(_zone)]
Metric = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
Family = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
SettingName = Annotated[str, BeforeValidator(_setting_name)]
Setting = Annotated[Any, BeforeValidator(_setting)]
Boots = Annotated[list[Ordinal], Field(min_length=1)] | None
"""Boots of the target's VMs, from 1; None: all."""


class Window(Part):
    """A period in seconds; without an end, it never ends."""

    from_sec: Sec = 0
    to_sec: Sec | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "Window":
        if self.to_sec is not None and self.to_sec <= self.from_sec:
            raise ValueError(f"to_sec {self.to_sec:g}: must be after from_sec {self.from_sec:g}")
        return self


class Capacity(Window):
    """The number of the target's VMs for which a zone has room."""

    vms: Count


class ZoneWorld(Part):
    capacity: list[Capacity] = []


class Quota(Window):
    """A limit of the region that only the target's VMs use up."""

    metric: Metric
    limit: Count


class Lifetimes(Part):
    """The lifetimes of the target's VMs, by boot."""

    draw: Literal["spot"] | None = None
    """From the fitted lifetimes of Spot VMs, `lifetimes.LIVES`."""
    scale: Annotated[float, Field(gt=0)] = 1
    ages_sec: Annotated[list[Sec], Field(min_length=1)] | None = None
    """One for each boot; later boots do not end."""
    notice_share: Share = 1
    """Share of the deaths that are preemptions with a notice; the others are sudden."""
    notice_sec: Sec | None = None
    deaths: Ordinal | None = None
    """Maximum number of deaths; later boots do not end."""

    @model_validator(mode="after")
    def _one_source(self) -> "Lifetimes":
        if (self.draw is None) == (self.ages_sec is None):
            raise ValueError("must have either draw or ages_sec")
        return self


class DailyPreemption(Part):
    """Every VM of the target is preempted at the same time, periodically."""

    every_sec: Annotated[float, Field(gt=0)] = 86400
    at_sec: Sec = 0
    notice_sec: Sec | None = None

    @model_validator(mode="after")
    def _within(self) -> "DailyPreemption":
        if self.at_sec >= self.every_sec:
            raise ValueError(f"at_sec {self.at_sec:g}: must be below every_sec {self.every_sec:g}")
        return self


class Network(Part):
    """A boot has no network for its first seconds, not even to the metadata server."""

    late_sec: Sec
    boots: Boots = None


class MetadataTrouble(Part):
    """Faults of the metadata server at a boot, before it answers normally."""

    late_sec: Sec = 0
    status: Literal[429, 500, 503] | None = None
    count: Ordinal = 1
    """Number of requests that get `status`."""
    boots: Boots = None

    @model_validator(mode="after")
    def _some(self) -> "MetadataTrouble":
        if not (self.late_sec or self.status):
            raise ValueError("must have late_sec or status")
        return self


class Tools(Part):
    """Commands that the guest does not find."""

    missing: Annotated[list[Annotated[str, Field(pattern=r"^[^/\s]+$")]], Field(min_length=1)]
    boots: Boots = None


class Driver(Part):
    """Boots whose GPU driver does not start: `nvidia-smi` fails."""

    fails_at_boots: Annotated[list[Ordinal], Field(min_length=1)]


class Shutdown(Part):
    """Losses of a stopping VM before its processes have ended, in seconds after the stop began."""

    network_lost_sec: Sec | None = None
    gpu_lost_sec: Sec | None = None
    gpu_process: Pattern = r"-m outlast.trainers"

    @model_validator(mode="after")
    def _some(self) -> "Shutdown":
        if self.network_lost_sec is None and self.gpu_lost_sec is None:
            raise ValueError("must have network_lost_sec or gpu_lost_sec")
        return self


class OperationError(Part):
    code: Metric
    message: Annotated[str, Field(min_length=1)]


class Operations(Part):
    """Operations of Compute that are slow, or fail without an effect."""

    match: Pattern
    """Searched in `METHOD path`, such as `POST .*/instanceGroupManagers$`."""
    delay_sec: Sec = 0
    error: OperationError | None = None
    count: Count = 1
    """Number of operations; 0: all."""

    @model_validator(mode="after")
    def _some(self) -> "Operations":
        if not (self.delay_sec or self.error):
            raise ValueError("must have delay_sec or error")
        return self


class World(Part):
    """The conditions from the start."""

    zones: dict[Zone, ZoneWorld] = {}
    quota: list[Quota] = []
    iam_delay_sec: Sec = 0
    switches: Annotated[dict[str, Any], BeforeValidator(_switches)] = {}
    faults: list[FaultRule] = []
    lifetimes: Lifetimes | None = None
    daily_preemption: DailyPreemption | None = None
    network: Network | None = None
    metadata: MetadataTrouble | None = None
    tools: Tools | None = None
    driver: Driver | None = None
    shutdown: Shutdown | None = None
    operations: list[Operations] = []


class When(Part):
    """A moment: of the world, by `at_sec` alone, or of a VM's life."""

    at_sec: Sec | None = None
    boot: Ordinal | None = None
    attempt: Ordinal | None = None
    phase: Literal[PHASES] | None = None  # type: ignore[valid-type]
    share: Share | None = None
    part: str | None = None
    commits: Count = 0
    nth: Ordinal = 1
    after_sec: Sec = 0

    @property
    def moment(self) -> str:
        """The phase, or the implied one if none is named."""
        if self.phase is not None:
            return self.phase
        late = (self.attempt, self.share, self.part)
        return "step" if any(value is not None for value in late) else "boot"

    @model_validator(mode="after")
    def _possible(self) -> "When":
        if self.at_sec is not None:
            others = sorted(self.model_fields_set - {"at_sec"})
            if others:
                raise ValueError(f"at_sec is a moment of the world; must be without {others[0]}")
            return self
        early = [key for key in ("attempt", "share", "part", "commits") if getattr(self, key)]
        if self.moment in BEFORE_ATTEMPT and early:
            raise ValueError(
                f"{early[0]} {getattr(self, early[0])}: phase {self.moment!r} comes before an "
                "attempt has begun; must be with a later phase, or name the boot"
            )
        if self.share is not None and self.moment not in STEPPED:
            raise ValueError(
                f"share {self.share:g}: phase {self.moment!r} has no step; must be one of "
                f"{', '.join(STEPPED)}"
            )
        if self.nth > 1 and self.moment in ONCE_A_BOOT:
            raise ValueError(f"nth {self.nth}: phase {self.moment!r} comes once a boot; must be 1")
        return self


class Nothing(Part):
    """An action without options."""


class Preempt(Part):
    notice_sec: Sec | None = None
    grace_sec: Sec | None = None


class ForSec(Part):
    for_sec: Sec | None = None


class Thaw(Part):
    boot: Ordinal | None = None
    attempt: Ordinal | None = None

    @model_validator(mode="after")
    def _one_vm(self) -> "Thaw":
        if self.boot is not None and self.attempt is not None:
            raise ValueError(f"boot {self.boot} and attempt {self.attempt}: must be one of them")
        return self


class Lost(Part):
    lives_sec: Sec | None = None
    frozen_sec: Sec = 0
    frozen: bool = False


class StaysStopping(Part):
    for_sec: Annotated[float, Field(gt=0)]


class Maintenance(Part):
    notice_sec: Sec | None = None
    """None: the platform's own, 60 s, or an hour for VMs with GPUs."""


class Signal(Part):
    process: Pattern
    signal: Literal["KILL", "STOP", "CONT", "ABRT", "TERM"]


class GpuDown(Part):
    process: Pattern = r"-m outlast.trainers"


class SetCapacity(Part):
    zone: Zone
    vms: Count = 0
    for_sec: Sec | None = None


class SetQuota(Part):
    metric: Metric
    limit: Count = 0
    for_sec: Sec | None = None


class NewImage(Part):
    family: Family


class LateCreate(Part):
    after_sec: Sec = 0
    lives_sec: Sec | None = None


class Do(Part):
    """One action: the key is its name, the value holds its options."""

    kill: Nothing | None = None
    preempt: Preempt | None = None
    freeze: ForSec | None = None
    thaw: Thaw | None = None
    stop: Nothing | None = None
    delete: Nothing | None = None
    lost: Lost | None = None
    stays_stopping: StaysStopping | None = Field(None, alias="stays-stopping")
    maintenance: Maintenance | None = None
    signal: Signal | None = None
    network_down: ForSec | None = Field(None, alias="network-down")
    out_of_memory: Nothing | None = Field(None, alias="out-of-memory")
    gpu_down: GpuDown | None = Field(None, alias="gpu-down")
    capacity: SetCapacity | None = None
    quota: SetQuota | None = None
    fault: FaultRule | None = None
    new_image: NewImage | None = Field(None, alias="new-image")
    late_create: LateCreate | None = Field(None, alias="late-create")

    @model_validator(mode="before")
    @classmethod
    def _without_options(cls, value: Any) -> Any:
        """`kill:` means `kill: {}`."""
        if not isinstance(value, dict):
            return value
        return {key: {} if options is None else options for key, options in value.items()}

    @model_validator(mode="after")
    def _just_one(self) -> "Do":
        if len(self.model_fields_set) != 1:
            given = ", ".join(sorted(name.replace("_", "-") for name in self.model_fields_set))
            raise ValueError(f"must have exactly one action, has {given or 'none'}")
        return self

    @property
    def action(self) -> str:
        """The action's name, as in the file."""
        (name,) = self.model_fields_set
        return name.replace("_", "-")

    @property
    def options(self) -> Any:
        (name,) = self.model_fields_set
        return getattr(self, name)


class Event(Part):
    """An action and its moment; `times` 0: at every such moment."""

    when: When
    do: Do
    times: Count = 1

    @model_validator(mode="after")
    def _possible(self) -> "Event":
        if self.when.at_sec is not None and self.times != 1:
            raise ValueError(f"times {self.times}: a moment of the world comes once; must be 1")
        for key in ("boot", "attempt"):
            number = getattr(self.when, key)
            if number is not None and self.times > 1:
                raise ValueError(f"times {self.times}: {key} {number} comes once; must be 1")
        return self


class End(Part):
    state: Literal["done", "failed", "stopped", "open", "waiting", "never-started", "expired"]
    reason: str | None = None


class Expect(Part):
    """The results that the rehearsal must find; the cloud only passes them on."""

    end: End = End(state="done")
    within_sec: Annotated[float, Field(gt=0)] | None = None
    guarantees: list[str] = []


class Scenario(Part):
    """A whole file."""

    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
    about: Annotated[str, Field(min_length=1)]
    seed: int = 0
    speed: Annotated[float, Field(gt=0, le=100_000)] = 1
    stack: dict[SettingName, Setting] = {}
    world: World = World()
    events: list[Event] = []
    expect: Expect = Expect()

    @model_validator(mode="after")
    def _one_rule_an_id(self) -> "Scenario":
        """Refuses two fault rules with one id: the second would replace the first."""
        acting = (event.do.options for event in self.events if event.do.action == "fault")
        ids = [rule.id for rule in (*self.world.faults, *acting) if rule.id is not None]
        for rule_id in ids:
            if ids.count(rule_id) > 1:
                raise ValueError(f"id {rule_id!r} of a fault: is there twice; must be one rule's")
        return self

    def document(self) -> dict[str, Any]:
        """The scenario as JSON, with its defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class _Refused(yaml.constructor.ConstructorError):
    """YAML that is refused."""


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML readers take the last, and aliases, with which a few
    lines may fill the memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"*{event.anchor} is an alias; write out what it stands for"
            raise _Refused(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"key {key.value!r} is there twice; keep one"
                raise _Refused(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Scenario:
    """Reads the scenario of a file, which must have the file's name. Raises ScenarioError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ScenarioError(f"{path}: is above {MAX_BYTES} bytes; name a scenario file")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise ScenarioError(f"{path}: {reason.lower()}; name a scenario file") from None
    try:
        loaded = yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0].partition(";")[0]
        said = problem if isinstance(error, _Refused) else f"is not YAML ({problem})"
        raise ScenarioError(f"{path}: {place}{said}") from None
    if loaded is None:
        raise ScenarioError(f"{path}: is empty; docs/scenarios.md lists the keys of a scenario")
    scenario = check(loaded)
    if scenario.name != path.stem:
        raise ScenarioError(f"name {scenario.name!r}: must be the file's own, {path.stem!r}")
    return scenario


def check(document: Any) -> Scenario:
    """Checks a document; raises ScenarioError with the first mistake."""
    if not isinstance(document, dict):
        raise ScenarioError("scenario: must be a mapping; docs/scenarios.md lists the keys")
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise ScenarioError(sentence_of(error, "scenario")) from None
