"""The health check: how the group asks its VMs whether they make progress."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import compute

from outlast.spec import labels

INTERVAL_SEC = 10
"""Seconds between two checks, and their limit, which the platform does not allow to be longer
(`timeoutSec` of HealthCheck, discovery document compute v1, revision 20261106)."""
MISSES = 3
"""Failed checks in a row that make a VM UNHEALTHY. The answer itself turns bad late: it depends on
the age of the last sign of progress.
"""


class HealthCheckArgs(TypedDict):
    """Inputs of HealthCheck."""

    project: pulumi.Input[str]
    port: int
    """Port of the VM's health process."""
    mark: NotRequired[str]
    """Ends the descriptions: names the stack, so that `outlast destroy` finds what a damaged state
    has lost."""


class HealthCheck(pulumi.ComponentResource):
    """An HTTP check; 200 means that the VM shows recent progress, even if its run is failing."""

    self_link: pulumi.Output[str]
    """The check's address; give this to the group."""

    def __init__(
        self,
        name: str,
        args: HealthCheckArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:HealthCheck", name, {}, opts)
        check = compute.HealthCheck(
            f"{name}-check",
            project=args["project"],
            description=labels.described(
                "Outlast: whether a VM makes progress", args.get("mark", "")
            ),
            check_interval_sec=INTERVAL_SEC,
            timeout_sec=INTERVAL_SEC,
            healthy_threshold=1,
            unhealthy_threshold=MISSES,
            http_health_check={"port": args["port"], "request_path": "/"},
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.self_link = check.self_link
        self.register_outputs({"self_link": self.self_link})
