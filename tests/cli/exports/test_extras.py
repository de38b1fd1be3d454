"""What `outlast fetch` writes from rows: a picture, a notebook, files for TensorBoard."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.cli import runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.cli.exports import events, extras, notebook_file, picture
from outlast.cli.exports.extras import Extra
from tests.cli.report.planted import TOTAL, Planted, loss
from tests.cli.report.test_page import HOSTILE
from tests.cli.test_runs import trained  # noqa: F401  a fixture

ALL = (*Extra,)


def outlast(*words: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout, done.stderr


def rows_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / extras.ROWS_FILE).read_text().splitlines()]


def test_they_come_with_the_result(
    trained: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--curves", "--notebook", "--tensorboard")
    shown = json.loads(outlast("fetch", str(trained / "run"), *options, "--json")[0])
    names = [picture.FILE, extras.ROWS_FILE, notebook_file.FILE, f"tensorboard/{events.FILE}"]
    assert shown["written"] == names and shown["without"] == ""
    folder = tmp_path / shown["path"]
    assert {*names, *shown["files"]} <= {
        file.relative_to(folder).as_posix() for file in folder.rglob("*")
    }
    assert [row["step"] for row in rows_of(folder)] == list(range(1, 21))
    # Again, with the same: the notebook is the same, the others are replaced.
    outlast("fetch", str(trained / "run"), *options)
    (folder / notebook_file.FILE).write_text("my own cells")
    with pytest.raises(OperateError, match=r"curves.ipynb: has other content, so it is kept; move"):
        extras.write(runs.find(trained / "run"), folder, [Extra.NOTEBOOK])
    assert (folder / notebook_file.FILE).read_text() == "my own cells"


def test_a_run_in_training_has_them_without_a_result(
    trained: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = outlast("fetch", str(trained / "half"), "--notebook", "--into", "r")
    folder = tmp_path / out.strip()
    assert "has no result; it has one once it is done" in err
    assert sorted(os.listdir(folder)) == [notebook_file.FILE, extras.ROWS_FILE]
    assert 0 < len(rows_of(folder)) < 12
    outlast("fetch", str(trained / "half"), code=1)


def test_a_name_of_the_result_is_kept(tmp_path: Path) -> None:
    place = Planted().whole().place
    for extra, name in (
        (Extra.CURVES, picture.FILE),
        (Extra.NOTEBOOK, extras.ROWS_FILE),
        (Extra.TENSORBOARD, "tensorboard/x"),
    ):
        with pytest.raises(OperateError, match="the result has"):
            extras.write(place, tmp_path, [extra], taken=[name])
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("text", ["", HOSTILE, "$\\frac", "a`b\n# c"])
def test_the_picture_shows_any_names_as_text(tmp_path: Path, text: str) -> None:
    run = Planted(text=text).whole()
    (name,) = extras.write(run.place, tmp_path, [Extra.CURVES])
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG\r\n") and len(data) > 20_000


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OperateError) as caught:
        extras.write(Planted().whole().place, tmp_path, [Extra.CURVES])
    assert str(caught.value) == (
        "training_curves.png: matplotlib is not installed; pip install 'outlast[curves]'"
    )
    assert not os.listdir(tmp_path)


def cells(folder: Path) -> list[str]:
    page = json.loads((folder / notebook_file.FILE).read_text())
    assert (page["nbformat"], page["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("text", ["", HOSTILE])
def test_the_notebook_runs_where_outlast_is_not_installed(tmp_path: Path, text: str) -> None:
    """Its cells one after the other, as a kernel runs them, in another process."""
    run = Planted(text=text).whole()
    extras.write(run.place, tmp_path, [Extra.NOTEBOOK])
    code = "\n\n".join(cells(tmp_path))
    assert "outlast" not in code
    check = "\nfigure.savefig('drawn.png')\nprint(sorted(numbers['loss'])[-1])"
    done = subprocess.run(
        [sys.executable, "-c", code + check],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": "", "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{TOTAL} rows;" in done.stdout and str(loss(TOTAL)) in done.stdout
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
