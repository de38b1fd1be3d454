"""What counts as a checkpoint, a log or a result of a command: the keys, and advice on them."""

from pathlib import Path

import pytest

from outlast.settings import errors
from tests.settings.test_settings import check, command, refusal


def options(**values: str) -> dict[str, object]:
    return check(command(command="train {checkpoint}", **values)).command_options


def test_keys_become_options_of_the_runner():
    assert options() == {}
    assert options(
        checkpointFiles='["*.pt"]',
        logFiles='["*.txt"]',
        byProductFiles='["samples/*.png"]',
        checkpointDir="./out/",
        allowNoOutput="true",
        resultGb="50",
    ) == {
        "checkpoint": ["*.pt"],
        "log": ["*.txt"],
        "by-product": ["samples/*.png"],
        "checkpoint-dir": "out",
        "allow-no-output": True,
        "result-gb": 50,
    }


def test_they_are_no_part_of_the_runs_name():
    """They may be corrected while a run is open."""
    plain = check(command(command="train {checkpoint}"))
    changed = command(checkpointFiles='["*.pt"]', allowNoOutput="true", resultGb="50")
    assert check({**command(command="train {checkpoint}"), **changed}).run == plain.run


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"logFiles": '["*.pt"]', "checkpointFiles": '["best*"]'},
            "logFiles: glob '*.pt' overlaps",
        ),
        ({"byProductFiles": '["*.txt"]', "logFiles": '["a/**"]'}, "both match 'a/.txt'"),
        ({"logFiles": '["[a"]'}, "has a [ without its ]"),
        ({"logFiles": '["/abs"]'}, "must be a file's name or a path below the folder"),
        ({"logFiles": '[""]'}, "must be a list of globs, such as *.pt"),
        ({"logFiles": "[3]"}, "must be a list of globs, such as *.pt"),
        ({"checkpointDir": "/out"}, "must be a folder below the one that the command runs in"),
        ({"checkpointDir": "../out"}, "must be a folder below the one that the command runs in"),
        ({"checkpointDir": "."}, "must be a folder below the one that the command runs in"),
        ({"resultGb": "0"}, "must be a whole number from 1"),
        ({"allowNoOutput": "maybe"}, "must be true or false"),
    ],
)
def test_what_cannot_be_is_a_sentence(values: dict[str, str], sentence: str):
    said = refusal(command(command="x", **values))
    assert sentence in said and said.startswith(f"outlast:{next(iter(values))}"), said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checkpointFiles", '["*.pt"]'),
        ("logFiles", '["*.pt"]'),
        ("byProductFiles", '["*.pt"]'),
        ("checkpointDir", "out"),
        ("allowNoOutput", "true"),
        ("resultGb", "50"),
    ],
)
def test_a_trainer_has_none_of_them(key: str, value: str):
    assert f"outlast:{key}: is for a command" in refusal(command(**{key: value}))


# -- Before anything is lost


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that ``outlast:source`` names."""
    monkeypatch.setattr(errors, "project", lambda: tmp_path)
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


MNIST = "torch.save(model.state_dict(), 'mnist_cnn.pt')\n"


def test_a_command_that_saves_nothing_that_could_be_kept_is_advice(code: Path):
    (code / "main.py").write_text(MNIST)
    values = command(command="python main.py --epochs 1 --save-model", source="code")
    (said,) = check(values).advice
    assert said.startswith("outlast:command: names neither {checkpoint} nor {result}")
    assert "outlast:checkpointDir" in said


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("python main.py --out {checkpoint}", {}),
        ("python main.py --resume {latest:.pt}", {}),
        ("python main.py", {"checkpointDir": "out"}),
        ("CHECKPOINT=$CHECKPOINT_DIR python main.py", {}),
        ("./run.sh && outlast mark", {}),
    ],
)
def test_one_that_names_a_place_is_none(code: Path, line: str, values: dict[str, str]):
    (code / "main.py").write_text(MNIST)
    assert check(command(command=line, source="code", **values)).advice == ()


def test_a_script_whose_pipe_hides_a_crash_is_advice(code: Path):
    (code / "run.sh").write_text("#!/bin/bash\npython main.py $CHECKPOINT_DIR | tee log\n")
    (said,) = check(command(command="./run.sh", source="code")).advice
    assert said.startswith(
        "outlast:command: ./run.sh has 'python main.py $CHECKPOINT_DIR | tee log'"
    )


def test_a_script_that_reads_the_variable_names_a_place(code: Path):
    (code / "main.py").write_text("folder = os.environ['CHECKPOINT_DIR']\n")
    assert check(command(command="python main.py", source="code")).advice == ()
