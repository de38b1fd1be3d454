"""Labels that say to whom each resource belongs."""

import re
from collections.abc import Mapping

MANAGED_BY = "outlast"
"""Value of `managed-by` on every resource that Outlast declares."""

RESERVED = frozenset({"managed-by", "project", "stack", "component", "experiment"})
"""Keys that the program sets itself."""

LIMIT = 63
"""Characters that a key or a value may have."""

_MARK = re.compile(r" (\[[a-z0-9_-]+/[a-z0-9_-]+/[a-z0-9_-]+\])\Z")


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


def mark_of(labels: Mapping[str, str] | None) -> str:
    """The mark of the stack that labelled a resource; empty if it is not a stack's of Outlast."""
    found = labels or {}
    if found.get("managed-by") != MANAGED_BY or not {"project", "stack", "experiment"} <= set(
        found
    ):
        return ""
    return mark(found)


def mark_in(description: str | None) -> str:
    """The mark that ends a description; empty if none does."""
    match = _MARK.search(description or "")
    return match[1] if match else ""


def stack_of(mark: str) -> tuple[str, str, str]:
    """Project, stack and experiment of a mark, as `sanitise` writes them."""
    project, stack, experiment = mark[1:-1].split("/")
    return project, stack, experiment


def described(text: str, mark: str) -> str:
    """A description with the stack's mark, if there is one."""
    return f"{text} {mark}".rstrip()


def of_shared(component: str) -> dict[str, str]:
    """The labels of resources that outlive a stack and serve many, without a stack's name."""
    return {"managed-by": MANAGED_BY, "component": component}


def merge(labels: Mapping[str, str], component: str) -> dict[str, str]:
    """A stack's labels with the component's name."""
    return {**labels, "component": component}
