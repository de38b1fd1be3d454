"""XGBoost: rounds in segments with row sampling, a falling learning rate, early stopping."""

import os
import time

import numpy as np
import xgboost

import outlast

PAUSE = float(os.environ.get("PAUSE", "0"))
rng = np.random.default_rng(7)
x = rng.normal(size=(600, 8))
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=600) > 0).astype(int)
rows = xgboost.DMatrix(x[:400], y[:400], nthread=1)
valid = xgboost.DMatrix(x[400:], y[400:], nthread=1)
fixed = {"objective": "binary:logistic", "max_depth": 3, "subsample": 0.7, "nthread": 1}
box = {"raw": b"", "best": b"", "loss": 9.0, "waited": 0}
with outlast.train({"box": box}, 60, checkpoint_every="3") as run:
    for step in run.steps():
        before = bytearray(box["raw"]) if box["raw"] else None
        settings = {**fixed, "seed": step, "learning_rate": 0.3 * 0.97**step}
        booster = xgboost.Booster(settings, [rows, valid], model_file=before)
        booster.update(rows, booster.num_boosted_rounds())
        box["raw"] = bytes(booster.save_raw("ubj"))
        loss = float(booster.eval(valid, "valid").rpartition(":")[2])
        run.log(valid=loss)
        run.eval(logloss=loss, best="min")
        time.sleep(PAUSE)
        if loss < box["loss"]:
            box.update(loss=loss, best=box["raw"], waited=0)
        else:
            box["waited"] += 1
        if box["waited"] > 8:
            run.finish(f"no better in 8 rounds; the best is {box['loss']}")
            break
    run.result("model.ubj").write_bytes(box["best"])
    run.result("last.ubj").write_bytes(box["raw"])
