"""The checked configuration of one stack."""

import json
from dataclasses import asdict, fields
from typing import Any

from outlast.cloud import fit
from outlast.cloud import recipe as recipes
from outlast.costs import pricing
from outlast.settings.keys import Keys
from outlast.settings.rules.budget import hour_prices
from outlast.spec import foundation, identity, network_rules, secrets, sweeps
from outlast.spec.delivery import Git
from outlast.spec.pin import Pin
from outlast.spec.run_spec import NO_DEADLINE, RunSpec, Timeouts, texts_of
from outlast.spec.sweep_rules import SweepRules


class Settings(Keys):
    """The checked configuration of one stack: each key, with empty values replaced by their
    meaning, and what follows from all of them.
    """

    project: str
    owner: str
    """`organization/project/stack`, the owner of the run."""
    content: dict[str, Any]
    """The content that names the run, unless `outlast:run` does."""
    mutable: dict[str, str]
    """Flags that may change in the middle of the run, and how."""
    git: Git | None
    command_options: dict[str, Any]
    """More options of the command's runner, by flag."""
    sweep_rules: SweepRules | None
    """The sweep of which the run is a trial; it does not change the run's name."""
    spot: bool
    restarts: bool
    """Whether the VM stops and boots again when its host is maintained."""
    gpus: int
    """GPUs that the VM must have, attached or included."""
    modules: str
    """NVIDIA's kernel modules that these need; empty for either."""
    recipe: recipes.Recipe | None
    """The recipe of the image; None if no image is baked."""
    leave_role: str
    """The foundation's role; empty if the stack declares its own."""
    shared_account: str
    """Address of the service account of a sweep's trials, which has its bindings already; empty if
    the stack binds its own."""
    network_rules: network_rules.NetworkRules
    timeouts: str
    """Canonical JSON object of seconds, as the VM reads it."""
    advice: tuple[str, ...]
    """Advice that is not an error."""

    def run_spec(self, bundle_sha256: str) -> RunSpec:
        """The run as its VM gets it; placement, deadline and bundle are added later."""
        values = {one.name: getattr(self, one.name, None) for one in fields(RunSpec)}
        known = {name: value for name, value in values.items() if value is not None}
        return RunSpec(
            **{
                **known,
                "placement": 0,
                "deadline": NO_DEADLINE,
                "args": texts_of(self.args),
                "timeouts": Timeouts.parse(self.timeouts),
                "command": json.loads(self.command) if self.command else None,
                "data": self.data_paths if self.command else (),
                "bundle_sha256": bundle_sha256,
            }
        )

    @property
    def location(self) -> str:
        """The group's location; another one makes another placement."""
        return self.zone or ",".join(self.zones) or self.region

    @property
    def needs(self) -> fit.Needs:
        """What its VMs need from their image."""
        return fit.Needs(self.boot_disk_gb, self.gpus, self.machine_type, self.modules)

    @property
    def boot(self) -> dict[str, Any]:
        """The same for RunPin, with the image's recipe."""
        base = self.recipe.base if self.recipe else ""
        driver = self.recipe is not None and self.recipe.installs_driver
        return {**asdict(self.needs), "base": base, "installs_driver": driver}

    @property
    def named(self) -> str:
        """The run's name according to its content."""
        return identity.name_of(self.content)

    @property
    def secrets(self) -> dict[str, str]:
        """The secret that each setting names; the VM must be allowed to read them."""
        named = {f"secretEnv.{variable}": name for variable, name in self.secret_env.items()}
        git = self.git.secret if self.git else ""
        named |= {"gitSecret": git, "webhookSecret": self.webhook_secret}
        named["webhookKeySecret"] = self.webhook_key_secret
        return {setting: name for setting, name in named.items() if name}

    @property
    def secret_owners(self) -> list[tuple[str, str]]:
        """(project, name) of each secret once, for one binding each."""
        return sorted({secrets.parts(name)[:2] for name in self.secrets.values()})

    @property
    def prefix(self) -> str:
        """The experiment's prefix in the bucket."""
        return f"experiments/{self.experiment}"

    @property
    def sweep_name(self) -> str:
        """The sweep that the stack's VMs belong to; empty for none."""
        if self.part == "sweep":
            return self.experiment.partition(sweeps.TRIAL)[0]
        return self.sweep_rules.name if self.sweep_rules else ""

    @property
    def written(self) -> str:
        """What the names of objects that the stack's VMs may write begin with."""
        return sweeps.written(self.sweep_name) if self.part == "sweep" else f"{self.prefix}/"

    @property
    def billed(self) -> dict[str, Any]:
        """What is paid for besides the machine type, in the form of the attempts' records."""
        return {
            "spot": self.spot,
            "accelerator": self.accelerator,
            "accelerators": self.accelerator_count,
            "disk": self.boot_disk_type,
            "disk_gb": self.boot_disk_gb,
            "ssds": self.local_ssd,
            "address": self.network_rules.external_ip,
            "nat": self.network_rules.isolated and self.network_rules.nat,
        }

    @property
    def priced_zone(self) -> str:
        """A zone of its VMs: prices depend on the region only."""
        return self.zone or f"{self.region}-a"

    @property
    def machine_prices(self) -> dict[str, pricing.Sum]:
        """What an hour of its VM costs, by each machine type that it may have."""
        return hour_prices(
            self.billed, (self.machine_type, *map(str, self.machine_types)), self.priced_zone
        )

    @property
    def hour_prices(self) -> dict[str, float]:
        """The same in dollars, for the VM, which has no list of prices; empty without a budget."""
        if not self.budget_dollars:
            return {}
        return {name: round(one.hour, 9) for name, one in self.machine_prices.items()}

    @property
    def tags(self) -> list[str]:
        """The VMs' network tags: one if a firewall rule applies to them."""
        return [network_rules.tag(self.experiment)] if self.network_rules.tagged else []

    @property
    def health_port(self) -> int:
        """Port for health checks; 0 without them."""
        return network_rules.HEALTH_PORT if self.network_rules.checked else 0

    @property
    def health_check(self) -> str:
        """The value of `outlast-health`; empty without health checks."""
        return (
            f"{self.health_port} {self.network_rules.health_limit_sec}"
            if self.network_rules.checked
            else ""
        )

    @property
    def foundation_note(self) -> str:
        """The note that tells the foundation that this experiment uses it."""
        return foundation.note(self.foundation, self.experiment)

    @property
    def reads(self) -> tuple[str, ...]:
        """What the VM must be allowed to read besides its bucket's `data/` and its own prefix."""
        init = Pin.parse(self.init).path if self.init else ""
        baked = tuple(one.url for one in self.recipe.data) if self.recipe else ()
        below = tuple(f"gs://{self.bucket}/{folder}/" for folder in (self.prefix, "data"))
        besides = [
            path
            for path in ((init,) if init else ()) + baked
            if path.startswith("gs://") and not path.startswith(below)
        ]
        own = tuple(path for path in self.data_paths if path not in self.public_data)
        return tuple(dict.fromkeys(own + tuple(besides)))
