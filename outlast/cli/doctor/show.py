"""Renders a diagnosis for people."""

from outlast.base.visible import one_line
from outlast.cli.doctor.examine import Diagnosis, Verdict
from outlast.cli.show.console import Terminal

_SIGNS = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.PROBLEM: "PROBLEM"}


def show_diagnosis(found: Diagnosis) -> None:
    """Each check on a line: those that are not ok with what to do."""
    console = Terminal()

    def line(text: str) -> None:
        console.print(one_line(text), soft_wrap=True)

    of = f"stack {found.stack} in " if found.stack else ""
    line(f"{of}project {found.project} (named by {found.by})")
    for one in found.checks:
        said = one.says if one.verdict is not Verdict.OK else one.name
        if one.verdict is Verdict.OK and one.says:
            said = f"{one.name}: {one.says}"
        line(f"{_SIGNS[one.verdict]:8} {said}")
    problems = sum(one.verdict is Verdict.PROBLEM for one in found.checks)
    warnings = sum(one.verdict is Verdict.WARNING for one in found.checks)
    if problems:
        line(f"{problems} to solve before an up can work")
    else:
        line("an up can work" + (f"; {warnings} warnings" if warnings else ""))
