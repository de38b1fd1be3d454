"""A request as fault rules and scenarios see it."""

from dataclasses import dataclass


@dataclass
class RequestFacts:
    """The known facts of a request before its answer."""

    method: str
    subjects: list[str]
    """The texts that a rule's pattern is searched in: the target as sent, decoded, and with the
    object."""
    object: str | None
    """The name of the request's object."""
    vm: str | None
    """The name of the VM that sent it."""
    instance: str | None = None
    """The id of that VM; two VMs may have the same name at once."""
