"""The trials of a sweep: their runs and settings, from the base experiment's stack.

A trial is one stack, `<sweep>--<run>`, whose settings are the base's with the trial's parameters.
Its run, and so its id, is named by its content, as any run's: the same parameters of the same code
are the same trial, in whatever order and however often they are asked for.
"""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.base.codec import canonical_json
from outlast.base.folders import PROJECT_FILE
from outlast.base.suggest import choices
from outlast.bucket.layout import Layout
from outlast.cli import engine, experiments
from outlast.cli.errors import UsageError
from outlast.cli.sweep.file import Sweep
from outlast.spec import foundation, sweeps

if TYPE_CHECKING:
    from outlast.settings import Settings

NAMESPACE = "outlast:"
SEED = "seed"
"""The parameter whose values only repeat a trial."""
_OF_SHARED = (*foundation.OUTPUTS, *foundation.OWN_ONLY, "ipRange", "imageRecipe")
_OF_SHARED += ("serviceAccount", "foundation", "part", "experiment", "resume", "sweep")
"""Settings of the base that the shared stack has instead of the trials, and those that each trial
gets."""


@dataclass(frozen=True)
class Base:
    """The stack that the trials vary."""

    stack: str
    document: Mapping[str, Any]
    """Its settings file, without `config`."""
    config: Mapping[str, Any]
    """Its own settings by full key."""
    values: Mapping[str, Any]
    """All settings in plain text, with those that the project has for all of its stacks."""
    secret_keys: frozenset[str]
    foundation: Mapping[str, Any] | None
    """The outputs of its foundation; None for none."""


@dataclass(frozen=True)
class Trial:
    """One trial."""

    sweep: str
    run: str
    number: int
    parameters: Mapping[str, Any]
    settings: "Settings" = field(repr=False, compare=False)
    asked: bool = False
    """Whether another optimiser asked for it."""

    @property
    def stack(self) -> str:
        """Its stack and its experiment."""
        return sweeps.trial(self.sweep, self.run)

    @property
    def layout(self) -> Layout:
        return layout_of(self.sweep, self.run)


def layout_of(sweep: str, run: str) -> Layout:
    """Where a trial's run is in the bucket."""
    return Layout(f"{experiments.ROOT}{sweeps.trial(sweep, run)}", run)


