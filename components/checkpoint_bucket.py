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
    # Settings that people changed on a bucket stay: other stacks share it.
    *("autoclass", "cors", "defaultEventBasedHold", "enableObjectRetention", "encryption"),
    *("ipFilter", "lifecycleRules", "logging", "requesterPays", "retentionPolicy"),
    *("storageClass", "website"),
)
"""Inputs that an existing bucket keeps: as it was created, or as people set them since."""
INPUTS = {"softDeleteDays": "softDeletePolicy", "versioning": "versioning"}


class CheckpointBucketArgs(TypedDict):
    """Inputs of CheckpointBucket."""

    bucket: str
    """The bucket's name. Plain str: people type it, and adoption goes by it."""
    project: pulumi.Input[str]
    location: pulumi.Input[str]
    """Location of a new bucket; an existing bucket stays where it is."""
    soft_delete_days: NotRequired[int]
    """Days for which deleted objects are kept, and billed; 0 by default."""
    versioning: NotRequired[bool]
    """Whether old versions of objects are kept, and billed; not by default."""
    kms_key: NotRequired[str]
    """Key that encrypts the objects of a new bucket; empty for Google's."""
    leave: NotRequired[Collection[str]]
    """Which of softDeleteDays and versioning an existing bucket keeps unchanged; none by
    default.
    """
    adopt: NotRequired[bool]
    """Whether a bucket with this name and our label exists; it is adopted instead of created."""


class CheckpointBucket(pulumi.ComponentResource):
    """A private bucket that outlives its stack.

    `destroy` leaves it (`retain_on_delete`) and a later `up` adopts it. Several stacks of a project
    share it, so it carries nothing of a single stack, and settings that people changed stay. Soft
    delete and versioning are off by default: each would bill every checkpoint that retention
    deletes.
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
            encryption={"default_kms_key_name": key} if (key := args.get("kms_key")) else None,
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
