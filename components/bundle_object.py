"""The code of a run, in the bucket."""

from typing import TypedDict

import pulumi
from pulumi_gcp import storage


class BundleObjectArgs(TypedDict):
    """Inputs of BundleObject."""

    bucket: pulumi.Input[str]
    object: str
    """Object name, which holds the bundle's sha256: new code is a new object."""
    path: str
    """The bundle's file on this machine. The engine compares its bytes, not its path."""


class BundleObject(pulumi.ComponentResource):
    """The uploaded bundle. It stays in the bucket at destroy and when the code changes: a live VM
    may boot again from a template that names it, and an old run should stay repeatable.
    """

    object: pulumi.Output[str]
    """The object's name, known once it is uploaded."""

    def __init__(
        self,
        name: str,
        args: BundleObjectArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:BundleObject", name, {}, opts)
        bundle = storage.BucketObject(
            f"{name}-object",
            bucket=args["bucket"],
            name=args["object"],
            source=pulumi.FileAsset(args["path"]),
            content_type="application/zip",
            opts=pulumi.ResourceOptions(
                parent=self,
                retain_on_delete=True,
                # A resource with a given name would be deleted before its replacement, after
                # everything that depends on it, such as the template that the group still uses.
                # This name depends on the content.
                delete_before_replace=False,
            ),
        )
        self.object = bundle.name
        self.register_outputs({"object": self.object})
