"""The checked configuration of one stack."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outlast.cloud import fit
from outlast.cloud import recipe as recipes
from outlast.spec import delivery, foundation, identity, network_rules, secrets
from outlast.spec.pin import Pin
from outlast.spec.run_spec import NO_DEADLINE, Argument, RunSpec, Timeouts, texts_of


@dataclass(frozen=True)
class Settings:
    """The checked configuration of one stack."""

    project: str
    region: str
    zone: str
    """Empty if the group is regional."""
    zones: tuple[str, ...]
    """Of a regional group; empty: all of the region's."""
    owner: str
    """`organization/project/stack`: whose the run is."""
    experiment: str
    trainer: str
    args: Mapping[str, Argument]
    run: str
    content: Mapping[str, Any]
    """What the run's name is made of, unless `outlast:run` gives it another."""
    mutable: Mapping[str, str]
    """Flags that may change in the middle of the run, each with how."""
    resume: int
    on_new_run: str
    """`refuse` or `replace`: what becomes of an open run that another would replace."""
    checkpoint_every: str
    retries_failures: int
    keep_every_steps: int
    trainer_python: str
    trainer_user: str
    """`root`, or `own`: whom the trainer runs as on the VM."""
    processes: int
    command: str
    """JSON of a text or a list of texts; empty if a trainer trains."""
    source: str
    """Folder of the checkout with the command's or the trainer's own files; empty for none."""
    requirements: str
    """File or folder of the checkout, or of the repository; empty for none."""
    delivery: delivery.Delivery
    quiet_sec: int
    command_options: str
    """JSON of more options of the command's runner, by their flags; empty for none."""
    max_run_minutes: int
    mode: str
    machine_type: str
    more_types: tuple[str, ...]
    """By rank after `machine_type`."""
    spot: bool
    restarts: bool
    """Whether the VM stops and boots again where its host is maintained."""
    accelerator: str
    accelerator_count: int
    gpus: int
    """GPUs that the VM must have, attached or built in."""
    local_ssd: int
    min_cpu_platform: str
    image: str
    recipe: recipes.Recipe | None
    """What the image is baked from; None: it is there."""
    update: str
    """`opportunistic` or `now`: when a changed template reaches a living VM."""
    boot_disk_gb: int
    boot_disk_type: str
    bucket: str
    bucket_mode: str
    """`managed`, made or adopted by its label; or `existing`, somebody else's."""
    soft_delete_days: int
    versioning: bool
    part: str
    """`experiment`, or `foundation`: what several of them share, without a run."""
    foundation: str
    """`organization/project/stack` of the foundation; empty for none."""
    leave_role: str
    """The foundation's; empty if the stack declares its own."""
    network_rules: network_rules.NetworkRules
    data_paths: tuple[str, ...]
    """`gs://` paths that the VM may read besides."""
    init: str
    """A pinned checkpoint; empty for none."""
    labels: Mapping[str, str]
    """The stack's, with the user's."""
    secret_env: Mapping[str, str]
    """Variable of the trainer to its secret, `projects/P/secrets/NAME/versions/V`."""
    webhook: str
    webhook_secret: str
    """The secret that holds the webhook's address; empty for none."""
    notice_sec: int
    timeouts: str
    """Canonical JSON object of seconds, as the VM reads it."""
    advice: tuple[str, ...]
    """Sentences on what could be better and is not an error."""

    def run_spec(self, bundle_sha256: str) -> RunSpec:
        """The run as its VM gets it; placement, deadline and bundle are known later."""
        return RunSpec(
            bucket=self.bucket,
            prefix=self.prefix,
            run=self.run,
            resume=self.resume,
            placement=0,
            owner=self.owner,
            trainer=self.trainer,
            deadline=NO_DEADLINE,
            args=texts_of(self.args),
            checkpoint_every=self.checkpoint_every,
            timeouts=Timeouts.parse(self.timeouts),
            retries_failures=self.retries_failures,
            keep_every_steps=self.keep_every_steps,
            trainer_python=self.trainer_python,
            trainer_user=self.trainer_user,
            processes=self.processes,
            gpus=self.gpus,
            mode=self.mode,
            command=json.loads(self.command) if self.command else None,
            quiet_sec=self.quiet_sec,
            command_options=json.loads(self.command_options or "{}"),
            data=self.data_paths if self.command else (),
            delivery=self.delivery.kind,
            git=self.delivery.git,
            bundle_sha256=bundle_sha256,
            secret_env=dict(self.secret_env),
            webhook=self.webhook,
            webhook_secret=self.webhook_secret,
            init=self.init,
            content=dict(self.content),
            billed=self.billed,
        )

    @property
    def location(self) -> str:
        """Where the group is; another one is another placement."""
        return self.zone or ",".join(self.zones) or self.region

    @property
    def needs(self) -> fit.Needs:
        """What its VMs need of the image that they boot from."""
        return fit.Needs(self.boot_disk_gb, self.gpus, self.machine_type)

    @property
    def boot(self) -> dict[str, Any]:
        """The same for RunPin, with what the image is baked from."""
        base = self.recipe.base if self.recipe else ""
        driver = self.recipe is not None and self.recipe.installs_driver
        return {**asdict(self.needs), "base": base, "installs_driver": driver}

    @property
    def named(self) -> str:
        """The name that the run's content gives it."""
        return identity.name_of(self.content)

    @property
    def secrets(self) -> dict[str, str]:
        """Setting to the secret that it names; what the VM must be allowed to read."""
        named = {f"secretEnv.{variable}": name for variable, name in self.secret_env.items()}
        git = self.delivery.git.secret if self.delivery.git else ""
        named |= {"gitSecret": git, "webhookSecret": self.webhook_secret}
        return {setting: name for setting, name in named.items() if name}

    @property
    def secret_owners(self) -> list[tuple[str, str]]:
        """(project, name) of each secret once, for one binding each."""
        return sorted({secrets.parts(name)[:2] for name in self.secrets.values()})

    @property
    def prefix(self) -> str:
        """Where the experiment lives in the bucket."""
        return f"experiments/{self.experiment}"

    @property
    def billed(self) -> dict[str, Any]:
        """What is paid for beside the machine type, as the attempts' records have it."""
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
    def tags(self) -> list[str]:
        """The VMs' network tags: one where a firewall rule is meant for them."""
        return [network_rules.tag(self.experiment)] if self.network_rules.tagged else []

    @property
    def health_port(self) -> int:
        """Where a VM is asked for its health; 0 if it is not."""
        return network_rules.HEALTH_PORT if self.network_rules.checked else 0

    @property
    def health(self) -> str:
        """As `outlast-health` has it; empty without health checks."""
        return (
            f"{self.health_port} {self.network_rules.health_limit_sec}"
            if self.network_rules.checked
            else ""
        )

    @property
    def foundation_note(self) -> str:
        """The object by which the foundation knows that this experiment stands on it."""
        return foundation.note(self.foundation, self.experiment)

    @property
    def reads(self) -> tuple[str, ...]:
        """What the VM must be allowed to read beside its bucket's `data/` and its own prefix."""
        init = Pin.parse(self.init).path if self.init else ""
        baked = tuple(one.url for one in self.recipe.data) if self.recipe else ()
        below = tuple(f"gs://{self.bucket}/{folder}/" for folder in (self.prefix, "data"))
        besides = [
            path
            for path in ((init,) if init else ()) + baked
            if path.startswith("gs://") and not path.startswith(below)
        ]
        return tuple(dict.fromkeys(self.data_paths + tuple(besides)))
