# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""torch.distributed.checkpoint: `async_save` of model and optimizer every so many steps, as in
PyTorch's "Getting Started with Distributed Checkpoint" (AppState) and its asynchronous recipe."""

import shutil
import time

import torch
import torch.distributed.checkpoint as dcp
from common import Rows, arguments, begin, data, finish, order, pace, phase, torch_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class AppState(Stateful):
    """The recipe's wrapper, with the step."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "step": self.step}

    def load_state_dict(self, saved):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optim"],
        )
        self.step = saved["step"]


def main():
    args = arguments()
    (x, y), (test_x, test_y) = [[torch.from_numpy(part) for part in pair] for pair in data()]
    model = torch_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state = AppState(model, optimizer)
    folders = sorted(args.dir.glob("step-*"))
    if folders:
        dcp.load({"app": state}, checkpoint_id=folders[-1])
    begin(args.dir, state.step)
    rows, future = Rows(args.dir), None
    model.train()
    while state.step < args.steps:
        begun = time.monotonic()
        with phase("step"):
            chosen = order(state.step, len(x))
            loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            rows.write(state.step, loss=loss.item())
            pace(begun, args)
        if state.step % args.eval_every == 0:
            with phase("evaluation"), torch.no_grad():
                model.eval()
                (model(test_x).argmax(1) == test_y).float().mean().item()
                model.train()
        if state.step % args.save_every == 0:
            with phase("snapshot"):
                if future is not None:
                    future.result()
                folder = args.dir / f"step-{state.step:06d}"
                future = dcp.async_save({"app": state}, checkpoint_id=folder)
            for old in sorted(args.dir.glob("step-*"))[:-3]:
                shutil.rmtree(old)
    with phase("final upload"):
        if future is not None:
            future.result()
        finish(args.dir, {name: part.numpy() for name, part in model.state_dict().items()})


if __name__ == "__main__":
    main()
