"""Cross-validation: three folds, one training after the other, each in a folder of its own."""

import os
import sys
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
digits = load_digits()
x, y = digits.data / 16, digits.target
scores = []
for fold, (train, test) in enumerate(KFold(3, shuffle=True, random_state=1).split(x)):
    model = SGDClassifier(loss="log_loss", random_state=fold)
    sampler = outlast.BatchSampler(len(train), 64, seed=fold)
    folder = f"{sys.argv[1]}/{fold}"
    state = {"model": model, "sampler": sampler}
    try:
        with outlast.train(state, 20, run_dir=folder, checkpoint_every="3") as run:
            for step, rows in zip(run.steps(), sampler, strict=False):
                model.partial_fit(x[train[rows]], y[train[rows]], classes=range(10))
                run.log(step_=step)
                time.sleep(PAUSE)
            scores.append(float(model.score(x[test], y[test])))
            run.eval(accuracy=scores[-1])
            np.save(run.result("coef.npy"), model.coef_)
    except SystemExit as ended:  # a fold that is done says so
        if ended.code:
            raise
print("this attempt's scores:", scores)
