"""What a VM may do, by the names of Google's permissions."""

LEAVE_GROUP = (
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.update",
)
"""What a VM needs to take itself out of its group when a run ends."""
