"""What a VM may do, in Google's permissions."""

LEAVE_GROUP = (
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.update",
)
"""Permissions that a VM needs to leave its group when a run ends."""
