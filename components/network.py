"""The stack's own network, which reaches only Google's APIs."""

from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import compute

from outlast.spec import labels, network_rules


class NetworkArgs(TypedDict):
    """Inputs of Network."""

    project: pulumi.Input[str]
    region: pulumi.Input[str]
    ip_range: NotRequired[str]
    """Addresses of the subnetwork; the network is not connected to any other by itself."""
    mark: NotRequired[str]
    """Ends the descriptions: names the stack, so that `outlast destroy` finds what a damaged state
    has lost."""
    nat: NotRequired[bool]
    """Whether VMs reach the internet. Plain bool: it decides what is declared."""


class Network(pulumi.ComponentResource):
    """A VPC with one subnetwork. VMs have no external address and accept no connections from
    outside. They reach buckets and the APIs through Private Google Access, and everything else
    through the NAT, if there is one."""

    network: pulumi.Output[str]
    """The network's address."""

    subnetwork: pulumi.Output[str]
    """The subnetwork's address."""

    def __init__(
        self,
        name: str,
        args: NetworkArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:Network", name, {}, opts)
        # Another description would replace a network that VMs use.
        child = pulumi.ResourceOptions(parent=self, ignore_changes=["description"])
        said = labels.described("Outlast: VMs without external addresses", args.get("mark", ""))
        network = compute.Network(
            f"{name}-vpc",
            project=args["project"],
            description=said,
            auto_create_subnetworks=False,
            opts=child,
        )
        subnetwork = compute.Subnetwork(
            f"{name}-subnetwork",
            project=args["project"],
            region=args["region"],
            network=network.id,
            ip_cidr_range=args.get("ip_range", network_rules.RANGE),
            description=said,
            private_ip_google_access=True,
            opts=child,
        )
        if args.get("nat"):
            router = compute.Router(
                f"{name}-router",
                project=args["project"],
                region=args["region"],
                network=network.id,
                description=said,
                opts=child,
            )
            compute.RouterNat(
                f"{name}-nat",
                project=args["project"],
                region=args["region"],
                router=router.name,
                nat_ip_allocate_option="AUTO_ONLY",
                source_subnetwork_ip_ranges_to_nat="LIST_OF_SUBNETWORKS",
                subnetworks=[
                    {"name": subnetwork.id, "source_ip_ranges_to_nats": ["ALL_IP_RANGES"]}
                ],
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.network = network.id
        self.subnetwork = subnetwork.id
        self.register_outputs({"network": self.network, "subnetwork": self.subnetwork})
