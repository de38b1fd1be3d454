"""The rules as a Pulumi policy pack: `pulumi preview --policy-pack policy`.

Each rule of `rules.py` is one policy. Limits come from `--policy-pack-config`, which `outlast
preview` takes too.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

sys.path.append(str(Path(__file__).resolve().parent.parent))
import rules  # noqa: E402

from outlast.costs import pricing  # noqa: E402

UNKNOWN = "unknown before up"
"""Placeholder for values that the engine does not know yet; the rules treat it like any other
value.
"""

GPUS = PolicyConfigSchema(
    properties={"gpus": {"type": "integer", "minimum": 0, "default": rules.Limits().gpus}}
)
LABELS = PolicyConfigSchema(
    properties={"required": {"type": "array", "items": {"type": "string"}, "default": []}}
)
TYPES = PolicyConfigSchema(
    properties={"allowed": {"type": "array", "items": {"type": "string"}, "default": []}}
)
HOUR = PolicyConfigSchema(properties={"dollars": {"type": "number", "minimum": 0}})


def plain(value: Any) -> Any:
    """A resource's inputs without the wrapper that raises if a value is not known yet."""
    try:
        if isinstance(value, Mapping):
            return dict(_items(value))
        if isinstance(value, (list, tuple)):
            return [plain(value[index]) for index in range(len(value))]
    except UnknownValueError:
        return UNKNOWN
    return value


def _items(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in list(value):
        try:
            yield key, plain(value[key])
        except UnknownValueError:
            yield key, UNKNOWN


def of_resource(name: str, rule: rules.Rule) -> ResourceValidationPolicy:
    """One rule about one resource."""

    def validate(args: ResourceValidationArgs, report_violation: ReportViolation) -> None:
        limits = rules.parse({name: args.get_config()}).limits
        resource = rules.Resource(args.resource_type, args.name, plain(args.props))
        why = rule(resource, limits)
        if why:
            report_violation(f"{args.name}: {why}")

    return ResourceValidationPolicy(
        name=name,
        description=(rule.__doc__ or name).strip(),
        validate=validate,
        config_schema={"labels": LABELS, "unjudged": TYPES}.get(name),
    )


def gpu_ceiling(args: StackValidationArgs, report_violation: ReportViolation) -> None:
    """The rule about the whole stack's GPUs."""
    limits = rules.parse({rules.GPU_CEILING: args.get_config()}).limits
    why = rules.gpu_ceiling(_resources(args), limits)
    if why:
        report_violation(why)


def hour_ceiling(args: StackValidationArgs, report_violation: ReportViolation) -> None:
    """The rule about what the whole stack costs."""
    limits = rules.parse({rules.HOUR_CEILING: args.get_config()}).limits
    resources = _resources(args)
    zone = next((where for one in resources if (where := _zone(one.inputs))), "")
    hour = sum(
        pricing.dearest(
            [choice.inputs for choice in rules.choices(one, resources)],
            _zone(one.inputs) or zone,
        ).hour
        for one in resources
        if one.type in rules.MACHINES
    )
    why = rules.hour_ceiling(hour, limits)
    if why:
        report_violation(why)


def _resources(args: StackValidationArgs) -> list[rules.Resource]:
    return [rules.Resource(one.resource_type, one.name, plain(one.props)) for one in args.resources]


def _zone(inputs: Mapping[str, Any]) -> str:
    """A zone, because prices depend on its region; empty if the resource has no location."""
    region = inputs.get("region")
    return str(inputs.get("zone") or (f"{region}-a" if region else ""))


PolicyPack(
    name="outlast",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        *(of_resource(name, rule) for name, rule in rules.RULES.items()),
        StackValidationPolicy(
            name=rules.GPU_CEILING,
            description="The VMs of a stack together have at most the allowed number of GPUs.",
            validate=gpu_ceiling,
            config_schema=GPUS,
        ),
        StackValidationPolicy(
            name=rules.HOUR_CEILING,
            description="The VMs of a stack together cost at most the allowed dollars an hour.",
            validate=hour_ceiling,
            config_schema=HOUR,
        ),
    ],
)
