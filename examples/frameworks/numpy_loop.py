"""Linear regression in numpy, with early stopping and the best weights."""

import argparse
import sys

import numpy as np

import outlast


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 5))
    y = x @ np.arange(5.0) + rng.normal(size=500)
    w = np.zeros(5)
    best = {"loss": np.inf, "w": w.copy(), "waited": 0}
    with outlast.train({"w": w, "best": best, "rng": rng}, total=args.steps) as run:
        for step in run.steps():
            rate = 0.1 * 0.999**step  # a function of the step
            rows = rng.choice(400, 32)
            w -= rate * x[rows].T @ (x[rows] @ w - y[rows]) / 32  # in place, not w = w - …
            if step % 10 == 0:
                loss = float(np.mean((x[400:] @ w - y[400:]) ** 2))
                run.eval(loss=loss, best="min")
                if loss < best["loss"]:
                    best.update(loss=loss, w=w.copy(), waited=0)
                else:
                    best["waited"] += 1
                if best["waited"] == 10:
                    run.finish("no improvement in 10 evaluations")
                    break
        np.save(run.result("w.npy"), best["w"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
