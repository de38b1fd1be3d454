"""Conditions of bindings, in the one form that the local cloud supports."""

import re
from dataclasses import dataclass

from outlast.localcloud.base.access import Target
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry

# The supported form: names and prefixes of objects, and prefixes of listings, joined by ||.
CLAUSE = re.compile(
    r"""\s*(?:(?:
      (?P<name>resource\.name)
      | api\.getAttribute\(\s*(['"])storage\.googleapis\.com/objectListPrefix\2\s*,\s*(?:''|"")\s*\)
    )\.startsWith\(\s*(['"])(?P<prefix>[^'"\\]*)\3\s*\)
    | resource\.name\s*==\s*(['"])(?P<whole>[^'"\\]*)\5
    )\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Clause:
    """`attribute.startsWith(prefix)` or, if `whole`, equality."""

    attribute: str
    """`name` or `list`."""
    prefix: str
    whole: bool = False

    def holds(self, target: Target) -> bool:
        value = target.name if self.attribute == "name" else target.list_prefix
        return value == self.prefix if self.whole else value.startswith(self.prefix)


def parse_condition(expression: str) -> list[Clause]:
    """The clauses of an or-expression; raises ApiError 400 for any other form."""
    clauses: list[Clause] = []
    at = 0
    while True:
        match = CLAUSE.match(expression, at)
        if not match:
            raise ApiError(
                400,
                f"condition {expression!r}: the local cloud knows only resource.name.startsWith(…) "
                "and == …, and the objectListPrefix attribute's startsWith(…), joined by ||",
            )
        if match["whole"] is not None:
            clauses.append(Clause("name", match["whole"], whole=True))
        else:
            clauses.append(Clause("name" if match["name"] else "list", match["prefix"]))
        at = match.end()
        if at == len(expression):
            return clauses
        if not expression.startswith("||", at):
            at = len(expression)  # the rest is not supported
            continue
        at += 2


def holds(condition: Entry | None, target: Target) -> bool:
    """Whether a binding's condition is true for the target."""
    if not condition:
        return True
    return any(clause.holds(target) for clause in parse_condition(condition["expression"]))
