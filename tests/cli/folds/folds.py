"""A cross-validation as three parts of one run, for `test_rehearse_parts`."""

import sys
import time

import numpy as np

import outlast

FOLDS = ("fold-1", "fold-2", "all")
STEPS = 24


def main(argv):
    scores = []
    for fold in FOLDS:
        rng = np.random.default_rng(len(fold))
        w = np.zeros(4)
        with outlast.train({"w": w, "rng": rng}, total=STEPS, part=fold) as run:
            for step in run.steps():
                w += rng.normal(size=4)
                run.log(loss=float(w @ w))
                if step % 6 == 0:
                    run.eval(size=float(abs(w).sum()), best="min")
                time.sleep(0.3)  # what strikes in the middle of a part comes before its end
            run.eval(end=float(abs(w).sum()))
            np.save(run.result("w.npy"), w)
        scores.append(run.evals[-1]["end"])
        print("scores:", scores, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
