"""What audits, prunes and doctors find."""

from typing import TypedDict


class Finding(TypedDict):
    """Something that no stack owns, or that outlived its run."""

    kind: str
    name: str
    why: str
    stack: str
    """project/stack/experiment of its labels; empty for what is in a bucket"""
    dollars_month: float
    """what it costs a month, as far as prices are known"""
    unknown: list[str]
    """what has no known price"""
    held: str
    """why it is only removed with --open-runs; else empty"""


class Audit(TypedDict):
    """What exists in a Google project although no stack owns it."""

    project: str
    prices_of: str
    """date of the price list"""
    findings: list[Finding]
    dollars_month: float
    """of all findings, as far as prices are known"""
    waiting: list[str]
    """what is not judged yet, and why"""
    kept: list[str]
    """buckets that keep runs without a stack"""
    other_projects: dict[str, int]
    """resources of each other Pulumi project, which were not looked at"""
    unread: list[str]
    """what could not be looked at, and why"""
    exit_code: int


class ToPrune(TypedDict):
    """Something that a prune deletes."""

    kind: str
    """`run`, `checkpoints`, `bundle` or `environment`"""
    url: str
    why: str
    bytes: int
    dollars_month: float
    """what it costs a month, as far as the price is known"""
    unknown: list[str]
    """what has no known price"""


class Stays(TypedDict):
    """Something that a prune leaves although the rule names it."""

    url: str
    """of a run, or of an experiment whose bundles and environments stay"""
    why: str


class Prune(TypedDict):
    """What a prune would delete; with `--yes`, it then does."""

    items: list[ToPrune]
    bytes: int
    prices_of: str
    """date of the price list"""
    left: list[Stays]
    """what stays although the rule names it"""
    unread: list[str]
    """what could not be read, and why"""


class Checked(TypedDict):
    """One check of `outlast doctor`."""

    name: str
    verdict: str
    """`ok`, `warning` or `problem`"""
    says: str
    """one sentence and what to do, or what was found"""


class Diagnosis(TypedDict):
    """What would keep an `up` from working; without secrets."""

    outlast: str
    """its version"""
    project: str
    by: str
    """what named the project"""
    stack: str
    """empty without one"""
    checks: list[Checked]
    exit_code: int
