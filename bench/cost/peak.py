"""A training whose peak of memory is measured from outside: bare, or with outlast.train; from its
start, or resumed. ``SUBJECT MB FOLDER STEPS``; FOLDER is ``-`` for the bare one."""

import os
import sys

import numpy as np


def numpy_state(mb):
    """Arrays, and a step that changes all of them."""
    size = int(mb * 1e6 / 4 / 8)
    state = {f"w{i}": np.full(size, i, np.float32) for i in range(8)}

    def step():
        for array in state.values():
            array += 1

    return state, step


def torch_state(mb):
    """A model with Adam: parameters, two moments of each, and gradients that are not state."""
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    size = int(mb * 1e6 / 4 / 3 / 8)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(size)) for _ in range(8))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step():
        for param in model.parameters():
            param.grad = torch.ones(size)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return {"model": model, "optimizer": optimizer}, step


def main(subject, mb, folder, steps):
    """Train so many steps; a bare training makes as many."""
    state, step = {"numpy": numpy_state, "torch": torch_state}[subject](float(mb))
    if folder == "-":
        for _ in range(int(steps)):
            step()
        return
    import outlast
    from outlast.loop.leading import Leading

    with outlast.train(
        state, 100, run_dir=folder, arguments={}, name="peak", checkpoint_every="1"
    ) as run:
        for number in run.steps():
            step()
            side = run._side
            assert isinstance(side, Leading)
            if not side.session.wait_committed(120):
                raise SystemExit("no commit within two minutes")
            if number >= int(steps):
                sys.stdout.flush()
                os._exit(9)


if __name__ == "__main__":
    main(*sys.argv[1:])
