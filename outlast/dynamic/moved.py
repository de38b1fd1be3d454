"""Detects a stack that no longer points to its run, or no longer owns it.

HEAD names its owner, ORGANIZATION/PROJECT/STACK, which `outlast handover` changes. A stack that was
renamed or moved to another backend has another owner name. A stack whose experiment, bucket or
project has changed looks in another place.
"""

from collections.abc import Mapping
from shlex import quote
from typing import Any

OWNER_PARTS = ("organization", "project", "stack")


def foreign(owner: str, olds: Mapping[str, Any], news: Mapping[str, Any]) -> str:
    """Why the stack of `news` may not continue a run of `owner`; `olds` is its previous pin."""
    place = f"gs://{news['bucket']}/{news['prefix']}"
    where = f"run {news['run']} in {place}"
    path = quote(f"{place}/{news['run']}")
    hand_over = f"hand the run over: outlast handover {path} {quote(news['owner'])}"
    back = _back(owner, news["owner"])
    if olds.get("owner") == owner:
        return (
            f"{where}: belongs to {owner}, as this stack was called before"
            f" {_renamed(owner, news['owner'])}; {back}, or {hand_over}"
        )
    return (
        f"{where}: belongs to {owner}, not to {news['owner']}; if this is the same stack under"
        f" another name, {back}, or {hand_over}; otherwise choose another outlast:experiment or"
        " outlast:bucket"
    )


def causes(olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The reasons why the stack's run is now looked for in another place, each with the remedy;
    empty if the place is the same.
    """
    found = []
    if olds["prefix"] != news["prefix"]:
        before, now = _last(olds["prefix"]), _last(news["prefix"])
        if (before, now) == (_last(olds["owner"]), _last(news["owner"])):
            found.append(
                (
                    f"{_renamed(olds['owner'], news['owner'])}, and outlast:experiment follows "
                    "the stack's name",
                    _back(olds["owner"], news["owner"]),
                )
            )
        else:
            found.append(
                (
                    f"outlast:experiment {before} → {now}",
                    f"pulumi config set outlast:experiment {before}",
                )
            )
    if olds["bucket"] != news["bucket"]:
        by_default = [one["bucket"] == f"{one['project']}-outlast" for one in (olds, news)]
        key = "gcp:project" if all(by_default) else "outlast:bucket"
        before, now = ((one[key.partition(":")[2]]) for one in (olds, news))
        follows = ", and outlast:bucket follows it" if all(by_default) else ""
        found.append((f"{key} {before} → {now}{follows}", f"pulumi config set {key} {before}"))
    return found


def left_behind(
    step: int, olds: Mapping[str, Any], news: Mapping[str, Any], why: list[tuple[str, str]]
) -> str:
    """Why the open run at `step` may not be started again in another place."""
    return (
        f"run {olds['run']} is open at step {step} in gs://{olds['bucket']}/{olds['prefix']}, and"
        f" would start from scratch in gs://{news['bucket']}/{news['prefix']}"
        f" ({'; '.join(cause for cause, _ in why)}); undo that"
        f" ({'; '.join(remedy for _, remedy in why)}){_hand_over_into(olds, news)},"
        " or set outlast:onNewRun to replace to give up the open run"
    )


def _hand_over_into(olds: Mapping[str, Any], news: Mapping[str, Any]) -> str:
    """How to take the run along; empty where its path below the bucket changes, too."""
    if (olds["prefix"], olds["run"]) != (news["prefix"], news["run"]):
        return ""
    path = quote(f"gs://{olds['bucket']}/{olds['prefix']}/{olds['run']}")
    into = quote(f"gs://{news['bucket']}")
    return f", or hand the run over: outlast handover {path} {quote(news['owner'])} --to {into}"


def _renamed(before: str, now: str) -> str:
    """What changed in the stack's name."""
    differing = [
        (part, *pair)
        for part, *pair in zip(OWNER_PARTS, before.split("/"), now.split("/"), strict=False)
        if pair[0] != pair[1]
    ]
    if [part for part, *_ in differing] == ["stack"]:
        return f"it was renamed from {differing[0][1]} to {differing[0][2]}"
    return f"its {' and '.join(f'{what} {old} became {new}' for what, old, new in differing)}"


def _back(before: str, now: str) -> str:
    """How to give a stack its previous name."""
    old, new = before.split("/"), now.split("/")
    if len(old) != len(OWNER_PARTS):
        return "continue it as it was started"  # a run without a stack
    if old[:2] == new[:2]:
        return f"rename it back: pulumi stack rename {quote(old[2])}"
    if old[0] == new[0]:
        return f"rename it back: pulumi stack rename {quote(before)}"
    return f"continue it in organization {old[0]}, where it is {before}"


def _last(path: str) -> str:
    return path.rpartition("/")[2]
