"""The sweep file: what a researcher asks for. Every mistake is one sentence."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outlast.base.suggest import did_you_mean
from outlast.cli.errors import UsageError
from outlast.cli.sweep.sampling import Choices, Number, Range, Space, grid, sample, size
from outlast.spec import sweeps

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TRIALS_MAX = 1000
"""Each trial has a template and a group, and projects have quotas for both."""
PARALLEL = 4
SUFFIXES = (".yaml", ".yml")
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")
"""A number such as 1e-4, which YAML 1.1 reads as a text."""
_FLAG = re.compile(r"[a-z][-a-z0-9]*")
_RANGE_KEYS = ("min", "max", "step", "log")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Amount = Annotated[float, Field(gt=0, le=1e9)]


class Budget(_Part):
    """What all trials together may cost."""

    dollars: Amount | None = None
    hours: Amount | None = None
    """Hours of VMs."""


class Document(_Part):
    """A sweep file as it is written; `Sweep` says what it means."""

    name: str = ""
    base: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    search: Literal["grid", "random", "ask"] = "grid"
    seed: int = Field(0, ge=0, lt=2**63)
    trials: int | None = Field(None, ge=1, le=TRIALS_MAX)
    parallel: int = Field(PARALLEL, ge=1, le=TRIALS_MAX)
    budget: Budget | None = None
    metric: str = ""
    goal: Literal["max", "min", ""] = ""
    stopping: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked."""

    name: str
    asked: Document
    spaces: Mapping[str, Space]

    def points(self) -> list[tuple[int, dict[str, Any]]]:
        """The parameters of each trial with its number; two may be equal. Empty if another
        optimiser asks for them.
        """
        asked = self.asked
        if asked.search == "ask":
            return []
        if asked.search == "grid":
            points = itertools.islice(grid(self.spaces), asked.trials)
            return list(enumerate(points))
        numbers = range(asked.trials or 0)
        return [(number, sample(self.spaces, asked.seed, number)) for number in numbers]

    def as_document(self) -> dict[str, Any]:
        """As the sweep's record keeps it, for `parse`."""
        found = self.asked.model_dump(exclude_defaults=True)
        return {**found, "name": self.name}


def read(path: Path) -> Sweep:
    """The sweep of a file. Raises UsageError."""
    import yaml

    where = str(path)
    try:
        text = path.read_text()
        _refuse_twice(where, yaml.compose(text, Loader=yaml.SafeLoader))
        document = yaml.safe_load(text)
    except FileNotFoundError:
        raise UsageError(f"{where}: there is no such file; name a sweep file.") from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(f"{where}: is not YAML ({why}{line}); correct the file.") from None
    return parse(document, where, name=path.name.partition(".")[0])


