"""A PyTorch training that survives interruptions: handwritten digits, a small network."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import outlast


def train_step(model, optimizer, scheduler, rows, labels):
    """Updates the model once; returns the batch's loss before the update."""
    model.train()
    loss = nn.functional.cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.item()


@torch.no_grad()
def accuracy(model, data):
    """The share of rows that the model classifies correctly."""
    model.eval()
    rows, labels = data[:]
    return (model(rows).argmax(dim=1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    pixels, digits = load_digits(return_X_y=True)
    scans = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
    train, test = random_split(scans, [0.8, 0.2])
    sampler = outlast.BatchSampler(len(train), batch_size=64, seed=args.seed)
    loader = DataLoader(train, batch_sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    total = args.epochs * sampler.batches_per_epoch
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    state |= {"sampler": sampler, "rng": torch.random}
    with outlast.train(state=state, total=total, checkpoint_every="1s") as run:
        for step, batch in zip(run.steps(), sampler.over(loader), strict=False):
            run.log(loss=train_step(model, optimizer, scheduler, *batch))
            if step % 100 == 0 or step == total:
                run.eval(accuracy=accuracy(model, test), best="max")
        torch.save(model.state_dict(), run.result("model.pt"))


if __name__ == "__main__":
    main()
