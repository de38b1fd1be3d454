"""`training_curves.png`: the curves of all metrics, for a paper or a message."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from outlast.base.visible import one_line
from outlast.bucket.history import History
from outlast.cli.curves import Curve, Curves
from outlast.cli.errors import OperateError

FILE = "training_curves.png"
EXTRA = "outlast[curves]"
METRICS_MAX = 12
NAME_MAX = 60
WIDE, HIGH = 6.0, 3.2
"""Inches of one chart."""


def draw(
    name: str, rows: Iterable[tuple[int, dict[str, Any]]], book: History, part: str | None = None
) -> Callable[[Path], None]:
    """What writes the picture to a path. Steps count through all parts, unless there is only one
    `part`. Raises OperateError if matplotlib is not installed or there is no number to draw.
    """
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found]
    except ImportError:
        raise OperateError(f"{FILE}: matplotlib is not installed; pip install '{EXTRA}'") from None
    found = Curves()
    for step, row in rows:
        found.add({**row, "step": step} if part is None else row)
    shown = [curve for curve in found.by_name.values() if curve.count][:METRICS_MAX]
    if not shown:
        raise OperateError(f"{name}: has no metric yet, so no curve can be drawn")
    resumes = sorted({attempt.from_step for attempt in book.attempts[1:]}) if part is None else []
    across = 1 if len(shown) == 1 else 2
    down = -(-len(shown) // across)
    figure = Figure(figsize=(WIDE * across, HIGH * down), dpi=150, layout="constrained")
    for number, curve in enumerate(shown, 1):
        axes = figure.add_subplot(down, across, number)
        _draw(axes, curve, resumes)
    hidden = len(found.by_name) - len(shown)
    title = name if hidden <= 0 else f"{name} ({hidden} more metrics are not drawn)"
    # A name from outside is text, whatever dollar signs it has.
    figure.suptitle(_line(title), parse_math=False)

    def write(path: Path) -> None:
        figure.savefig(path, format="png")

    return write


def _draw(axes: Any, curve: Curve, resumes: Iterable[int]) -> None:
    points = curve.points
    axes.plot(
        [step for step, _ in points],
        [value for _, value in points],
        linewidth=1.2,
        marker="o" if len(points) == 1 else None,
    )
    for step in resumes:
        axes.axvline(step, linewidth=0.8, linestyle=":", color="0.5")
    axes.set_title(_line(curve.name), parse_math=False, fontsize="medium")
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)


def _line(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= NAME_MAX else f"{line[: NAME_MAX - 1]}…"
