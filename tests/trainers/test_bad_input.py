"""Bad input: exit 64 and one sentence that says what to do, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast import trainers
from outlast.trainers import __main__ as command

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["digitz"], "trainer 'digitz': unknown; did you mean digits? known are census, "),
        (["flags"], "trainer 'flags': unknown"),
        (["../digits"], "trainer '../digits': no digits.py and no package digits/ in ..;"),
        (["digits", "--epohcs", "3"], "digits: flag --epohcs: unknown; did you mean --epochs?"),
        (["digits", "--epoch", "3"], "did you mean --epochs?"),
        (["digits", "--zzz=1"], "digits: flag --zzz: unknown; see --help"),
        (["digits", "seven"], "digits: 'seven': only flags are taken"),
        (["digits", "--epochs", "-3"], "digits: --epochs: -3: must be 1 to 1000000000"),
        (["digits", "--epochs=-3"], "digits: --epochs: -3: must be 1 to 1000000000"),
        (["digits", "--epochs", "0"], "digits: --epochs: 0: must be 1 to 1000000000"),
        (["digits", "--epochs", "1.5"], "digits: --epochs: '1.5': must be a whole number"),
        (["digits", "--epochs", "9" * 30], "must be 1 to 1000000000"),
        (["digits", "--limit-rows", "9" * 5000], f"'{'9' * 60}…': must be a whole number, 0 or"),
        (["digits", "--run-dir", ""], "digits: --run-dir: '': must be a folder; leave it out"),
        (["digits", "--epochs"], "digits: --epochs: expected one argument"),
        (["digits", "--batch-size", "500"], "digits: --batch-size: 500: must be 1 to 200"),
        (["digits", "--learning-rate", "nan"], "digits: --learning-rate: 'nan': must be a number"),
        (["digits", "--learning-rate", "-1"], "must be a number above 0"),
        (["digits", "--hidden", "64,x"], "digits: --hidden: '64,x': must be whole numbers"),
        (["digits", "--hidden", "64,0"], "must be whole numbers above 0"),
        (["digits", "--seed", "-1"], "digits: --seed: -1: must be 0 to 4294967295"),
        (["digits", "--mode", "tain"], "digits: --mode: invalid choice: 'tain'"),
        (["digits", "--checkpoint-every", "5m"], "digits: --checkpoint-every: '5m': must be auto"),
        (["digits", "--data", "no/such.csv"], "digits: data no/such.csv: no such file"),
        (
            ["digits", "--data", "s3://b/x.csv"],
            "must be a path of this machine or gs://BUCKET/PATH",
        ),
        (["digits", "--model-output-path", "gs://"], "must be a path of this machine or gs://"),
        (["census", "--cv-iterations", "0"], "census: --cv-iterations: 0: must be 1 to 1000"),
        (["census", "--learning-rate", "1"], "census: flag --learning-rate: unknown"),
        (["dummy", "--step-ms", "0"], "dummy: --step-ms: '0': must be a number above 0"),
        (["dummy", "--data", str(Path(__file__))], "is not a CSV of numbers"),
        (["dummy", "--limit-rows", "2"], "dummy: 2 rows: 3 or more are needed"),
        (["digits", "--limit-rows", "5"], "digits: limit-rows 5 of 1797 rows: 50 or more"),
        (["digits", "--data", str(Path(__file__))], "is not a CSV of numbers"),
    ],
)
def test_bad_input_is_one_sentence(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = command.main(argv)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 64
    assert says in err
    assert len(err.strip().splitlines()) == 1 and not out


def digits_csv(*, pixel: str = "1", label: str = "") -> str:
    """60 rows; one pixel of the second is another, or all labels are."""
    rows = [["1"] * 64 + [label or str(number % 10)] for number in range(60)]
    rows[1][3] = pixel
    return "\n".join(",".join(row) for row in rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2,3\n4,5,6\n", "3 columns, must be 64 pixels and a digit"),
        ("", "has no rows"),
        ("\n\n", "has no rows"),
        (digits_csv(pixel="nan"), "row 2: nan: must be a finite number from 0 to 16"),
        (digits_csv(pixel="17"), "row 2: 17.0: must be a finite number from 0 to 16"),
        (digits_csv(label="3.5"), "the last column must be a digit, 0 to 9"),
        (digits_csv(label="3"), "48 rows to train on, all of class 3; rows of two classes or more"),
        (digits_csv()[:-4], "is not a CSV of numbers (the number of columns changed"),
    ],
)
def test_a_csv_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    assert command.main(["digits", "--data", str(path)]) == 64
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [("inf", "row 1: inf: must be a finite number"), ("one class", "32 rows to train on, all of")],
)
def test_points_that_teach_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, says: str
) -> None:
    rows = [["0.5"] * 8 + [str(number % 2)] for number in range(40)]
    if change == "inf":
        rows[0][2] = "inf"
    else:
        rows = [[*row[:-1], "1"] for row in rows]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(",".join(row) for row in rows))
    assert command.main(["dummy", "--data", str(path)]) == 64
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


def test_nothing_asked_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 64
    assert command.main(["--help"]) == 0
    known = "trainers: census, digits, dummy, jax_mlp, keras_mlp, torch_cnn"
    assert known in capsys.readouterr().out


@pytest.mark.parametrize("mode_dir", ["", "empty"])
def test_evaluating_what_is_not_there_is_said(
    mode_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / mode_dir if mode_dir else tmp_path
    assert command.main(["digits", "--mode", "eval", "--run-dir", str(folder)]) == 64
    assert "holds no run; train there first" in capsys.readouterr().err


@pytest.mark.parametrize("name", trainers.names())
def test_every_flag_has_help_and_a_default(name: str) -> None:
    for action in trainers.load(name).parser()._actions:
        assert action.help, f"{action.dest} has no help"
        assert action.dest == "help" or not action.required


@pytest.mark.parametrize("name", trainers.names())
def test_the_parser_imports_no_framework(name: str) -> None:
    """The program asks every trainer's parser; it must be quick and need nothing installed."""
    code = (
        "import sys, trainers\n"
        f"trainers.load({name!r}).parser().parse_args([])\n"
        "heavy = {'numpy', 'sklearn', 'scipy', 'torch', 'xgboost', 'keras'} & set(sys.modules)\n"
        "ours = {name for name in sys.modules if name.startswith(('outlast.supervisor',"
        " 'outlast.cli',"
        " 'components', 'outlast.localcloud', 'google', 'pulumi'))}\n"
        "sys.exit(f'imported {heavy | ours}' if heavy | ours else 0)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", trainers.names())
