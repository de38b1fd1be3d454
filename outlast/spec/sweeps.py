"""The names of a sweep's parts: its trials, its shared stack, and what its VMs may write to."""

import re

TRIAL = "--"
"""Between the sweep's name and the run's in a trial's name. No other experiment's name has it, so
that one IAM condition covers a sweep's trials and nothing else."""
SHARED = "shared"
"""In place of the run: the stack with what the trials share."""
NAME_PATTERN = re.compile(r"[a-z]([a-z0-9]|-(?!-)){0,26}[a-z0-9]|[a-z]")
"""A trial's name, with the run's ten digits, has at most 40 characters."""
NAME_RULE = (
    "must have 1 to 28 lower-case letters, digits and single dashes, begin with a letter and not"
    " end in a dash"
)


def trial(sweep: str, run: str) -> str:
    """The stack and the experiment of a trial."""
    return f"{sweep}{TRIAL}{run}"


def shared(sweep: str) -> str:
    """The stack that the trials share."""
    return f"{sweep}{TRIAL}{SHARED}"


def run_of(sweep: str, stack: str) -> str:
    """The run of a trial's stack; empty for any other stack."""
    name, dashes, run = stack.partition(TRIAL)
    return run if name == sweep and dashes and run != SHARED else ""


def written(sweep: str) -> str:
    """What the names of objects that the trials may write begin with."""
    return f"experiments/{sweep}{TRIAL}"
