"""A request as fault rules and scenarios see it."""

from dataclasses import dataclass


@dataclass
class RequestFacts:
    """What of a request is known before it is answered."""

    method: str
    subjects: list[str]
    """What a rule's pattern is searched in: the target as sent, decoded, and with the object."""
    object: str | None
    """The name of the object that it is about."""
    vm: str | None
    """The name of the VM that has sent it."""
    instance: str | None = None
    """The id of that VM; two VMs may have the same name at once."""