def _refuse_twice(where: str, node: Any) -> None:
    """Refuses a key that is there twice: YAML readers take the last one."""
    import yaml

    waiting = [node]
    met: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in met:  # An alias, perhaps of something that it is in.
            continue
        met.add(id(one))
        if isinstance(one, yaml.SequenceNode):
            waiting += one.value
        if not isinstance(one, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, value in one.value:
            waiting.append(value)
            if str(key.value) in seen:
                line = key.start_mark.line + 1
                raise UsageError(f"{where}: {key.value}: is there twice, in line {line} too.")
            seen.add(str(key.value))


def short(grids: Sequence[str], base: str, *, where: str = "--grid", **others: Any) -> Sweep:
    """The sweep of a command line: `NAME=VALUE,VALUE` for each parameter of a grid. Raises
    UsageError.
    """
    import yaml

    parameters: dict[str, list[Any]] = {}
    for text in grids:
        name, equals, values = text.partition("=")
        if not (equals and values):
            raise UsageError(f"{where} {text}: must be PARAMETER=VALUE,VALUE.")
        if name in parameters:
            raise UsageError(f"{where} {text}: {name} is there twice; give all its values at once.")
        try:
            parameters[name] = [yaml.safe_load(one) for one in values.split(",")]
        except (yaml.YAMLError, ValueError):  # the latter for a date that does not exist
            raise UsageError(f"{where} {text}: a value is not a number or a text.") from None
    document = {"base": base, "parameters": parameters, **others}
    return parse(document, where, name=base)


def parse(document: Any, where: str, *, name: str = "") -> Sweep:
    """The sweep that a document describes; `name`: if the document has none. Raises UsageError."""
    if not isinstance(document, dict):
        raise UsageError(
            f"{where}: must be a mapping with base and parameters, found"
            f" {type(document).__name__}; correct the file."
        )
    try:
        asked = Document.model_validate(document)
    except ValidationError as error:
        raise _refusal(where, error.errors(include_url=False)[0]) from None
    name = asked.name or name
    if not sweeps.NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{where}: name {name!r}: {sweeps.NAME_RULE}; set name.")
    if not asked.base:
        raise UsageError(f"{where}: base '': must name a stack; set base.")
    spaces = {key: _space(where, key, value) for key, value in asked.parameters.items()}
    found = Sweep(name, asked, spaces)
    _check_search(where, found)
    _check_budget(where, asked.budget)
    _check_metric(where, asked)
    return found


def _check_search(where: str, sweep: Sweep) -> None:
    asked = sweep.asked
    if asked.search == "ask":
        if asked.trials is not None:
            raise UsageError(
                f"{where}: trials {asked.trials} beside search ask: an optimiser asks for as many"
                " as it wants; leave out trials."
            )
        return
    if not sweep.spaces:
        raise UsageError(
            f"{where}: parameters: is empty, and search {asked.search} needs one; name one with"
            " its values, or set search to ask."
        )
    if asked.search == "random":
        if asked.trials is None:
            raise UsageError(f"{where}: trials: is missing, and search random needs it; set it.")
        return
    for name, space in sweep.spaces.items():
        if isinstance(space, Range) and (space.log or not (space.step or space.is_whole)):
            raise UsageError(
                f"{where}: parameters.{name} {_shown(asked.parameters[name])}: a grid needs a list"
                " or a step; give one, or set search to random."
            )
    points = size(sweep.spaces)
    if min(points, asked.trials or points) > TRIALS_MAX:
        raise UsageError(
            f"{where}: parameters: their grid has {points} trials, and a sweep has at most"
            f" {TRIALS_MAX}; give fewer values, or set search to random with trials."
        )


def _check_budget(where: str, budget: Budget | None) -> None:
    if budget is not None and (budget.dollars is None) == (budget.hours is None):
        raise UsageError(f"{where}: budget: must have either dollars or hours.")


def _check_metric(where: str, asked: Document) -> None:
    if asked.metric and not asked.goal:
        raise UsageError(f"{where}: goal: is missing beside metric; set it to max or min.")
    if asked.goal and not asked.metric:
        raise UsageError(f"{where}: goal {asked.goal!r}: needs a metric; set metric as well.")
    if asked.stopping and not asked.metric:
        raise UsageError(f"{where}: stopping: needs a metric; set metric and goal.")


def _space(where: str, name: str, value: Any) -> Space:
    field = f"{where}: parameters.{name}"
    if not isinstance(name, str) or not _FLAG.fullmatch(name):
        raise UsageError(
            f"{field}: must be a flag in lower case, without leading dashes, such as learning-rate."
        )
    if isinstance(value, list):
        if not value:
            raise UsageError(f"{field} []: must have a value; give one, or leave out {name}.")
        values = tuple(_number(one) for one in value)
        for one in values:
            if not isinstance(one, bool | int | float | str) or (
                isinstance(one, float) and not math.isfinite(one)
            ):
                raise UsageError(
                    f"{field} {_shown(one)}: must be a finite number, a text, true or false."
                )
        return Choices(values)
    if isinstance(value, dict):
        return _range(field, value)
    raise UsageError(
        f"{field} {_shown(value)}: must be a list of values, or a range such as"
        " {min: 0.001, max: 0.1, log: true}."
    )


def _range(field: str, value: Mapping[str, Any]) -> Range:
    for key in value:
        if key not in _RANGE_KEYS:
            hint = did_you_mean(key, _RANGE_KEYS, f"known are {', '.join(_RANGE_KEYS)}.")
            raise UsageError(f"{field}.{key}: is not known; {hint}")
    numbers: dict[str, Number] = {}
    for key in ("min", "max", "step"):
        given = _number(value.get(key))
        if given is None and key == "step":
            continue
        if given is None:
            raise UsageError(f"{field}.{key}: is missing; a range has min and max.")
        if not _is_finite(given):
            raise UsageError(f"{field}.{key} {_shown(given)}: must be a finite number.")
        numbers[key] = given
    least, most, step = numbers["min"], numbers["max"], numbers.get("step")
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise UsageError(f"{field}.log {_shown(log)}: must be true or false.")
    if least >= most:
        raise UsageError(
            f"{field}: min {least} is not below max {most}; swap them, or give a list."
        )
    if log and least <= 0:
        raise UsageError(
            f"{field}.min {least}: a log range must begin above 0; raise min, or leave out log."
        )
    if log and step is not None:
        raise UsageError(f"{field}.step {step}: a log range has no steps; leave out one of them.")
    if step is not None and not 0 < step <= most - least:
        raise UsageError(f"{field}.step {step}: must be above 0 and at most max - min.")
    return Range(least, most, step, log)


def _is_finite(value: Any) -> bool:
    """Whether it is a number, and not beyond all floats."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _number(value: Any) -> Any:
    """The number that a text such as 1e-4 is meant as; any other value as it is."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


_RULES = {
    "name": "must be a text",
    "base": "must name a stack",
    "parameters": "must be a mapping of parameters to lists or ranges",
    "search": "must be grid, random or ask",
    "seed": "must be a whole number, 0 or more",
    "trials": f"must be a whole number from 1 to {TRIALS_MAX}",
    "parallel": f"must be a whole number from 1 to {TRIALS_MAX}",
    "budget": "must have dollars or hours, a number above 0",
    "metric": "must name a metric that the trainer logs",
    "goal": "must be max or min",
    "stopping": "must be a mapping with rule and rungs",
}


def _refusal(where: str, error: "ErrorDetails") -> UsageError:
    """Pydantic's error in our words."""
    place = [str(one) for one in error["loc"]]
    field = ".".join(place)
    if error["type"] == "extra_forbidden":
        kind = Budget if place[0] == "budget" else Document
        known = list(kind.model_fields)
        hint = did_you_mean(place[-1], known, f"known are {', '.join(known)}.")
        return UsageError(f"{where}: {field}: is not known; {hint}")
    if error["type"] == "missing":
        return UsageError(f"{where}: {field}: is missing; it {_RULES[place[0]]}.")
    return UsageError(f"{where}: {field} {_shown(error['input'])}: {_RULES[place[0]]}.")
