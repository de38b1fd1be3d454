"""A scikit-learn classifier with a falling rate, early stopping and the best model."""

import argparse
import copy
import sys

from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import outlast


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(argv)
    x, y = load_digits(return_X_y=True)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0)
    sampler = outlast.BatchSampler(1500, batch_size=50, seed=0)
    best = {"accuracy": 0.0, "model": None, "waited": 0}
    state = {"model": model, "sampler": sampler, "best": best}
    with outlast.train(state, total=args.steps) as run:
        for step, rows in zip(run.steps(), sampler, strict=False):
            model.set_params(eta0=0.01 / (1 + step / 100))
            model.partial_fit(x[rows], y[rows], classes=range(10))
            if step % 10 == 0:
                accuracy = model.score(x[1500:], y[1500:])
                run.eval(accuracy=accuracy, best="max")
                if accuracy > best["accuracy"]:
                    best.update(accuracy=accuracy, model=copy.deepcopy(model), waited=0)
                else:
                    best["waited"] += 1
                if best["waited"] == 20:
                    run.finish("no improvement in 20 evaluations")
                    break
        outlast.save(run.result("model.json"), {"model": best["model"]})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
