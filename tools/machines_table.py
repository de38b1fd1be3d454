"""Writes the tables of docs/machine-types.md: `python tools/machines_table.py`."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from outlast.machines.families import FAMILIES, N1_GPUS, Family  # noqa: E402
from outlast.machines.machines import (  # noqa: E402
    DEDICATED,
    STANDARD,
    SURVIVE,
    Choice,
    MachineError,
    check,
)

PAGE = ROOT / "docs" / "machine-types.md"
_SIZE = re.compile(r"-(\d+)(?=g?(?:-|$))")
BEGIN, END = "<!-- machines: written by tools/machines_table.py -->\n", "<!-- /machines -->\n"


def table() -> str:
    """One row for each family, then the GPUs for N1, then the sizes."""
    rows = [
        "| family | GPU | local SSDs | boot disks | CPU platforms, newest last | custom | Spot |"
        " standard VM, mode survive or burst | mode dedicated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows += [f"| {' | '.join(_row(name, family))} |" for name, family in FAMILIES.items()]
    rows += [
        "",
        "| GPU for N1 | memory | how many, and the most CPUs beside them |",
        "|---|---|---|",
    ]
    for name, gpu in N1_GPUS.items():
        limits = ", ".join(f"{count}: {cpus}" for count, cpus in gpu.cpus.items())
        rows.append(f"| `{name}` | {gpu.memory_gb} GB | {limits} |")
    rows += ["", "| family | machine types |", "|---|---|"]
    rows += [f"| {name} | {_types(family.types)} |" for name, family in FAMILIES.items()]
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the current tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def _row(name: str, family: Family) -> Sequence[str]:
    gpu = f"{family.gpu.name}, {family.gpu.memory_gb} GB" if family.gpu else ""
    if name == "n1":
        gpu = "attached, below"
    spot = "yes" if family.spot else "no"
    if family.only_spot:
        spot = f"yes; only Spot for {', '.join(family.only_spot)}"
    return (
        name,
        gpu,
        _ssds(family),
        ", ".join(family.disks),
        ", ".join(family.platforms),
        "yes" if family.custom else "",
        spot,
        _maintenance(family, SURVIVE),
        _maintenance(family, DEDICATED),
    )


def _maintenance(family: Family, mode: str) -> str:
    """What a standard VM of the family does in this mode, as the rules decide it; the exceptions
    are named.
    """
    stopped, moved = [], []
    for name in family.types:
        choice = Choice(mode, STANDARD, name, disk_type=family.disks[0])
        try:
            (stopped if check(choice).restarts else moved).append(name)
        except MachineError:
            continue  # exists only as a Spot VM
    if stopped and moved:
        return f"moved; stopped: {', '.join(stopped)}"
    return "stopped" if stopped else "moved"


def _ssds(family: Family) -> str:
    if family.own_ssds == "all":
        return "included"
    if family.own_ssds:
        return f"included in {family.own_ssds} types"
    if family.ssds is None:
        return ""
    if len(family.ssds) == 1:
        return _counts(next(iter(family.ssds.values())))
    return "; ".join(f"to {cpus} CPUs: {_counts(n)}" for cpus, n in family.ssds.items())


def _types(types: Sequence[str]) -> str:
    """Groups names such as `n2-standard-` with their numbers; names without a number stay as they
    are.
    """
    kinds: dict[str, list[str]] = {}
    for name in types:
        size = _SIZE.search(name)
        kind = _SIZE.sub("-#", name)
        kinds.setdefault(kind, []).append(size[1] if size else "")
    return "; ".join(
        f"`{kind}`: {', '.join(sizes)}" if "#" in kind else f"`{kind}`"
        for kind, sizes in kinds.items()
    )


def _counts(counts: Sequence[int]) -> str:
    in_a_row = [count for at, count in enumerate(counts) if count == counts[0] + at]
    if len(in_a_row) < 3:
        return ", ".join(map(str, counts))
    more = [str(count) for count in counts[len(in_a_row) :]]
    return ", ".join([f"{in_a_row[0]} to {in_a_row[-1]}", *more])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
