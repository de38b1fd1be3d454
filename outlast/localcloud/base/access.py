"""Who sends a request, and what a permission is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The project's owner, or a VM by its service account."""

    email: str | None = None
    """None: the owner, who may do everything."""
    vm: str | None = None
    """The VM's name, for fault rules; known wherever the token was a VM's."""
    instance: str | None = None
    """The VM's id; two VMs may have the same name at once."""


OWNER = Caller()


@dataclass(frozen=True)
class Target:
    """What a permission is asked for, as conditions see it."""

    name: str
    """`projects/_/buckets/B/objects/O`, `projects/_/buckets/B` or `projects/P`."""
    list_prefix: str = ""
