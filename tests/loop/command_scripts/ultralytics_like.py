"""Files as Ultralytics writes them: weights/last.pt and best.pt in place, results.csv, args.yaml;
at the end the optimiser is stripped from both."""

import argparse
import io
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--project", type=Path, required=True)
parser.add_argument("--resume", type=Path)
parser.add_argument("--epochs", type=int, default=14)
args = parser.parse_args()
weights = args.project / "weights"
weights.mkdir(parents=True, exist_ok=True)
last, best = weights / "last.pt", weights / "best.pt"
torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
rows, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
ema = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
start, best_fitness = 0, 0.0
if args.resume:
    saved = torch.load(args.resume, weights_only=True)
    assert saved["optimizer"] is not None, f"{args.resume} is finished, nothing to resume"
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start, ema, best_fitness = saved["epoch"] + 1, saved["ema"], saved["best_fitness"]
else:
    (args.project / "args.yaml").write_text(f"epochs: {args.epochs}\n")
print(f"begins after {start}", flush=True)
for epoch in range(start, args.epochs):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(128):
        loss = nn.functional.cross_entropy(model(rows[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in model.state_dict().items():
            ema[name].mul_(0.9).add_(value, alpha=0.1)
    fitness = (model(rows).argmax(1) == labels).float().mean().item()
    with (args.project / "results.csv").open("a") as file:
        file.write(f"{epoch},{fitness}\n")
    best_fitness = max(best_fitness, fitness)
    buffer = io.BytesIO()
    saved = {
        "epoch": epoch,
        "model": model.state_dict(),
        "ema": ema,
        "optimizer": optimizer.state_dict(),
        "best_fitness": best_fitness,
    }
    torch.save(saved, buffer)
    last.write_bytes(buffer.getvalue())
    if fitness == best_fitness:
        best.write_bytes(buffer.getvalue())
    time.sleep(float(os.environ.get("PACE", "0")))
for path in (last, best):
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "optimizer": None, "epoch": -1}, path)
