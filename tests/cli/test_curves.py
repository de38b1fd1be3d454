"""Curves of metrics: bounded in size, and no spike is lost."""

import math
import random

import pytest

from outlast.bucket.head import read_head
from outlast.cli import curves
from outlast.cli.curves import BUCKETS, METRICS_MAX, Curve, Curves
from tests.cli.report.planted import BEST, TOTAL, Planted, accuracy, loss


def test_a_short_curve_is_kept_whole() -> None:
    curve = Curve("loss")
    given = [(step, 1 / step) for step in range(1, BUCKETS)]
    for step, value in given:
        curve.add(step, value)
    assert curve.points == given and curve.count == len(given)


@pytest.mark.parametrize("stride", [1, 7, 1000])
def test_a_long_curve_keeps_its_extremes_and_its_ends(stride: int) -> None:
    noise = random.Random(1)
    curve = Curve("loss")
    values = {step: noise.random() for step in range(5, 100_000 * stride, stride)}
    spikes = {5 + 31_337 * stride: 50.0, 5 + 77_777 * stride: -50.0}
    values |= spikes
    for step, value in values.items():
        curve.add(step, value)
    points = curve.points
    assert len(points) <= 4 * BUCKETS + 2 and len(points) > BUCKETS
    assert points == sorted(points) and {*points} <= {*values.items()}
    assert {*spikes.items()} <= {*points}
    assert (points[0], points[-1]) == (min(values.items()), max(values.items()))
    assert (curve.highest, curve.lowest) == tuple(spikes.items())


def test_a_value_that_is_not_finite_is_counted_and_not_drawn() -> None:
    found = Curves()
    for step, value in enumerate([1.0, "NaN", None, "Infinity", 10**400, True, "text", 2], 1):
        found.add({"step": step, "loss": value, "part": ["a", 0]})
    (curve,) = found.by_name.values()
    assert curve.points == [(1, 1.0), (8, 2.0)]
    assert (curve.not_finite, curve.first_not_finite) == (4, 2)
    assert not math.isnan(curve.points[0][1]) and found.last_step == 8


def test_a_trainer_with_endless_names_fills_no_memory() -> None:
    found = Curves()
    for step in range(1, 3 * METRICS_MAX):
        found.add({"step": step, f"loss_{step}": 1.0})
    assert len(found.by_name) == METRICS_MAX and found.left_out == 2 * METRICS_MAX - 1


def test_each_step_of_a_preempted_run_is_there_once() -> None:
    run = Planted().whole()
    head = read_head(run.store, run.layout).head
    found = curves.read(run.store, run.layout, head, [BEST])
    assert (found.rows, found.last_step) == (TOTAL, TOTAL)
    assert found.by_name["test_accuracy"].points == [
        (step, accuracy(step)) for step in range(100, TOTAL + 1, 100)
    ]
    assert found.by_name["loss"].count == TOTAL
    assert {*found.by_name["loss"].points} <= {(step, loss(step)) for step in range(1, TOTAL + 1)}
    assert found.kept[BEST]["test_accuracy"] == accuracy(BEST)
