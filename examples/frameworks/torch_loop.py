"""A PyTorch network with a scheduler, early stopping and the best model."""

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
    train, (rows, labels) = torch.utils.data.Subset(data, range(1500)), data[1500:]
    sampler = outlast.BatchSampler(1500, batch_size=50, seed=0)
    loader = DataLoader(train, batch_sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    best = {"loss": float("inf"), "model": None, "waited": 0}
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    state |= {"sampler": sampler, "best": best, "rng": torch.random}
    with outlast.train(state, total=args.steps) as run:
        for step, (x, y) in zip(run.steps(), sampler.over(loader), strict=False):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
            if step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    valid = nn.functional.cross_entropy(model(rows.to(device)), labels.to(device))
                model.train()
                run.eval(valid=valid, best="min")
                if valid.item() < best["loss"]:
                    copied = {name: item.clone() for name, item in model.state_dict().items()}
                    best.update(loss=valid.item(), model=copied, waited=0)
                else:
                    best["waited"] += 1
                if best["waited"] == 10:
                    run.finish("no improvement in 10 evaluations")
                    break
        torch.save(best["model"], run.result("model.pt"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
