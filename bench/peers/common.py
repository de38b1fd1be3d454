# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""What the peers' jobs share: a small classifier on scikit-learn's digits, rows, and the digest.

Each job saves and resumes the way its own documentation shows. What it would have to add to that
to be exact (random numbers, the position in the data, rows that were written twice) it does not
add: that is what is measured. Run as scripts, by the interpreter that has the peers installed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np

try:
    from bench_probe import phase
except ImportError:  # not measured

    def phase(name):
        return contextlib.nullcontext()


BATCH = 64
SEED = 7
HIDDEN = 256


def arguments():
    """The flags of all jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--save-every", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=3.0)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def data():
    """((x, y) to train on, (x, y) to test on); x of shape (rows, 64), 0 to 1."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    return (x[360:], y[360:]), (x[:360], y[:360])


def order(step, rows):
    """Row numbers of that step's batch, a function of the step: the data's position is known."""
    per_epoch = rows // BATCH
    epoch, batch = divmod(step, per_epoch)
    permutation = np.random.default_rng((SEED, epoch)).permutation(rows)
    return permutation[batch * BATCH : (batch + 1) * BATCH]


class Rows:
    """One JSON line a step, as one writes it by hand."""

    def __init__(self, folder):
        self._file = open(folder / "rows.jsonl", "a", buffering=1)  # noqa: SIM115

    def write(self, step, **values):
        self._file.write(json.dumps({"step": step, **values}) + "\n")


def begin(folder, step):
    """Note the step from which this process resumes."""
    with open(folder / "starts.jsonl", "a") as file:
        file.write(json.dumps({"step": step}) + "\n")


def pace(begun, args):
    """Wait until the step has lasted as long as a larger model's would."""
    time.sleep(max(0.0, args.step_ms / 1000 - (time.monotonic() - begun)))


def finish(folder, arrays):
    """The digest of the finished weights, by name."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name} {array.dtype} {array.shape}\n".encode())
        hasher.update(array.tobytes())
    part = folder / "final.part"
    part.write_text(json.dumps({"digest": hasher.hexdigest()}))
    os.replace(part, folder / "final.json")


def torch_model():
    """A network with dropout: random numbers are part of every step."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(HIDDEN, 10),
    )
