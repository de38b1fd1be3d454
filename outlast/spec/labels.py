"""Labels that say to whom each resource belongs."""

import re
from collections.abc import Mapping

MANAGED_BY = "outlast"
"""Value of `managed-by` on every resource that Outlast declares."""

RESERVED = frozenset({"managed-by", "project", "stack", "component", "experiment"})
"""Keys that the program sets itself."""

LIMIT = 63
"""Characters that a key or a value may have."""


def sanitise(text: str) -> str:
    """`text` as a label value: lower case, every other character a dash, at most 63 characters."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:LIMIT]


def of_stack(project: str, stack: str, experiment: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The labels of one stack's resources; `extra` are the user's, already checked."""
    return {
        **extra,
        "managed-by": MANAGED_BY,
        "project": sanitise(project),
        "stack": sanitise(stack),
        "experiment": sanitise(experiment),
    }


def mark(labels: Mapping[str, str]) -> str:
    """Names the stack at the end of the description of what can have no labels."""
    return f"[{labels['project']}/{labels['stack']}/{labels['experiment']}]"


def described(text: str, mark: str) -> str:
    """A description with the stack's mark, if there is one."""
    return f"{text} {mark}".rstrip()


def has_mark(description: str | None, mark: str) -> bool:
    """Whether a resource of this description is the stack's."""
    return (description or "").endswith(f" {mark}")


def of_shared(component: str) -> dict[str, str]:
    """The labels of resources that outlive a stack and serve many, without a stack's name."""
    return {"managed-by": MANAGED_BY, "component": component}


def merge(labels: Mapping[str, str], component: str) -> dict[str, str]:
    """A stack's labels with the component's name."""
    return {**labels, "component": component}
