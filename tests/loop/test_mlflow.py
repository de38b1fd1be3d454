"""MLflow with its store in a file: one run, each step once, despite interruptions."""

import sys
from pathlib import Path

import pytest

from tests.loop import programs
from tests.loop.test_trackers import PROGRAM

pytestmark = pytest.mark.frameworks
pytest.importorskip("mlflow", reason="MLflow is an extra")


def test_an_interrupted_run_is_one_mlflow_run(tmp_path: Path) -> None:
    # Imported before: on a busy machine that alone takes longer than a tracker gets at the end.
    (tmp_path / "walk.py").write_text(f"import mlflow\n{PROGRAM}")
    variables = {
        "OUTLAST_TRACKER": "mlflow",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    cut = programs.run(tmp_path, [sys.executable, "walk.py"], FAIL_AT="17", **variables)
    assert cut.returncode == 9, cut.stderr
    done = programs.run(tmp_path, [sys.executable, "walk.py"], **variables)
    assert done.returncode == 0, done.stderr
    (run,) = [file.parent for file in (tmp_path / "mlruns").glob("*/*/metrics")]
    points = [line.split() for line in (run / "metrics" / "x").read_text().splitlines()]
    assert [int(step) for _, _, step in points] == list(range(1, 31)), done.stderr
    assert (run / "params" / "rate").read_text() == "0.1"
    assert "status: 3" in (run / "meta.yaml").read_text(), "finished"
