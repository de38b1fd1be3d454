"""Trains a small network on scikit-learn's scans, as many scripts do: flags, a loop, now and then a
file of weights. It resumes from that file if it exists, and does not know Outlast.

    python train.py --output DIR/model.pt
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())

    first = 0
    if os.path.exists(args.output):
        saved = torch.load(args.output, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    print(f"begins after epoch {first}", flush=True)

    for epoch in range(first + 1, args.epochs + 1):
        torch.manual_seed(args.seed + epoch)
        for rows in torch.randperm(len(labels)).split(32):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if epoch % args.save_every == 0 or epoch == args.epochs:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, args.output + ".tmp")
            os.replace(args.output + ".tmp", args.output)


if __name__ == "__main__":
    main()
