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
    """The bundle's file on this machine. The engine compares its bytes, not its place."""


class BundleObject(pulumi.ComponentResource):
    """The uploaded bundle. Kept at destroy and when the code changes: a live VM may boot again
    from a template that names it, and a run's record should stay runnable."""

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
                # The provider deletes first what has a given name, and before it all that depends
                # on it: the template, which the group still uses. The name is the content's.
                delete_before_replace=False,
            ),
        )
        self.object = bundle.name
        self.register_outputs({"object": self.object})
