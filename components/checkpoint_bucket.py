"""The bucket: the only memory of every run."""

from collections.abc import Collection
from typing import NotRequired, TypedDict

import pulumi
from pulumi_gcp import storage

from outlast.spec import labels

COMPONENT = "checkpoint-bucket"
DAY_SEC = 86_400
LEFT_ALONE = (
    # A bucket never moves: a stack in another region uses it where it is.
    *("location", "customPlacementConfig", "hierarchicalNamespace", "rpo"),
    # What people set on a bucket stays: other stacks share it.
    *("autoclass", "cors", "defaultEventBasedHold", "enableObjectRetention", "encryption"),
    *("ipFilter", "lifecycleRules", "logging", "requesterPays", "retentionPolicy"),
    *("storageClass", "website"),
)
"""Inputs that a bucket has as it was made, or as people set them since."""
INPUTS = {"softDeleteDays": "softDeletePolicy", "versioning": "versioning"}


class CheckpointBucketArgs(TypedDict):
    """Inputs of CheckpointBucket."""

    bucket: str
    """The bucket's name. Plain str: people type it, and adoption goes by it."""
    project: pulumi.Input[str]
    location: pulumi.Input[str]
    """Where a new bucket is made; one that exists stays where it is."""
    soft_delete_days: NotRequired[int]
    """How long what was deleted is kept, and billed; none by default."""
    versioning: NotRequired[bool]
    """Whether old versions of objects are kept, and billed; not by default."""
    leave: NotRequired[Collection[str]]
    """Which of the two, by their settings (softDeleteDays, versioning), a bucket that exists keeps
    as it has it; none by default."""
    adopt: NotRequired[bool]
    """Whether a bucket of this name with our label exists; it is taken over, not made."""


class CheckpointBucket(pulumi.ComponentResource):
    """A private bucket that outlives its stack.

    `destroy` leaves it (`retain_on_delete`) and a later `up` adopts it. Several stacks of a project
    share it, so that nothing of one stack is written on it, and what people set on it stays. Soft
    delete and versions are off unless asked for: each would bill every checkpoint that retention
    dropped.
    """

    bucket: pulumi.Output[str]
    """The bucket's name, known once it exists."""

    def __init__(
        self,
        name: str,
        args: CheckpointBucketArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("outlast:index:CheckpointBucket", name, {}, opts)
        bucket = storage.Bucket(
            f"{name}-bucket",
            name=args["bucket"],
            project=args["project"],
            location=args["location"],
            storage_class="STANDARD",
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            soft_delete_policy={
                "retention_duration_seconds": args.get("soft_delete_days", 0) * DAY_SEC
            },
            versioning={"enabled": args.get("versioning", False)},
            labels=labels.of_shared(COMPONENT),
            opts=pulumi.ResourceOptions(
                parent=self,
                retain_on_delete=True,
                import_=args["bucket"] if args.get("adopt") else None,
                ignore_changes=[*LEFT_ALONE, *(INPUTS[key] for key in args.get("leave", ()))],
            ),
        )
        self.bucket = bucket.name
        self.register_outputs({"bucket": self.bucket})
