"""The common base of all types of resources."""

import hashlib
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from outlast.localcloud.provider import changes, tables
from outlast.localcloud.provider.rest import Api, ProviderError
from outlast.localcloud.provider.values import UNKNOWN, Hidden, Unknown

DEFAULTS = "__defaults"
"""Input that lists the inputs that the provider filled in, as in the real provider."""
NAME_SUFFIX_DIGITS = 7
PROVISIONED_LABEL = {"goog-pulumi-provisioned": "true"}

Inputs = dict[str, Any]
Body = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The provider's configuration for one stack."""

    compute: Api
    storage: Api
    iam: Api
    resource_manager: Api
    secret_manager: Api
    project: str | None = None
    region: str | None = None
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the provider adds to created resources."""


@dataclass(frozen=True)
class Failure:
    """A refused input."""

    property: str
    reason: str


@dataclass(frozen=True)
class Difference:
    """The changes that an update must make."""

    changes: dict[str, changes.Change]
    """Changes by property path."""
    replaces: list[str]
    """Inputs whose change needs a replacement."""
    delete_first: bool


class Kind(ABC):
    """One type of resource. Stateless: every call gets all it needs."""

    token: ClassVar[str]
    table: ClassVar[tables.Table]
    """All known inputs."""
    required: ClassVar[tuple[str, ...]] = ()
    replace_on: ClassVar[frozenset[str] | None] = frozenset()
    """Inputs that cannot change in place; None: no input can."""
    filled_in: ClassVar[tuple[str, ...]] = ()
    """Inputs that default to the provider's settings."""
    auto_named: ClassVar[bool] = False
    volatile: ClassVar[tuple[str, ...]] = ()
    """Outputs that an update changes."""
    computed: ClassVar[tuple[str, ...]] = ()
    """Outputs that are not inputs."""
    id_form: ClassVar[str] = ""
    """The form of an id. An import may leave out its first parts if the settings have them."""
    chosen_by_api: ClassVar[frozenset[str]] = frozenset()
    """Inputs, by path, that the API fills in if they are not given: leaving them out is not a
    change."""

    # ------------------------------------------------------------------ what a type defines

    @abstractmethod
    def create(self, cloud: Settings, inputs: Inputs) -> tuple[str, Body]:
        """Creates the resource; returns its id and the API's body."""

    @abstractmethod
    def read(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> Body | None:
        """The API's body of the resource; None if it does not exist. `state` may be empty."""

    def update(self, cloud: Settings, id: str, old: Inputs, new: Inputs) -> None:
        """Changes the resource in place."""
        raise NotImplementedError(self.token)

    @abstractmethod
    def delete(self, cloud: Settings, id: str, state: Mapping[str, Any]) -> None:
        """Deletes the resource; does nothing if it does not exist."""

    @abstractmethod
    def outputs(self, cloud: Settings, id: str, body: Body) -> dict[str, Any]:
        """The computed outputs."""

    def live_inputs(self, cloud: Settings, id: str, body: Body) -> Inputs:
        """The inputs that match the live resource."""
        return tables.from_body(self.table, body)

    def imported(self, cloud: Settings, id: str) -> tuple[str, Inputs]:
        """The whole id of an imported resource, and the state that `read` needs. Raises
        ProviderError."""
        places = re.findall(r"{(\w+)}", self.id_form)
        given = id.split("/")
        if not places or re.fullmatch(re.sub(r"{\w+}", "[^/]+", self.id_form), id):
            return id, {}
        missing = places[: len(places) - len(given)]
        known = [getattr(cloud, place, None) for place in missing]
        if len(given) > len(places) or None in known:
            raise ProviderError(f"import {id!r}: must be of the form {self.id_form}.")
        return self.id_form.format(**dict(zip(places, [*known, *given], strict=True))), {}

    # ------------------------------------------------------------------ what all share

    def check(
        self, cloud: Settings, name: str, seed: bytes, old: Inputs, new: Inputs
    ) -> tuple[Inputs, list[Failure]]:
        """Returns the inputs with the provider's defaults, and the refused ones."""
        checked = {key: value for key, value in new.items() if value is not None}
        defaults = []
        for key in self.filled_in:
            value = getattr(cloud, key)
            if key not in checked and value:
                checked[key] = value
                defaults.append(key)
        if self.auto_named and "name" not in checked:
            checked["name"] = self._kept_name(old) or auto_name(name, seed)
            defaults.append("name")
        failures = [
            Failure(path, f"{path}: no input of {self.token} that the local cloud's provider knows")
            for path in tables.unknown_inputs(self.table, checked)
        ]
        failures += [
            Failure(key, f"{key}: {self.token} needs it")
            for key in (*self.required, *self.filled_in)
            if key not in checked
        ]
        return {**checked, DEFAULTS: defaults}, failures

    @staticmethod
    def _kept_name(old: Inputs) -> str | None:
        name = old.get("name")
        return name if name and "name" in old.get(DEFAULTS, []) else None

    def diff(self, old: Inputs, new: Inputs) -> Difference:
        """The changes of the inputs, and whether they need a replacement."""
        before = {key: value for key, value in old.items() if key != DEFAULTS}
        after = {key: value for key, value in new.items() if key != DEFAULTS}
        found: dict[str, changes.Change] = {}
        replaces = []
        for key in sorted({*before, *after}):
            if key not in after and key in self.chosen_by_api:
                continue
            differing: dict[str, changes.Change] = {
                path: change
                for path, change in changes.differences(before.get(key), after.get(key), key)
                if not (change == "delete" and path in self.chosen_by_api)
            }
            found |= differing
            needs_another = self.replace_on is None or key in self.replace_on
            if differing and needs_another and not isinstance(self.table.get(key), tables.Setting):
                replaces.append(key)
        # Two resources of one name cannot exist at the same time; with a new name they can.
        given = self.auto_named and "name" not in new.get(DEFAULTS, [])
        same_name = given and old.get("name") == new.get("name")
        return Difference(found, replaces, delete_first=bool(replaces) and same_name)

    def state(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> dict[str, Any]:
        """The resource's state: live inputs, requested inputs and computed outputs."""
        asked = {key: value for key, value in inputs.items() if key != DEFAULTS}
        found = {**self.live_inputs(cloud, id, body), **asked, **self.outputs(cloud, id, body)}
        if "pulumiLabels" in self.computed:
            live = found["effectiveLabels"].value
            found["pulumiLabels"] = Hidden(_managed_labels(cloud, asked, live))
        return found

    def preview_create(self, inputs: Inputs) -> dict[str, Any]:
        """The state as far as known before the resource is created."""
        asked = {key: value for key, value in inputs.items() if key != DEFAULTS}
        return {**dict.fromkeys(self.computed, UNKNOWN), **asked}

    def preview_update(self, state: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
        """The state as far as known before the resource is changed."""
        asked = {key: value for key, value in inputs.items() if key != DEFAULTS}
        return {**state, **dict.fromkeys(self.volatile, UNKNOWN), **asked}

    def refreshed(self, cloud: Settings, id: str, inputs: Inputs, body: Body) -> Inputs:
        """The inputs after a refresh; all live ones if there are none, as for an import."""
        live = self.live_inputs(cloud, id, body)
        asked = {key: value for key, value in inputs.items() if key != DEFAULTS}
        if not asked:
            # Only labels from a program count, and an import has no program.
            imported = {"labels": {}} if "pulumiLabels" in self.computed else {}
            return {**live, **imported, DEFAULTS: []}
        outside = {
            key: value
            for key, value in asked.items()
            if isinstance(self.table.get(key), tables.Setting | tables.Place) and key not in live
        }
        kept = changes.still_so(asked, {**live, **outside})
        return {**kept, DEFAULTS: inputs.get(DEFAULTS, [])}


def auto_name(name: str, seed: bytes) -> str:
    """A physical name from the logical one, with random digits from the engine's seed."""
    digits = hashlib.sha256(seed).hexdigest() if seed else secrets.token_hex(16)
    base = re.sub(r"[^-a-z0-9]", "-", name.lower())
    return f"{base}-{digits[:NAME_SUFFIX_DIGITS]}"


def label_outputs(body: Mapping[str, Any]) -> dict[str, Any]:
    """The output with all labels from any source, secret as in the real plugin."""
    return {"effectiveLabels": Hidden(dict(body.get("labels") or {}))}


def _managed_labels(cloud: Settings, asked: Inputs, live: Mapping[str, str]) -> dict[str, str]:
    """The labels of the program, and the provider's own where it created the resource; none of an
    imported one."""
    if asked.get("labels") == {}:
        return {}
    own = {key: value for key, value in cloud.labels.items() if live.get(key) == value}
    return {**(known(asked.get("labels")) or {}), **own}


def own_labels(inputs: Inputs) -> Inputs:
    """Live inputs without the provider's own label."""
    if isinstance(inputs.get("labels"), dict):
        asked = {k: v for k, v in inputs["labels"].items() if k not in PROVISIONED_LABEL}
        return {**inputs, "labels": asked}
    return inputs


def known(value: Any) -> Any:
    """The value; None if a preview does not know it."""
    return None if isinstance(value, Unknown) else value
