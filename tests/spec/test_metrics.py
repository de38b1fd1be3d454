"""`metrics.json`: columns of any names, and the last value of each."""

import json
import math
from typing import Any

import pytest

from outlast.spec import metrics
from outlast.spec.metrics import Last


def columns(**changes: Any) -> str:
    return json.dumps({"step": [10, 20], "accuracy": [0.9, 0.97], **changes})


def test_a_table_has_columns_of_any_names() -> None:
    table = metrics.read_table(columns(**{"val/top 5 %": [None, 1], "größe": ["NaN", 2.5]}))
    assert table["accuracy"] == [0.9, 0.97] and table["val/top 5 %"] == [None, 1]
    assert math.isnan(table["größe"][0] or 0.0)
    assert metrics.read_table('{"step": []}') == {"step": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (columns(step=[10]), "step has 1"),
        (columns(step=[20, 10]), "must rise"),
        (columns(step=[10, 20.5]), "must be whole numbers"),
        (columns(accuracy=[0.1, True]), "accuracy True: must be a number or null"),
        (columns(accuracy=[0.1, "high"]), "accuracy 'high': must be a number or null"),
        (columns(accuracy=3), "accuracy: must be a list"),
        ('{"accuracy": []}', "step: must be a list of steps, found None"),
        ("[1]", "must be an object, found list"),
        ("{", "is not JSON"),
        ("", "is not JSON"),
    ],
)
def test_an_invalid_table_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        metrics.read_table(text)


def test_the_last_value_of_each_column_has_its_step() -> None:
    table = metrics.read_table(columns(early=[0.5, None], never=[None, None], wild=[1, "Infinity"]))
    assert metrics.last_values(table) == {
        "accuracy": Last(20, 0.97),
        "early": Last(10, 0.5),
        "wild": Last(20, "Infinity"),
    }


def test_of_two_attempts_the_later_counts_for_what_it_logged() -> None:
    first = {"loss": Last(150, 0.5), "accuracy": Last(100, 0.9)}
    assert metrics.of_attempts([first, {}]) == first
    assert metrics.of_attempts([first, {"loss": Last(121, 0.6)}]) == {
        "loss": Last(121, 0.6),
        "accuracy": Last(100, 0.9),
    }


def test_a_columns_name_cannot_break_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^metrics.json.'\\n': must be a list, found 'False'$"):
        metrics.read_table(b'{"step": [], "\\n": false}')
