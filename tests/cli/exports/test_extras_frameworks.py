"""What `outlast fetch` writes, read by the programs that it is for."""

from pathlib import Path

import pytest

from outlast.cli.exports import events, extras, notebook_file
from outlast.cli.exports.extras import Extra
from tests.cli.report.planted import TOTAL, Planted, loss

pytestmark = pytest.mark.frameworks


def test_tensorboard_reads_each_step_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore
        EventAccumulator,
    )

    (name,) = extras.write(Planted().whole().place, tmp_path, [Extra.TENSORBOARD])
    assert name == f"tensorboard/{events.FILE}"
    found = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    assert {"loss", "test_accuracy"} <= {*found.Tags()["scalars"]}
    assert [one.step for one in found.Scalars("loss")] == list(range(1, TOTAL + 1))
    assert found.Scalars("loss")[-1].value == pytest.approx(loss(TOTAL))


def test_jupyter_runs_the_notebook(tmp_path: Path) -> None:
    import nbformat  # type: ignore
    from nbclient import NotebookClient  # type: ignore

    extras.write(Planted().whole().place, tmp_path, [Extra.NOTEBOOK])
    page = nbformat.read(tmp_path / notebook_file.FILE, as_version=4)
    nbformat.validate(page)
    NotebookClient(page, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in page.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
