"""Finds settings that nothing reads, because their namespace or key is misspelt."""

from collections.abc import Iterable, Mapping
from typing import Any

from outlast.base.suggest import nearest
from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import declared

PROVIDER = "gcp"
LIKE = 0.75
"""How similar a word must be to count as a misspelt one."""


def check_names(values: Mapping[str, Any], project: str) -> list[str]:
    """Warnings about settings that are probably misspelt; `project` is the Pulumi project's name,
    whose namespace the engine takes for a key without one.

    Raises SettingsError if a namespace is almost `outlast` or `gcp`, or a key almost one of the
    provider's. Other namespaces are the program's own, and the keys of `outlast` are checked where
    they are parsed.
    """
    warnings = []
    for full in sorted(values):
        namespace, _, key = full.partition(":")
        if namespace == NAMESPACE:
            continue
        if namespace == PROVIDER:
            warnings += _of_provider(full, key)
        elif namespace == project:
            warnings += _of_project(full, key)
        elif near := nearest(namespace, (NAMESPACE, PROVIDER)):
            known = declared() if near == [NAMESPACE] else provider_keys()
            meant = _meant(key, known)
            if not meant and not nearest(namespace, near, cutoff=LIKE):
                continue
            meant = meant or key
            raise SettingsError(
                f"{full}: nothing reads namespace {namespace}; did you mean {near[0]}:{meant}?"
            )
    return warnings


def provider_keys() -> list[str]:
    """The settings of Pulumi's Google provider, in the version that is installed."""
    from pulumi_gcp.config import vars as provider
    from pydantic.alias_generators import to_camel

    return [to_camel(name) for name in vars(provider._ExportableConfig) if not name.startswith("_")]


def _of_provider(full: str, key: str) -> list[str]:
    known = provider_keys()
    if key in known:
        return []
    if meant := _meant(key, known):
        raise SettingsError(f"{full}: is not a setting of the provider; did you mean gcp:{meant}?")
    return [f"{full}: is not a setting of the provider, and nothing reads it"]


def _of_project(full: str, key: str) -> list[str]:
    places = {name: PROVIDER for name in ("project", "region", "zone")}
    for known, namespace in ((declared(), NAMESPACE), (places, PROVIDER)):
        if key in known:
            return [f"{full}: Outlast does not read it; did you mean {namespace}:{key}?"]
    return []


def _meant(key: str, known: Iterable[str]) -> str:
    return next(iter(nearest(key, known, cutoff=LIKE)), "")
