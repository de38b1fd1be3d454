"""Applies the policy pack's rules in a review."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.base.folders import PACKAGE
from outlast.cli.errors import UsageError
from outlast.cli.review.plan import Step


@dataclass(frozen=True)
class Broken:
    """A broken rule."""

    rule: str
    resource: str
    why: str


def load() -> ModuleType:
    """Loads `policy/rules.py`, whose folder is a policy pack and not a package."""
    name = "outlast_policy_rules"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PACKAGE / "policy" / "rules.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # Dataclasses look up their module.
        spec.loader.exec_module(module)
    return sys.modules[name]


def read_config(path: Path) -> Any:
    """Reads a policy pack's configuration (`rules.Config`). Raises UsageError if it is invalid."""
    try:
        return load().parse(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--policy-pack-config {path}: {why}; docs/changes.md has an example"
        ) from None


def against(news: Sequence[Step], hour: float, config: Any) -> tuple[tuple[Broken, ...], list[str]]:
    """The broken rules, and advisory ones in words. `hour`: the most dollars that the stack costs
    an hour.
    """
    rules = load()
    config = config or rules.Config()
    resources = [
        rules.Resource(step.type, step.name, step.new, step.old)
        for step in news
        if not step.is_component
    ]
    found = rules.check(resources, config.limits)
    why = rules.hour_ceiling(hour, config.limits)
    if why:
        found.append(rules.Broken(rules.HOUR_CEILING, "", why))
    return (
        tuple(
            Broken(one.rule, one.resource, one.why)
            for one in found
            if config.level(one.rule) == rules.MANDATORY
        ),
        [
            f"{one.rule} {one.resource}".rstrip() + f": {one.why}"
            for one in found
            if config.level(one.rule) == rules.ADVISORY
        ],
    )
