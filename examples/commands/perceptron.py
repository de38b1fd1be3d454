"""Trains a perceptron on points of a line, in plain Python; it knows only its two folders.

    python perceptron.py --checkpoints DIR --output FILE

As many scripts do, it keeps its last checkpoints by epoch and resumes from the newest.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path


def newest(folder):
    """The newest checkpoint, or None."""
    found = sorted(folder.glob("epoch-*.json"))
    return json.loads(found[-1].read_text()) if found else None


def save(folder, state, keep=2):
    """Write a checkpoint, then delete the oldest."""
    path = folder / f"epoch-{state['epoch']:04d}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    temporary.rename(path)
    for old in sorted(folder.glob("epoch-*.json"))[:-keep]:
        old.unlink()


def train_epoch(weights, epoch, points=200):
    """The weights after one pass over points that depend on the epoch alone."""
    rng = random.Random(epoch)
    for _ in range(points):
        x, y = rng.uniform(-1, 1), rng.uniform(-1, 1)
        label = 1 if y > 0.5 * x + 0.1 else -1
        if label * (weights[0] * x + weights[1] * y + weights[2]) <= 0:
            weights = [weights[0] + label * x, weights[1] + label * y, weights[2] + label]
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    state = newest(args.checkpoints) or {"epoch": 0, "weights": [0.0, 0.0, 0.0]}
    print(f"begins after epoch {state['epoch']}", flush=True)
    while state["epoch"] < args.epochs:
        epoch = state["epoch"] + 1
        state = {"epoch": epoch, "weights": train_epoch(state["weights"], epoch)}
        save(args.checkpoints, state)
        print(f"epoch {epoch}: {state['weights']}", flush=True)
        time.sleep(float(os.environ.get("PACE", "0")))
    args.output.write_text(json.dumps(state["weights"]) + "\n")


if __name__ == "__main__":
    main()
