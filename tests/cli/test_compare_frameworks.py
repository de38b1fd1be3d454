"""Tensors of `torch.save` are named by their places in the state, without torch's reader."""

import io
from typing import Any

import pytest

from outlast.cli.rehearsal.compare import difference

pytestmark = pytest.mark.frameworks


def test_a_tensor_that_differs_is_named() -> None:
    torch = pytest.importorskip("torch")

    def saved(shift: float) -> bytes:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(3)).backward()
        optimizer.step()
        state: Any = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "n": 1}
        state["model"]["1.bias"] += shift
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    assert difference({"m.pt": saved(0.0)}, {"m.pt": saved(0.0)}) == ""
    answer = difference({"m.pt": saved(0.0)}, {"m.pt": saved(0.5)})
    assert "m.pt differs (array 1.bias: 1 of 1 values differ, by up to 0.5)" in answer
