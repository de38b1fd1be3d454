"""The sender of a request, and the target of a permission."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The project's owner, or a VM by its service account."""

    email: str | None = None
    """None for the owner, who may do everything."""
    vm: str | None = None
    """The VM's name, for fault rules; None for the owner."""
    instance: str | None = None
    """The VM's id; two VMs may have the same name at once."""


OWNER = Caller()


@dataclass(frozen=True)
class Target:
    """The resource that a permission is for, in the form that conditions use."""

    name: str
    """`projects/_/buckets/B/objects/O`, `projects/_/buckets/B` or `projects/P`."""
    list_prefix: str = ""
