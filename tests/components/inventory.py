"""What a program declares, recorded without an engine and held against an inventory.

An inventory is a YAML list of expected resources: type, name, inputs (a subset of the actual ones),
options, and `count` if there are several of one type. `<absent>` says that a key must not be
there, `<any>` that its value does not matter. A type that is declared and not listed is an error.
"""

import asyncio
import difflib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import yaml
from pulumi.runtime.mocks import MockMonitor

ABSENT, ANY = "<absent>", "<any>"
FOLDER = Path(__file__).parent / "inventories"
UPDATE = "OUTLAST_INVENTORY=update"

PINNED = {
    "deadline": "2026-11-27T23:59:59Z",
    "placement": 0,
    "size": 1,
    "bootImage": "projects/outlast-rehearsal/global/images/outlast-1",
}


@dataclass
class Declared:
    """One registered resource."""

    type: str
    name: str
    urn: str
    parent: str
    inputs: dict[str, Any]
    options: dict[str, Any]
    outputs: dict[str, Any] | None = None
    """Registered outputs; None if none were registered."""
    dependencies: list[str] = field(default_factory=list)


class Answers(pulumi.runtime.Mocks):
    """Answers as the providers would: the inputs, and what they compute."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        state = {**args.inputs}
        state.setdefault("name", f"{args.name}-7a9c3f1")
        if args.typ.endswith(":InstanceTemplate"):
            link = f"projects/p/global/instanceTemplates/{state['name']}"
            state["selfLinkUnique"] = f"{link}?uniqueId=1"
        elif args.typ.endswith(":Account"):
            state["email"] = f"{state['accountId']}@{state['project']}.iam.gserviceaccount.com"
        elif args.typ.endswith(":IAMCustomRole"):
            state["name"] = f"projects/{state['project']}/roles/{state['roleId']}"
        elif args.typ == "gcp:compute/healthCheck:HealthCheck":
            state["selfLink"] = f"projects/{state['project']}/global/healthChecks/{state['name']}"
        elif args.typ == "pulumi-python:dynamic:RunPin":
            state |= PINNED
        elif args.typ == "pulumi-python:dynamic:ImageBake":
            state["image"] = f"projects/{state['project']}/global/images/own-0123456789"
        return f"{args.name}-id", state

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"{args.token}: no look-up is made through the engine")


class Recorder(MockMonitor):
    """Keeps the requests, options and parents included."""

    def __init__(self) -> None:
        super().__init__(Answers())
        self.declared: dict[str, Declared] = {}
        self.exports: dict[str, Any] = {}
        """For who runs a whole program; mocks do not see a stack's outputs."""

    def RegisterResource(self, request):
        answer = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.declared[answer.urn] = Declared(
                type=request.type,
                name=request.name,
                urn=answer.urn,
                parent=request.parent,
                inputs=_plain(pulumi.runtime.rpc.deserialize_properties(request.object)),
                options=_options(request),
                dependencies=list(request.dependencies),
            )
        return answer

    def RegisterResourceOutputs(self, request):
        outputs = _plain(pulumi.runtime.rpc.deserialize_properties(request.outputs))
        if request.urn in self.declared:
            self.declared[request.urn].outputs = outputs
        return super().RegisterResourceOutputs(request)


def record(program: Callable[[], Any], *, stack: str = "dev") -> Recorder:
    """Runs `program` against mocks and returns what it declared."""
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            asyncio.get_event_loop()
        except RuntimeError:  # the SDK wants one, and asyncio.run before took it away
            asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(
        Answers(), project="outlast", stack=stack, organization="organization", monitor=recorder
    )
    pulumi.runtime.test(program)()
    return recorder


