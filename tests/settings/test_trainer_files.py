"""A user's trainer in trainers/: whatever its file lacks or does wrong is one sentence."""

import json
import sys
from pathlib import Path

import pytest

from outlast import trainers
from outlast.settings.rules import trainer
from tests.settings.test_settings import check, refusal

WHOLE = """
import argparse

MUTABLE = {"rate": "any"}

def parser():
    found = argparse.ArgumentParser()
    found.add_argument("--rate", type=float, default=1.0)
    return found

def main(argv):
    return 0
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a trainer `mine` into a checkout."""
    folder = tmp_path / "trainers"
    folder.mkdir()
    monkeypatch.setattr(trainer, "TRAINERS", folder)
    monkeypatch.setattr(trainers, "__path__", [*trainers.__path__, str(folder)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def put(text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        (folder / "mine.py").write_bytes(data)
        sys.modules.pop("outlast.trainers.mine", None)

    yield put
    sys.modules.pop("outlast.trainers.mine", None)
    trainers.__dict__.pop("mine", None)


def mine(**args: object) -> dict[str, str]:
    return {"outlast:trainer": "mine", "outlast:args": json.dumps(args)}


def test_a_whole_trainer_of_ones_own(write) -> None:
    write(WHOLE)
    found = check(mine(rate=2))
    assert found.trainer == "mine" and found.mutable == {"rate": "any"}
    assert found.content["arguments"] == {"rate": 2.0}


WRONG = {
    "no parser": ("def main(argv): ...\n", "has no function parser()"),
    "an empty file": ("", "has no function parser()"),
    "a parser that is a value": (WHOLE + "parser = 3\n", "has no function parser()"),
    "no main": (WHOLE + "del main\n", "has no function main(argv)"),
    "a main that is a value": (WHOLE + "main = 'x'\n", "has no function main(argv)"),
    "a parser that wants an argument": (
        WHOLE.replace("def parser():", "def parser(config):"),
        "parser() ended with TypeError",
    ),
    "a parser that raises": (
        WHOLE.replace("return found", "return found.nothing"),
        "parser() ended with AttributeError",
    ),
    "a parser that leaves": (
        WHOLE.replace("return found", "raise SystemExit(3)"),
        "parser() ended with SystemExit (3)",
    ),
    "a parser that returns nothing": (
        WHOLE.replace("return found", "return"),
        "has a parser() that returns None: must return an argparse.ArgumentParser",
    ),
    "a parser that returns what it parsed": (
        WHOLE.replace("return found", "return found.parse_args([])"),
        "has a parser() that returns a value of type Namespace",
    ),
    "the same option twice": (
        WHOLE.replace("return found", "found.add_argument('--rate')\n    return found"),
        "parser() ended with ArgumentError",
    ),
    "text that is not Python": ("def parser(:\n", "the import ended with SyntaxError"),
    "a wrong indent": (" x = 1\n  y = 2\n", "the import ended with IndentationError"),
    "bytes that are not text": (b"x = '\xff'\n", "the import ended with SyntaxError"),
    "a zero byte": (b"x = 1\x00\n", "the import ended with SyntaxError"),
    "a package that is not there": (
        "import torch_of_nowhere\n",
        "imports torch_of_nowhere, which is not in the environment that pulumi runs in",
    ),
    "a name that is not there": ("from os import nothing\n", "the import ended with ImportError"),
    "a script that trains at import": ("1 / 0\n", "the import ended with ZeroDivisionError"),
    "a script that leaves at import": (
        "import sys\nsys.exit('usage: mine')\n",
        "the import ended with SystemExit (usage: mine)",
    ),
    "an error of many lines": (
        "raise RuntimeError('first\\nsecond')\n",
        "the import ended with RuntimeError (first)",
    ),
    "MUTABLE as a list": (
        WHOLE + "MUTABLE = ['rate']\n",
        "has a MUTABLE that is a value of type list",
    ),
    "MUTABLE with another word": (
        WHOLE + "MUTABLE = {'rate': 'sometimes'}\n",
        "has a MUTABLE with 'rate': 'sometimes': must map flags without dashes",
    ),
    "MUTABLE by numbers": (WHOLE + "MUTABLE = {1: 'any'}\n", "has a MUTABLE with 1: 'any'"),
    "a type that raises what argparse does not expect": (
        WHOLE.replace("type=float", "type=lambda text: {}[text]"),
        "parser ended with KeyError",
    ),
    "a value that is not JSON": (
        WHOLE.replace("type=float", "type=lambda text: {1, 2}"),
        "make the trainer's parser give one",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_not_answer_is_refused_in_one_sentence(write, wrong: str) -> None:
    text, sentence = WRONG[wrong]
    write(text)
    said = refusal(mine(rate=2))
    assert said.startswith("outlast:") and "trainer" in said and sentence in said
    assert "\n" not in said and ";" in said


def test_a_folder_in_trainers_is_refused_by_name(write, tmp_path: Path) -> None:
    write("")
    (tmp_path / "trainers/mine.py").unlink()
    (tmp_path / "trainers/mine").mkdir()
    (tmp_path / "trainers/mine/__init__.py").write_text(WHOLE)
    assert "trainers/mine is a folder: a trainer must be one file" in refusal(mine())


def test_the_line_of_the_fault_is_named(write) -> None:
    write("x = 1\ny = 2\nz = x / 0\n")
    assert " at line 3;" in refusal(mine())
    write("x = 1\ndef parser(:\n")
    assert " at line 2;" in refusal(mine())


def test_a_trainer_without_main_is_refused_where_it_runs(
    write, capsys: pytest.CaptureFixture[str]
) -> None:
    from outlast.base import exits
    from outlast.trainers import __main__ as command

    write("x = 1\n")
    assert command.main(["mine"]) == exits.USAGE
    assert "has no function main(argv)" in capsys.readouterr().err
