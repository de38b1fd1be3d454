"""Writes the table of docs/assumptions.md: `python tools/assumptions_table.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from outlast.cli.rehearsal.google.assumptions import ASSUMPTIONS  # noqa: E402

PAGE = ROOT / "docs" / "assumptions.md"
BEGIN = "<!-- assumptions: written by tools/assumptions_table.py -->\n"
END = "<!-- /assumptions -->\n"


def table() -> str:
    """One row for each assumption that has a probe."""
    rows = [
        "| probe | assumption | where it matters | how it is asked |",
        "|---|---|---|---|",
    ]
    for one in ASSUMPTIONS.values():
        rows.append(f"| `{one.name}` | {one.says} | {one.where} | {one.how} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the current table."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
