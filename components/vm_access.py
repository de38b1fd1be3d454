"""Firewall rules: who may connect to a stack's VMs."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import compute

from outlast.spec import labels, network_rules

SSH_PORT = 22


class VmAccessArgs(TypedDict):
    """Inputs of VmAccess."""

    project: pulumi.Input[str]
    network: pulumi.Input[str]
    """Name or address."""
    tag: str
    """The VMs' network tag; the rules apply to these VMs only."""
    health_port: int
    """Port for the platform's health checks; 0 for none. Plain int: it decides what is declared."""
    mark: NotRequired[str]
    """Ends the descriptions: names the stack, so that `outlast destroy` finds what a damaged state
    has lost."""
    ssh: bool
    """Whether Identity-Aware Proxy may forward SSH. Plain bool: it decides what is declared."""


class VmAccess(pulumi.ComponentResource):
    """The firewall rules of one stack's VMs: they allow health checks and SSH through
    Identity-Aware Proxy, each if it is enabled, and nothing else.
    """

    def __init__(
        self,
        name: str,
        args: VmAccessArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:VmAccess", name, {}, opts)
        if args["health_port"]:
            port = args["health_port"]
            self._rule(f"{name}-health", args, "health checks", port, network_rules.HEALTH_SOURCES)
        if args["ssh"]:
            whose = "SSH through Identity-Aware Proxy"
            self._rule(f"{name}-ssh", args, whose, SSH_PORT, network_rules.IAP_SOURCES)
        self.register_outputs({})

    def _rule(
        self, name: str, args: VmAccessArgs, whose: str, port: int, sources: Sequence[str]
    ) -> None:
        compute.Firewall(
            name,
            project=args["project"],
            network=args["network"],
            description=labels.described(
                f"Outlast: {whose}, to {args['tag']}", args.get("mark", "")
            ),
            direction="INGRESS",
            allows=[{"protocol": "tcp", "ports": [str(port)]}],
            source_ranges=list(sources),
            target_tags=[args["tag"]],
            # Another description would replace the rule, and cut off VMs meanwhile.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["description"]),
        )