def check(recorder: Recorder, name: str) -> None:
    """Holds what was declared against `inventories/<name>.yaml`."""
    path = FOLDER / f"{name}.yaml"
    actual = [one for one in recorder.declared.values() if not one.type.startswith("outlast:")]
    expected = yaml.safe_load(path.read_text()) if path.exists() else []
    if os.environ.get("OUTLAST_INVENTORY") == "update":
        path.write_text(_dump(_updated(expected, actual)))
        return
    problems = differences(expected, actual)
    if problems:
        wanted, found = _dump(expected), _dump(_updated(expected, actual))
        diff = difflib.unified_diff(
            wanted.splitlines(), found.splitlines(), "expected", "declared", lineterm="", n=2
        )
        raise AssertionError(
            "\n".join(
                [f"inventory {name}:", *problems, "", *diff, ""]
                + [f"If this is meant: {UPDATE} python -m pytest tests/components tests/program"]
            )
        )


def differences(expected: list[dict[str, Any]], actual: list[Declared]) -> list[str]:
    """One line for each difference between an inventory and what was declared."""
    problems = []
    counts = Counter(one.type for one in actual)
    wanted: Counter[str] = Counter()
    for entry in expected:
        wanted[entry["type"]] += entry.get("count", 1)
    for kind in sorted(counts | wanted):
        if counts[kind] != wanted[kind]:
            problems.append(f"{kind}: {counts[kind]} declared, {wanted[kind]} expected")
    for entry in expected:
        found = [one for one in actual if (one.type, one.name) == (entry["type"], entry["name"])]
        if not found:
            problems.append(f"{entry['name']} ({entry['type']}): not declared")
        for one in found:
            problems += _compare(entry.get("inputs", {}), one.inputs, entry["name"])
            problems += _compare(entry.get("options", {}), one.options, f"{entry['name']} options")
    return problems


def _compare(expected: Any, actual: Any, where: str) -> list[str]:
    if expected == ANY:
        return []
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        problems = []
        for key, value in expected.items():
            if value == ABSENT:
                if key in actual:
                    problems.append(f"{where}.{key}: must be absent, is {actual[key]!r}")
            elif key not in actual:
                problems.append(f"{where}.{key}: missing, must be {value!r}")
            else:
                problems += _compare(value, actual[key], f"{where}.{key}")
        return problems
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        problems = []
        for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
            problems += _compare(one, other, f"{where}[{number}]")
        return problems
    return [] if expected == actual else [f"{where}: is {actual!r}, must be {expected!r}"]


def _updated(expected: list[dict[str, Any]], actual: list[Declared]) -> list[dict[str, Any]]:
    entries = {(entry["type"], entry["name"]): entry for entry in expected}
    updated = []
    for one in sorted(actual, key=lambda one: (one.type, one.name)):
        entry = entries.get((one.type, one.name), {"inputs": one.inputs, "options": one.options})
        merged: dict[str, Any] = {"type": one.type, "name": one.name}
        for part, found in (("inputs", one.inputs), ("options", one.options)):
            if part in entry and entry[part]:
                merged[part] = _merged(entry[part], found)
        updated.append(merged)
    return updated


def _merged(expected: Any, actual: Any) -> Any:
    """The expectation with its values brought up to date; its sentinels and omissions stay."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        merged = {}
        for key, value in expected.items():
            if value in (ABSENT, ANY):
                merged[key] = value
            elif key in actual:
                merged[key] = _merged(value, actual[key])
        return merged
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [_merged(one, other) for one, other in zip(expected, actual, strict=True)]
    return actual


def _dump(entries: list[dict[str, Any]]) -> str:
    return yaml.safe_dump(entries, sort_keys=False, width=100, allow_unicode=True)


def _options(request: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.retainOnDelete:
        options["retainOnDelete"] = True
    if request.deleteBeforeReplace:
        options["deleteBeforeReplace"] = True
    if request.importId:
        options["import"] = request.importId
    for name in ("ignoreChanges", "replaceOnChanges"):
        if getattr(request, name):
            options[name] = list(getattr(request, name))
    return options


def _plain(value: Any) -> Any:
    if isinstance(value, pulumi.FileAsset):
        return {"asset": value.path}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value) if key != "__provider"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
