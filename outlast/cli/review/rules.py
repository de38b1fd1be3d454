"""The policy pack's rules, as a review applies them."""

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
    """A rule that is broken."""

    rule: str
    resource: str
    why: str


def load() -> ModuleType:
    """`policy/rules.py`, which is a policy pack's folder and no package."""
    name = "outlast_policy_rules"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PACKAGE / "policy" / "rules.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]


def read_config(path: Path) -> Any:
    """A policy pack's configuration (`rules.Config`). UsageError: it is none."""
    try:
        return load().parse(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--policy-pack-config {path}: {why}; docs/changes.md has an example"
        ) from None


def against(news: Sequence[Step], hour: float, config: Any) -> tuple[tuple[Broken, ...], list[str]]:
    """What is broken, and what is only advisory, in words. `hour`: the most that the stack costs
    in one, in dollars."""
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
