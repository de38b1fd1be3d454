"""The image family: what VMs boot from, baked from the stack's recipe."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import pulumi
from pulumi_gcp import projects

from outlast.dynamic.image_bake import ImageBake

USER_ROLE = "roles/compute.imageUser"


class ImageFamilyArgs(TypedDict):
    """Inputs of ImageFamily."""

    recipe: Mapping[str, Any]
    """The checked recipe, without its files. Plain: its hash decides whether anything is baked."""
    hash: str
    family: str
    project: str
    """Project of the image and of its builder."""
    labels: Mapping[str, str]
    """The stack's labels."""
    service_account: pulumi.Input[str]
    """The builder's account, if it reads the bucket."""
    bundle: pulumi.Input[str]
    """`gs://` path of the bundle; empty if no trainers are baked in."""
    bundle_sha256: str
    payer: str
    """The project that pays for data in buckets that let the requester pay; empty is none."""
    timeouts: str
    """JSON object of seconds."""
    network: pulumi.Input[str]
    """The builder's network, a name or an address."""
    subnetwork: pulumi.Input[str]
    """The builder's subnetwork; empty for the network's own in the region."""
    external_ip: bool
    """Whether the builder has its own address on the internet."""
    after: Sequence[pulumi.Resource]
    """What the builder needs: a route to the internet, permissions, the bundle."""
    users: Sequence[str]
    """Members that may boot from the project's images too."""


class ImageFamily(pulumi.ComponentResource):
    """The image of a recipe, the newest of its family.

    It is built only when the recipe's content has changed. A failure before the image is complete
    leaves the family as it was.
    """

    image: pulumi.Output[str]
    """The concrete image; give this to the run."""

    def __init__(
        self, name: str, args: ImageFamilyArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("outlast:index:ImageFamily", name, {}, opts)
        for member in args["users"]:
            projects.IAMMember(
                f"{name}-user-{member}",
                project=args["project"],
                role=USER_ROLE,
                member=member,
                opts=pulumi.ResourceOptions(parent=self),
            )
        bake = ImageBake(
            f"{name}-bake",
            {
                "recipe": dict(args["recipe"]),
                "hash": args["hash"],
                "family": args["family"],
                "project": args["project"],
                "labels": dict(args["labels"]),
                "service_account": args["service_account"],
                "bundle": args["bundle"],
                "bundle_sha256": args["bundle_sha256"],
                "payer": args["payer"],
                "timeouts": args["timeouts"],
                "network": args["network"],
                "subnetwork": args["subnetwork"],
                "external_ip": args["external_ip"],
            },
            pulumi.ResourceOptions(parent=self, depends_on=list(args["after"])),
        )
        self.image = bake.image
        self.register_outputs({"image": self.image})
