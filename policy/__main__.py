"""The rules as a Pulumi policy pack: `pulumi preview --policy-pack policy`.

Each rule of `rules.py` is one policy. Limits come from `--policy-pack-config`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import rules
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

UNKNOWN = "unknown before up"
"""Stands for what the engine does not know yet: a value like any other to the rules."""

GPUS = PolicyConfigSchema(
    properties={"gpus": {"type": "integer", "minimum": 0, "default": rules.Limits().gpus}}
)
LABELS = PolicyConfigSchema(
    properties={"required": {"type": "array", "items": {"type": "string"}, "default": []}}
)


def plain(value: Any) -> Any:
    """A resource's inputs without the wrapper that raises where a value is not known yet."""
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
        config = args.get_config() if name == "labels" else {}
        limits = rules.Limits(labels=tuple(config.get("required", ())))
        resource = rules.Resource(args.resource_type, args.name, plain(args.props))
        why = rule(resource, limits)
        if why:
            report_violation(f"{args.name}: {why}")

    return ResourceValidationPolicy(
        name=name,
        description=(rule.__doc__ or name).strip(),
        validate=validate,
        config_schema=LABELS if name == "labels" else None,
    )


def ceiling(args: StackValidationArgs, report_violation: ReportViolation) -> None:
    """The rule about the whole stack."""
    limits = rules.Limits(gpus=int(args.get_config().get("gpus", rules.Limits().gpus)))
    resources = [
        rules.Resource(one.resource_type, one.name, plain(one.props)) for one in args.resources
    ]
    why = rules.gpu_ceiling(resources, limits)
    if why:
        report_violation(why)


PolicyPack(
    name="outlast",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        *(of_resource(name, rule) for name, rule in rules.RULES.items()),
        StackValidationPolicy(
            name=rules.GPU_CEILING,
            description="A stack's VMs have no more GPUs than are allowed together.",
            validate=ceiling,
            config_schema=GPUS,
        ),
    ],
)
