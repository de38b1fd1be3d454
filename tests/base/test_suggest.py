"""Did you mean …?"""

import pytest

from outlast.base.suggest import choices, did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("epohcs", ["epochs", "seed"], "did you mean epochs?"),
        ("seed", ["epochs", "seed"], "did you mean seed?"),
        ("warp", ["epochs", "seed"], "see the list"),
        ("warp", [], "see the list"),
        (17, ["170"], "did you mean 170?"),
    ],
)
def test_a_sentence_names_the_word_that_was_meant(word, known, expected):
    assert did_you_mean(word, known, "see the list") == expected


def test_how_near_is_near_enough():
    assert nearest("epoch", ["epochs"], cutoff=0.95) == []
    assert nearest("xyz", ["epochs"], cutoff=0) == ["epochs"]
    assert nearest("epoch", {"epochs": 1, "steps": 2}) == ["epochs"]
    assert nearest("epoch", ["step", "epochs", "epos"], most=2) == ["epochs", "epos"]


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("frist", ["second", "first"], "did you mean first? known are first, second"),
        ("x", ["second", "first"], "known are first, second"),
        ("x", [], "there is none"),
        ("x", [f"n{i:02}" for i in range(22)], " and 2 more"),
    ],
)
def test_a_sentence_lists_what_there_is(word, known, expected):
    assert choices(word, known).endswith(expected)
