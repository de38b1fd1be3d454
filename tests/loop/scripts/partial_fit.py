"""scikit-learn's partial_fit on a DataFrame with text labels: a scaler that learns too, a rate that
set_params lowers, the best model as a deep copy, shuffled by a Generator of numpy's."""

import copy
import os
import pickle
import time

import numpy as np
import pandas as pd
from sklearn.datasets import load_iris
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
iris = load_iris(as_frame=True)
frame, labels = iris.data, iris.target.map(dict(enumerate(iris.target_names)))
shuffle = np.random.default_rng(11)
scaler = StandardScaler()
model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=1)
box = {"order": shuffle.permutation(len(frame)), "best": None, "score": 0.0}
classes = sorted(labels.unique())
with outlast.train(
    {"model": model, "scaler": scaler, "box": box, "shuffle": shuffle}, 60, checkpoint_every="3"
) as run:
    for step in run.steps():
        place = (step - 1) % 10
        if place == 0:
            box["order"] = shuffle.permutation(len(frame))
        chosen = box["order"][place * 15 : place * 15 + 15]
        part, wanted = frame.iloc[chosen], labels.iloc[chosen]
        scaler.partial_fit(part)
        seen = pd.DataFrame(scaler.transform(part), columns=frame.columns)
        model.partial_fit(seen, wanted.to_numpy(), classes=classes)
        time.sleep(PAUSE)
        if place == 9:
            model.set_params(eta0=model.eta0 * 0.8)
            all_rows = pd.DataFrame(scaler.transform(frame), columns=frame.columns)
            score = float(model.score(all_rows, labels.to_numpy()))
            run.eval(accuracy=score)
            if score > box["score"]:
                box.update(score=score, best=copy.deepcopy(model))
    run.result("model.pkl").write_bytes(pickle.dumps([box["best"], scaler, model.coef_]))
