"""Coordinates of a report's pictures."""

from datetime import UTC, datetime, timedelta

import pytest

from outlast.bucket.goodput import Goodput, Stretch, Use
from outlast.cli.report import drawing
from outlast.cli.report.drawing import HEIGHT, STRETCHES_MAX, WIDTH

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 50, 100]),
        (0.0, 0.03, [0.0, 0.01, 0.02, 0.03]),
        (-3, 7, [0, 5]),
        (5, 5, [5]),
        (1e-9, 3e-9, [1e-9, 2e-9, 3e-9]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert drawing.ticks(low, high, 3) == pytest.approx(expected)


def places(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())]


def test_a_curve_is_drawn_from_edge_to_edge() -> None:
    chart = drawing.chart("loss", {"loss": [(0, 1.0), (50, 3.0), (100, 2.0)]}, last=100)
    assert chart is not None
    (line,) = chart.lines
    first, second, third = places(line.points)
    assert (first[0], second[0], third[0]) == (0, WIDTH / 2, WIDTH)
    assert HEIGHT > first[1] > third[1] > second[1] > 0
    assert [tick.text for tick in chart.across] == ["0", "25", "50", "75", "100"]
    assert [tick.text for tick in chart.down] == ["1", "1.5", "2", "2.5", "3"]


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [1e308, -1e308], [-0.0, 0.0], [1e-320, 2e-320], [1e18, 1e18 + 1]]
)
def test_any_numbers_stay_within_the_picture(values: list[float]) -> None:
    points = list(enumerate(values))
    chart = drawing.chart("x", {"x": points}, last=len(points) - 1)
    assert chart is not None
    for x, y in places(chart.lines[0].points):
        assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
    assert len(places(chart.lines[0].points)) >= 2
    assert drawing.chart("x", {"x": []}, last=5) is None


def test_marks_have_texts_where_there_is_room() -> None:
    marks = [(10, "2", "resume"), (11, "3", "resume"), (60, "4", "changed")]
    chart = drawing.chart("x", {"x": [(0, 1.0), (100, 2.0)]}, last=100, marks=marks)
    assert chart is not None
    assert [mark.label for mark in chart.marks] == ["2", "", "4"]
    assert [mark.percent for mark in chart.marks] == [10, 11, 60]


def stretches(count: int) -> Goodput:
    uses = [Use.STARTUP, Use.PRODUCTIVE, Use.WAITING]
    found = []
    at = START
    for number in range(count):
        end = at + timedelta(seconds=[5, 60, 30][number % 3])
        found.append(Stretch(uses[number % 3], at, end, number // 3 + 1))
        at = end
    return Goodput(tuple(found))


def test_a_timeline_has_each_stretch_in_its_place() -> None:
    made = drawing.timeline(stretches(6))
    assert [box.use for box in made.boxes] == [Use.STARTUP, Use.PRODUCTIVE, Use.WAITING] * 2
    assert made.boxes[0].at == 0
    assert made.boxes[-1].at + made.boxes[-1].width == pytest.approx(WIDTH, abs=0.1)
    assert made.boxes[1].text == "attempt 1: steps that were kept, 1 min"
    assert [tick.text for tick in made.across] == ["0 s", "1 min", "2 min", "3 min"]
    assert made.uses == (Use.PRODUCTIVE, Use.STARTUP, Use.WAITING)


def test_a_timeline_of_very_many_attempts_stays_small() -> None:
    made = drawing.timeline(stretches(3 * STRETCHES_MAX))
    assert len(made.boxes) <= WIDTH
    edges = [(box.at, box.at + box.width) for box in made.boxes]
    assert edges[0][0] == 0 and edges[-1][1] == WIDTH
    assert all(before[1] == after[0] for before, after in zip(edges, edges[1:], strict=False))


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.1235"), (1e-7, "1e-7"), (123456.0, "1.235e5"), (-2.0, "-2")]
)
def test_values_are_short(value: float, text: str) -> None:
    assert drawing.number(value) == text
    assert [drawing.count(one) for one in (0, 999, 12_500, 3e6)] == ["0", "999", "12.5k", "3M"]