def test_trainers_have_the_same_shape(name: str) -> None:
    module = trainers.load(name)
    for part in (
        "parser", "Config", "build", "next_batch", "train_step", "evaluate", "state_dict",
        "parameters", "save_model", "load_model", "main",
    ):  # fmt: skip
        assert callable(getattr(module, part)), part
    assert name == module.NAME and module.NEEDS


COMMON = {
    "mode", "run-dir", "checkpoint-every", "model-output-path", "data", "eval-data", "limit-rows",
    "epochs", "eval-every", "seed", "threads",
}  # fmt: skip


@pytest.mark.parametrize("name", trainers.names())
def test_every_trainer_has_the_common_flags(name: str) -> None:
    parser = trainers.load(name).parser()
    assert {f"--{flag}" for flag in COMMON} <= set(parser._option_string_actions)


@pytest.mark.parametrize("name", trainers.names())
def test_a_missing_framework_is_a_sentence_before_anything_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = trainers.load(name)
    monkeypatch.setattr(module, "NEEDS", {"no_such_framework": "its-package", "numpy": "numpy"})
    monkeypatch.setattr(module, "build", None)
    run_dir = tmp_path / "run"
    assert command.main([name, "--run-dir", str(run_dir)]) == 64
    out, err = capsys.readouterr()
    assert not out and err == (
        f"{name}: no_such_framework: not installed for {sys.executable}; "
        f"run {sys.executable} -m pip install its-package numpy\n"
    )
    assert not run_dir.exists()