def read_base(name: str, where: str) -> Base:
    """The stack's settings. Raises UsageError if there is no such stack, or it has no run, and
    EngineError if its foundation cannot be read."""
    import yaml

    project = engine.project()
    definition = _read(project / PROJECT_FILE)
    file = project / str(definition.get("stackConfigDir") or ".") / f"Pulumi.{name}.yaml"
    if "/" in name or not file.is_file():
        known = [one.stack for one in experiments.settings()]
        raise UsageError(
            f"{where}: base {name!r}: this project has no stack of that name;"
            f" {choices(name, known)}."
        )
    try:
        document = yaml.safe_load(file.read_text()) or {}
        config = dict(document.pop("config", None) or {})
    except (yaml.YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: cannot be read as a stack's settings ({error}).") from None
    values = {**_of_project(definition), **config}
    if "environment" in document:  # Pulumi ESC's, which only the engine can read
        listed = engine.run_engine(
            ["config", "--json", "--show-secrets", "-s", name], env=os.environ
        )
        values |= {key: one.get("value", "") for key, one in json.loads(listed).items()}
    secret_keys = frozenset(key for key, value in config.items() if _is_secret(value))
    values = {key: value for key, value in values.items() if not _is_secret(value)}
    part = values.get(f"{NAMESPACE}part", "experiment")
    if part != "experiment":
        raise UsageError(f"{where}: base {name!r}: is a {part}, must be an experiment's stack.")
    if pinned := values.get(f"{NAMESPACE}run"):
        raise UsageError(
            f"{where}: base {name!r}: outlast:run {pinned}: would be the run of every trial; leave"
            " it out of the base."
        )
    return Base(name, document, config, values, secret_keys, _foundation(values))


def _foundation(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    name = str(values.get(f"{NAMESPACE}foundation") or "")
    if not name:
        return None
    text = engine.run_engine(["stack", "output", "--json", "-s", name], env=os.environ)
    return json.loads(text)


def _read(file: Path) -> dict[str, Any]:
    import yaml

    found = yaml.safe_load(file.read_text())
    return found if isinstance(found, dict) else {}


def _of_project(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What the project's own file sets for every stack."""
    name = definition.get("name")
    found = {}
    for key, given in (definition.get("config") or {}).items():
        full = key if ":" in key else f"{name}:{key}"
        if not isinstance(given, dict):
            found[full] = given
        elif "value" in given or "default" in given:
            found[full] = given.get("value", given.get("default"))
    return found


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"secure"}


def settings_of(base: Base, sweep: str, parameters: Mapping[str, Any], where: str) -> "Settings":
    """The settings of a trial, as the program checks them. Raises UsageError."""
    from outlast import settings

    # The sweep's own name is the experiment here: a trial's has its run, which is not known yet.
    values = {
        **base.values,
        **_overrides(base, parameters, where),
        f"{NAMESPACE}experiment": sweep,
    }
    try:
        return settings.check(
            values,
            organization="organization",
            project=engine.project_name(),
            stack=sweep,
            environ=os.environ,
            foundation_outputs=base.foundation,
            secret_keys=base.secret_keys,
        )
    except settings.SettingsError as error:
        raise UsageError(f"{where}: base {base.stack}: {error}") from None


def _overrides(base: Base, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The base's arguments, or its command, with the parameters."""
    command = base.values.get(f"{NAMESPACE}command") or ""
    if not command:
        args = base.values.get(f"{NAMESPACE}args") or {}
        args = json.loads(args) if isinstance(args, str) else args
        return {f"{NAMESPACE}args": {**args, **parameters}}
    words = command
    if isinstance(command, str) and command.startswith("["):
        words = json.loads(command)
    for name, value in parameters.items():
        slot = f"{{{name}}}"
        if not any(slot in word for word in ([words] if isinstance(words, str) else words)):
            raise UsageError(
                f"{where}: parameters.{name}: the command of stack {base.stack} does not have"
                f" {slot}; write {slot} into it where the value belongs."
            )
        text = _text(value)
        if isinstance(words, str):
            words = words.replace(slot, shlex.quote(text))
        else:
            words = [word.replace(slot, text) for word in words]
    return {f"{NAMESPACE}command": words if isinstance(words, str) else json.dumps(words)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def trial_of(
    base: Base,
    sweep: str,
    number: int,
    parameters: Mapping[str, Any],
    where: str,
    *,
    asked: bool = False,
) -> Trial:
    """The trial with these parameters. Raises UsageError if the base's trainer refuses them."""
    found = settings_of(base, sweep, parameters, where)
    return Trial(sweep, found.run, number, dict(parameters), found, asked)


def trials_of(sweep: Sweep, base: Base, where: str) -> list[Trial]:
    """The trials of a sweep, each once, by their numbers. Raises UsageError."""
    found: dict[str, Trial] = {}
    seen: dict[bytes, None] = {}
    for number, parameters in sweep.points():
        key = canonical_json(parameters)
        if key in seen:
            continue
        seen[key] = None
        trial = trial_of(base, sweep.name, number, parameters, where)
        found.setdefault(trial.run, trial)
    return list(found.values())


def config_of(
    base: Base, trial: Trial, rules: Mapping[str, Any], where: str, *, resume: int = 0
) -> dict[str, Any]:
    """The settings of a trial's stack. `rules`: of its early stopping; empty for none. `resume`:
    how often its run was reopened.
    """
    # An image that the shared stack bakes is in its outputs.
    baked = ("image",) if base.config.get(f"{NAMESPACE}imageRecipe") else ()
    return {
        **_without(base.config, (*_OF_SHARED, *baked)),
        **_overrides(base, trial.parameters, where),
        f"{NAMESPACE}experiment": trial.stack,
        f"{NAMESPACE}foundation": sweeps.shared(trial.sweep),
        **({f"{NAMESPACE}sweep": dict(rules)} if rules else {}),
        **({f"{NAMESPACE}resume": resume} if resume else {}),
    }


def shared_config_of(base: Base, sweep: str) -> dict[str, Any]:
    """The settings of the stack that the trials share."""
    return {
        **_without(base.config, ("resume", "sweep")),
        f"{NAMESPACE}part": "sweep",
        f"{NAMESPACE}experiment": sweeps.shared(sweep),
    }


def _without(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    dropped = {f"{NAMESPACE}{key}" for key in keys}
    return {key: value for key, value in config.items() if key not in dropped}


def rules_of(sweep: Sweep, where: str) -> dict[str, Any]:
    """The setting `outlast:sweep` of each trial; empty if no trial stops early. Raises
    UsageError."""
    from outlast.spec.sweep_rules import BadRules, SweepRules

    asked = sweep.asked
    if not asked.stopping:
        return {}
    given = {"name": sweep.name, "metric": asked.metric, "goal": asked.goal, **asked.stopping}
    try:
        return SweepRules.parse(given).as_setting()
    except BadRules as error:
        raise UsageError(f"{where}: stopping.{error}.") from None
