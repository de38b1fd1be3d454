"""Samples of a sweep depend on seed and number only; grids have every combination once."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cli.sweep.sampling import Choices, Range, grid, sample, size

LOG = Range(1e-4, 1.0, log=True)
SPACES = {
    "rate": LOG,
    "batch": Choices((16, 32, 64)),
    "layers": Range(1, 8),
    "drop": Range(0.0, 0.5, step=0.1),
    "decay": Range(0.0, 1.0),
}

numbers = st.integers(0, 10_000)
seeds = st.integers(0, 2**63 - 1)


@given(seeds, numbers)
def test_a_sample_depends_on_its_seed_and_number_only(seed: int, number: int) -> None:
    found = sample(SPACES, seed, number)
    assert sample(SPACES, seed, number) == found
    # Neither more samples, nor more parameters, nor their order, change it.
    fewer = {name: SPACES[name] for name in ("batch", "rate")}
    assert sample(fewer, seed, number) == {name: found[name] for name in fewer}


@given(seeds, st.integers(1, 30), st.integers(0, 30))
def test_more_trials_change_no_existing_one(seed: int, trials: int, more: int) -> None:
    first = [sample(SPACES, seed, number) for number in range(trials)]
    assert [sample(SPACES, seed, number) for number in range(trials + more)][:trials] == first


@given(seeds, numbers)
def test_samples_are_in_their_spaces(seed: int, number: int) -> None:
    found = sample(SPACES, seed, number)
    assert 1e-4 <= found["rate"] <= 1.0 and found["batch"] in (16, 32, 64)
    assert type(found["layers"]) is int and 1 <= found["layers"] <= 8
    assert found["drop"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    assert 0 <= found["decay"] <= 1 and float(f"{found['decay']:.4g}") == found["decay"]


def test_samples_are_the_same_on_every_machine() -> None:
    assert sample(SPACES, 7, 0) == FIRST
    assert sample(SPACES, 8, 0) != FIRST


FIRST = {"rate": 0.8907, "batch": 32, "layers": 6, "drop": 0.0, "decay": 0.482}


def test_a_log_range_draws_each_factor_as_often() -> None:
    drawn = [float(sample({"rate": LOG}, 0, number)["rate"]) for number in range(2000)]
    for low in range(-4, 0):
        share = sum(10**low <= one < 10 ** (low + 1) for one in drawn) / len(drawn)
        assert math.isclose(share, 0.25, abs_tol=0.04)
    assert {sample({"n": Range(1, 4, log=True)}, 0, n)["n"] for n in range(50)} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (Range(0.1, 0.3, step=0.1), (0.1, 0.2, 0.3)),
        (Range(1, 8, step=3), (1, 4, 7)),
        (Range(2, 4), (2, 3, 4)),
        (Range(0.0, 1.0), None),
        (LOG, None),
        (Choices(("a", True)), ("a", True)),
    ],
)
def test_the_values_of_a_grid(space: Any, values: Any) -> None:
    assert space.all() == values
    if values:
        assert size({"x": space}) == len(values)


def test_a_grid_has_every_combination_in_order() -> None:
    spaces = {"a": Choices((1, 2)), "b": Range(0, 2)}
    assert list(grid(spaces)) == [{"a": a, "b": b} for a in (1, 2) for b in (0, 1, 2)]
    assert size(spaces) == 6
    assert size({"a": Range(1, 10**9), "b": Range(1, 10**9)}) == 10**18
