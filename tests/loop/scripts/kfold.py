"""Cross-validation: three folds, which are the parts of one run."""

import os
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
    state = {"model": model, "sampler": sampler}
    with outlast.train(state, 20, part=f"fold-{fold}", checkpoint_every="3") as run:
        for step, rows in zip(run.steps(), sampler, strict=False):
            model.partial_fit(x[train[rows]], y[train[rows]], classes=range(10))
            run.log(step_=step)
            time.sleep(PAUSE)
        run.eval(accuracy=float(model.score(x[test], y[test])))
        np.save(run.result("coef.npy"), model.coef_)
    scores.append(run.evals[-1]["accuracy"])
print("scores:", scores)
