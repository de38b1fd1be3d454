"""A trainer to start from: linear regression with NumPy. Put your own model and data in.

    python train/mine.py --steps 2000

Kill it at any moment; the same command resumes, and ends with the same bytes.
"""

import argparse
import sys
import time

import numpy as np

import outlast


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--step-ms", type=float, default=0, help="the work of a larger model")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5))
    y = x @ np.arange(5.0) + rng.normal(size=500)
    w = np.zeros(5)
    state = {"w": w, "rng": rng}  # everything that training changes
    with outlast.train(state, total=args.steps) as run:
        for step in run.steps():
            time.sleep(args.step_ms / 1000)
            rows = rng.choice(400, 32)
            gradient = x[rows].T @ (x[rows] @ w - y[rows]) / 32
            w -= args.learning_rate * 0.999**step * gradient  # in place, not w = w - …
            if step % 100 == 0:
                run.eval(loss=float(np.mean((x[400:] @ w - y[400:]) ** 2)), best="min")
        np.save(run.result("w.npy"), w)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
