"""Writes the tables of docs/machine-types.md: `python tools/machines_table.py`."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from outlast.machines.families import (  # noqa: E402
    FAMILIES,
    MIGRATE,
    N1_GPUS,
    TERMINATE,
    Family,
)
from outlast.machines.machines import parse  # noqa: E402

PAGE = ROOT / "docs" / "machine-types.md"
_SIZE = re.compile(r"-(\d+)(?=g?(?:-|$))")
WAYS = {"": "moved or stopped, depending on the mode", MIGRATE: "moved", TERMINATE: "stopped"}
BEGIN, END = "<!-- machines: written by tools/machines_table.py -->\n", "<!-- /machines -->\n"


def table() -> str:
    """One row for each family, then the GPUs for N1, then the sizes."""
    rows = [
        "| family | GPU | local SSDs | boot disks | CPU platforms, newest last | custom | Spot |"
        " standard VM while its host is maintained |",
        "|---|---|---|---|---|---|---|---|",
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
        _maintenance(family),
    )


def _maintenance(family: Family) -> str:
    ways = {parse(name).maintenance for name in family.types}
    said = [words for way, words in WAYS.items() if way in ways]
    exceptions = [name for name in family.types if parse(name).maintenance == TERMINATE]
    if len(said) > 1:
        return f"{said[0]}; stopped: {', '.join(exceptions)}"
    return said[0]


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
