"""What a VM may do, in Google's permissions."""

LEAVE_GROUP = (
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.update",
)
"""Permissions that a VM needs to leave its group when a run ends: those of a public deployment that
does it (docs/assumptions.md, `leaving`)."""


def below(bucket: str, prefix: str) -> str:
    """The IAM condition "objects below the prefix, and listing them"."""
    return starting(bucket, f"{prefix}/")


def starting(bucket: str, *starts: str) -> str:
    """The IAM condition "objects whose name has one of these starts, and listing them".

    Lists are authorised on the bucket, so a condition on the name alone would refuse every list.
    Without the right to list, a missing object would answer 403 instead of 404. Whether this list
    is enough for a 404 is the assumption `absent-object` (docs/assumptions.md).
    """
    return " || ".join(
        f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{start}') || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix','').startsWith('{start}')"
        for start in starts
    )
