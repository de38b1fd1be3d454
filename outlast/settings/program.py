"""The program's first steps: reads the settings, and prepares everything before the first
resource.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pulumi

from outlast.base.codec import format_time
from outlast.base.folders import PACKAGE, missing_data
from outlast.base.suggest import did_you_mean
from outlast.bucket.layout import Layout
from outlast.cloud import credentials
from outlast.cloud import recipe as recipes
from outlast.settings import errors, keys, lookups
from outlast.settings.checks import check
from outlast.settings.errors import SettingsError
from outlast.settings.namespaces import check_names
from outlast.settings.rules.code import source_files
from outlast.settings.rules.place import foundation_name
from outlast.settings.schema import Settings
from outlast.spec import bundle as bundles
from outlast.spec.run_spec import whole


@dataclass(frozen=True)
class Code:
    """The bundle of this checkout, and its object name."""

    path: str
    object: str
    sha256: str


def load() -> Settings:
    """The running stack's settings. Raises SettingsError."""
    return _checked(_stack_values())


def of_args(args: Mapping[str, Any]) -> Settings:
    """Settings that a program passes by their Python names, instead of the stack's. Project, region
    and zone are the stack's `gcp:` settings. Raises SettingsError.
    """
    names = {name: keys.to_camel(name) for name in keys.Keys.model_fields}
    values = {key: value for key, value in _stack_values().items() if key.startswith("gcp:")}
    for name, value in args.items():
        if name not in names:
            hint = did_you_mean(name, names, "docs/configuration.md lists them")
            raise SettingsError(f"argument {name}: is not a setting of Outlast; {hint}")
        if isinstance(value, pulumi.Output):
            raise SettingsError(
                f"argument {name}: is an output, whose value is not known before the update; pass"
                " a plain value"
            )
        values[f"{errors.NAMESPACE}:{names[name]}"] = _text(name, value)
    return _checked(values)


def _text(name: str, value: Any) -> str:
    """Converts a value to the form in which the engine passes settings."""
    try:
        return value if isinstance(value, str) else json.dumps(_with_whole_numbers(value))
    except TypeError:
        raise SettingsError(
            f"argument {name} {value!r}: must be a text, a number, true or false, or a list or"
            " mapping of these"
        ) from None


def _with_whole_numbers(value: Any) -> Any:
    """Converts whole numbers to integers: programs in other languages only have floats."""
    if isinstance(value, float):
        return whole(value)
    if isinstance(value, Mapping):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(item) for item in value]
    return value


def _stack_values() -> dict[str, Any]:
    return {**pulumi.runtime.config.get_config_env(), **pulumi.runtime.config.CONFIG.get()}


def _checked(values: Mapping[str, Any]) -> Settings:
    if missing := missing_data():
        raise SettingsError(missing)
    organization, project = pulumi.get_organization(), pulumi.get_project()
    for sentence in check_names(values, project):
        pulumi.log.warn(sentence)
    credentials.use_settings(values)
    name = foundation_name(values, organization, project)
    found = check(
        values,
        organization=organization,
        project=project,
        stack=pulumi.get_stack(),
        environ=os.environ,
        foundation_outputs=lookups.read_foundation(name) if name else None,
        secret_keys={
            *pulumi.runtime.config.get_config_secret_keys_env(),
            *filter(pulumi.runtime.config.is_config_secret, values),
        },
    )
    for sentence in found.advice:
        pulumi.log.info(sentence)
    return found


def bundle(settings: Settings) -> Code:
    """Packs Outlast and the project's files into `.outlast/bundles`. Raises SettingsError."""
    try:
        extra = {
            f"{bundles.SOURCE}/{name}": data for name, data in source_files(settings.source).items()
        }
        if settings.requirements and settings.git is None:
            from outlast.settings.rules import packages

            extra |= packages.requirement_files(settings.requirements)
        packed = bundles.build(PACKAGE.parent, errors.project() / ".outlast" / "bundles", extra)
    except bundles.BundleError as error:
        raise SettingsError(str(error)) from None
    name = Layout(settings.prefix, settings.run).bundle(packed.sha256)
    return Code(str(packed.path), name, packed.sha256)


def baked(settings: Settings, code: Code) -> recipes.Baked:
    """The stack's recipe with its files. Raises SettingsError."""
    assert settings.recipe is not None
    try:
        return recipes.read(settings.recipe, errors.project(), bundle_sha256=code.sha256)
    except recipes.RecipeError as error:
        raise SettingsError(str(error)) from None


def now() -> str:
    """The current time as RFC 3339."""
    return format_time(datetime.now(UTC))


def week() -> str:
    """The current week by ISO 8601 in UTC, such as `2026w49`."""
    year, number, _ = datetime.now(UTC).isocalendar()
    return f"{year}w{number:02}"


def foundation_outputs(settings: Settings) -> dict[str, Any]:
    """A foundation's outputs that are known before the update, for
    `outlast.spec.foundation.overlay`.
    """
    image = "" if settings.is_default("image") else settings.image
    sweep = {"sweep": settings.sweep_name} if settings.part == "sweep" else {}
    return {
        **sweep,
        "part": settings.part,
        "owner": settings.owner,
        "project": settings.project,
        "region": settings.region,
        "externalIp": settings.network_rules.external_ip,
        "nat": settings.network_rules.nat,
        "image": settings.recipe.family_path if settings.recipe else image,
    }


def outputs(settings: Settings, code: Code) -> dict[str, Any]:
    """The stack's outputs that are known before the update."""
    return {
        "experiment": settings.experiment,
        "project": settings.project,
        "owner": settings.owner,
        "run": settings.run,
        "resume": settings.resume,
        "prefix": settings.prefix,
        "runPath": f"{settings.prefix}/{settings.run}",
        "groupZone": settings.zone,
        "zones": list(settings.zones),
        "mode": settings.mode,
        "region": settings.region,
        "bundle": code.object,
        "bundleSha256": code.sha256,
    }
