"""A foundation: what several experiments share, without a run."""

from typing import Any

import pulumi

from outlast import settings
from outlast.components import shared
from outlast.components.foundation_use import FoundationUse
from outlast.components.shared import Shared, StackComponent
from outlast.dynamic.foundation_guard import FoundationGuard
from outlast.settings import Settings
from outlast.settings.experiment_args import ExperimentArgs


class Foundation(StackComponent):
    """The bucket, the network, the role and the image that several experiments share, and a guard
    that keeps them while an experiment uses them. A sweep's also has the identity of its trials'
    VMs.

    An experiment of another stack names it with `outlast:foundation`; `export` gives the stack the
    outputs that those experiments read.
    """

    bucket: pulumi.Output[str]
    """The bucket's name."""
    network: pulumi.Output[str]
    """The network's name or address."""
    leave_role: pulumi.Output[str]
    """The role that lets a VM leave its group."""

    def __init__(
        self,
        name: str,
        args: ExperimentArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`args`: as for Experiment, without those of a run. Raises SettingsError."""
        config: Any = args  # `of` gives Settings
        if not isinstance(config, Settings):
            config = settings.of_args({**args, "part": "foundation"})
        shared.refuse_second("Foundation", name)
        found = settings.look_up(config)
        super().__init__("outlast:index:Foundation", name, opts)
        base = shared.declare(config, found, pulumi.ResourceOptions(parent=self))
        self.outputs = {**_declare(self, base), "bucketLocation": found.location}
        self.bucket = pulumi.Output.from_input(base.bucket)
        self.network = pulumi.Output.from_input(base.network)
        self.leave_role = pulumi.Output.from_input(base.leave_role)
        self.register_outputs(
            {"bucket": self.bucket, "network": self.network, "leave_role": self.leave_role}
        )


def _declare(parent: pulumi.Resource, base: Shared) -> dict[str, Any]:
    config = base.config
    recipe, outputs = config.recipe, settings.foundation_outputs(config)
    identity = None
    if config.part == "sweep" or (recipe and recipe.needs_token):
        identity = base.identity()
    if config.part == "sweep" and identity:
        outputs["serviceAccount"] = identity.email
        base.resources.append(identity)
    if config.foundation:  # a sweep's, which passes it on
        FoundationUse("use", {
            "bucket": base.bucket, "object": config.foundation_note, "owner": config.owner,
        }, base.opts)  # fmt: skip
    if recipe:
        code = settings.bundle(config)
        bundle = base.bundle(code) if recipe.trainers else None
        by = identity if recipe.needs_token else None
        base.resources.append(base.image(code, by=by, bundle=bundle))
    FoundationGuard(
        "foundation", {"owner": config.owner, "bucket": config.bucket},
        pulumi.ResourceOptions(parent=parent, depends_on=base.resources))  # fmt: skip
    return {
        **outputs,
        "bucket": base.bucket,
        "network": base.network,
        "subnetwork": base.subnetwork,
        "leaveRole": base.leave_role,
    }
