"""The VMs that the cloud has seen, how far each is, and which belong to a scenario's target."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.localcloud.compute.fleet.model import Instance
from outlast.localcloud.http.request_facts import RequestFacts


@dataclass
class Life:
    """One boot of a VM, as far as the cloud knows."""

    id: str
    name: str
    experiment: str
    """The bucket prefix of the VM's run; empty if its metadata has none."""
    boot: int
    term: int | None = None
    step: int = 0
    total: int | None = None
    part: str = ""
    """The part of the run that it trains; empty if the run has no parts."""
    before: int = 0
    """Steps of the parts before it, included in `step` and `total`."""
    commits: int = 0
    committing: bool = False
    """Whether a manifest is stored that HEAD does not name yet."""
    ended: bool = False
    """Whether its process has ended."""
    cut_off: bool = False
    """Whether it has no network."""
    notice: tuple[float | None, float | None] = (None, None)
    """Seconds of notice and grace of its preemption, if a scenario sets them."""
    counted: dict[int, int] = field(default_factory=dict)
    """By event: the number of moments at which it could have happened."""


class Lives:
    """The last boot of each VM, and which of them belong to the scenario's target."""

    def __init__(self, known: dict[str, Life] | None = None) -> None:
        """`known`: VMs that other scenarios of the cloud see too."""
        self._lives: dict[str, Life] = {} if known is None else known
        """By instance id, in the order of the boots."""
        self._boots = 0
        self.target = ""
        """The experiment that a scenario applies to; empty for all."""
        self._own = re.compile("")
        """Pattern of the request targets that belong to the scenario's target."""

    def aim(self, target: str) -> None:
        """Makes this experiment the target; counts its VMs from 1."""
        self.target = target
        name = re.escape(target)
        self._own = re.compile(
            rf"experiments/{name}/|/{name}-[0-9a-f]{{10}}(-r\d+)?(?![-0-9a-z])" if target else ""
        )
        self._boots = 0
        for life in filter(self.is_ours, self._lives.values()):
            self._boots += 1
            life.boot = self._boots
            life.counted = {}

    def clear(self) -> None:
        """Forgets every VM."""
        self._lives.clear()

    def forget_ended(self) -> None:
        """Forgets the target's VMs whose process has ended."""
        for life in [life for life in self.all() if self.is_ours(life) and life.ended]:
            del self._lives[life.id]

    def begin(self, instance: Instance, *, counts: bool) -> Life:
        """Notes a VM's boot, which is counted if `counts` and if it is the target's."""
        life = Life(
            instance.id, instance.name, _experiment(instance.properties), boot=self._boots + 1
        )
        self._lives.pop(instance.id, None)  # an earlier boot of this VM
        self._lives[instance.id] = life
        if counts and self.is_ours(life):
            self._boots += 1
        return life

    def get(self, instance_id: str | None) -> Life | None:
        """The VM of this id; None if unknown."""
        return self._lives.get(instance_id or "")

    def all(self) -> list[Life]:
        """Every VM, in the order of the boots."""
        return list(self._lives.values())

    def living(self) -> list[Life]:
        """The target's VMs whose process has not ended."""
        return [life for life in self.all() if self.is_ours(life) and not life.ended]

    def of(self, call: RequestFacts) -> Life | None:
        """The VM that sent a request; None if unknown."""
        if not call.vm:
            return None
        if call.instance is not None:
            return self._lives.get(call.instance)
        named = [life for life in self._lives.values() if life.name == call.vm]
        return named[-1] if named else None

    def named(self, boot: int | None, attempt: int | None) -> Life:
        """The target's VM of this boot or attempt; raises LookupError."""
        for life in self._lives.values():
            if self.is_ours(life) and (
                life.boot == boot if boot is not None else life.term == attempt
            ):
                return life
        raise LookupError(
            f"no VM has begun attempt {attempt}" if boot is None else f"no VM has begun boot {boot}"
        )

    def is_ours(self, life: Life) -> bool:
        """Whether a VM belongs to the target."""
        return not self.target or life.experiment == f"experiments/{self.target}"

    def means(self, properties: Mapping[str, Any]) -> bool:
        """Whether a VM of these properties belongs to the target."""
        return not self.target or _experiment(properties) == f"experiments/{self.target}"

    def owns(self, path: str) -> bool:
        """Whether a path of Compute belongs to the target."""
        return self._own.search(f"/{path}") is not None

    def hits(self, call: RequestFacts) -> bool:
        """Whether a request belongs to the target: sent by its VMs, or about its objects or
        groups."""
        if life := self.of(call):
            return self.is_ours(life)
        return any(self._own.search(text) for text in (*call.subjects, call.object or ""))


def _experiment(properties: Mapping[str, Any]) -> str:
    """The bucket prefix that a VM's metadata names."""
    items = (properties.get("metadata") or {}).get("items") or []
    return next((str(i.get("value") or "") for i in items if i["key"] == "outlast-prefix"), "")
