"""Tables on a terminal, and the machine that they were measured on."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as aligned text; numbers to the right."""
    if not rows:
        return f"{title}\n(nothing)\n"
    names = list(rows[0])
    cells = [[_text(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    right = [all(_is_number(row.get(name)) for row in rows) for name in names]

    def line(words: Sequence[str]) -> str:
        put = [
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(words, widths, right, strict=True)
        ]
        return "  ".join(put).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([title, line(names), rule, *(line(words) for words in cells), ""])


def machine() -> str:
    """The machine in words, as it is part of every figure."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = f"{platform.system()} {platform.release()}"
    python = f"Python {platform.python_version()}"
    return f"{_processor()}, {cores} cores, {memory:.0f} GiB, {kernel}, {python}"


def write_json(path: Path | None, body: Any) -> None:
    """The same figures for programs, if they were asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1, default=str) + "\n")


def _processor() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.machine()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
