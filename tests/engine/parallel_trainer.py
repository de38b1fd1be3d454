"""A trainer of two processes, put into a checkout's trainers by a test: a linear map in torch."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import outlast
from outlast.trainers import flags


def parser() -> flags.Parser:
    made = flags.Parser("parallel", "Train a linear map in several processes.")
    made.add_argument("--total", type=flags.whole(1), default=60)
    made.add_argument("--pace-ms", type=flags.positive, default=100.0)
    return made


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]
    from torch.nn.parallel import DistributedDataParallel  # pyright: ignore[reportMissingImports]

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    noise = torch.Generator().manual_seed(100 + dist.get_rank())
    with outlast.train(
        state={"model": model, "optimizer": optimizer},
        rank_state={"noise": noise},
        total=options.total,
    ) as run:
        for step in run.steps():
            rows = torch.randn(8, 4, generator=noise)
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            name = f"rank-{run.rank}-of-{run.world_size}"
            Path(os.environ["LOG_DIR"], name).write_text(f"{os.environ['ATTEMPT']} {step}")
            time.sleep(options.pace_ms / 1000)
        weights = model.module.weight.detach().numpy()
        run.result("weights").write_bytes(weights.tobytes())
    dist.destroy_process_group()
    return 0
