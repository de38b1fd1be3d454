"""An experiment's note that it uses a foundation."""

from typing import TypedDict

import pulumi
from pulumi_gcp import storage


class FoundationUseArgs(TypedDict):
    """Inputs of FoundationUse."""

    bucket: pulumi.Input[str]
    object: str
    """Object name of the note. Plain str: people may have to delete it."""
    owner: str
    """The experiment's owner, `organization/project/stack`."""


class FoundationUse(pulumi.ComponentResource):
    """The note in the bucket that tells a foundation that it is in use. It is deleted with the
    experiment's stack; as long as a note exists, the foundation cannot be destroyed.
    """

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
