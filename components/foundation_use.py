"""An experiment's note that it stands on a foundation."""

from typing import TypedDict

import pulumi
from pulumi_gcp import storage


class FoundationUseArgs(TypedDict):
    """Inputs of FoundationUse."""

    bucket: pulumi.Input[str]
    object: str
    """Object name of the note; plain str, as people may have to delete it."""
    owner: str
    """Whose experiment it is."""


class FoundationUse(pulumi.ComponentResource):
    """The note in the bucket by which a foundation knows that it is in use. It goes with the
    experiment's stack; while one is there, the foundation is not destroyed."""

    object: pulumi.Output[str]
    """The note's object name."""

    def __init__(
        self,
        name: str,
        args: FoundationUseArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:FoundationUse", name, {}, opts)
        note = storage.BucketObject(
            f"{name}-note",
            bucket=args["bucket"],
            name=args["object"],
            content=args["owner"],
            content_type="text/plain",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.object = note.name
        self.register_outputs({"object": self.object})
