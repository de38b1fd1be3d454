"""Renders a diagnosis for people."""

from outlast.cli.doctor.examine import Diagnosis, Verdict
from outlast.cli.show.console import Terminal

_SIGNS = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.PROBLEM: "PROBLEM"}


def show_diagnosis(found: Diagnosis) -> None:
    """Each check on a line: those that are not ok with what to do."""
    console = Terminal()

    of = f"stack {found.stack} in " if found.stack else ""
    console.whole_line(f"{of}project {found.project} (named by {found.by})")
    for one in found.checks:
        said = one.says if one.verdict is not Verdict.OK else one.name
        if one.verdict is Verdict.OK and one.says:
            said = f"{one.name}: {one.says}"
        console.whole_line(f"{_SIGNS[one.verdict]:8} {said}")
    problems = sum(one.verdict is Verdict.PROBLEM for one in found.checks)
    warnings = sum(one.verdict is Verdict.WARNING for one in found.checks)
    if problems:
        console.whole_line(f"{problems} to solve before an up can work")
    else:
        console.whole_line("an up can work" + (f"; {warnings} warnings" if warnings else ""))
