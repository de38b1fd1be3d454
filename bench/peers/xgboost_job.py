# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""XGBoost: `TrainingCheckPoint` and `xgb.train(xgb_model=)`, with sampling, as its documentation
shows."""

import time

import xgboost as xgb
from common import SEED, Rows, arguments, begin, data, finish, pace, phase

PARAMETERS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 4,
    "subsample": 0.7,
    "colsample_bytree": 0.7,
    "seed": SEED,
    "nthread": 1,
}


class Rounds(xgb.callback.TrainingCallback):
    def __init__(self, args, start):
        self.args, self.rows, self.start = args, Rows(args.dir), start

    def before_iteration(self, model, epoch, evals_log):
        self.begun, self.phase = time.monotonic(), phase("step")
        self.phase.__enter__()
        return False

    def after_iteration(self, model, epoch, evals_log):
        loss = evals_log["train"]["mlogloss"][-1]
        pace(self.begun, self.args)
        self.phase.__exit__(None, None, None)
        self.rows.write(self.start + epoch - self.first(epoch) + 1, loss=loss)
        return False

    def first(self, epoch):
        if not hasattr(self, "_first"):
            self._first = epoch
        return self._first


class Saving(xgb.callback.TrainingCheckPoint):
    def after_iteration(self, model, epoch, evals_log):
        with phase("snapshot"):
            return super().after_iteration(model, epoch, evals_log)


def main():
    args = arguments()
    train, test = [xgb.DMatrix(x, y) for x, y in data()]
    rounds = max(10, args.steps // 8)
    saved = sorted(args.dir.glob("model_*.ubj"), key=lambda path: int(path.stem.split("_")[1]))
    model = xgb.Booster(model_file=saved[-1]) if saved else None
    start = 0 if model is None else model.num_boosted_rounds()
    begin(args.dir, start)
    booster = model
    if start < rounds:
        booster = xgb.train(
            PARAMETERS,
            train,
            rounds - start,
            evals=[(train, "train")],
            verbose_eval=False,
            xgb_model=model,
            callbacks=[Rounds(args, start), Saving(args.dir, "model", interval=5)],
        )
    with phase("evaluation"):
        booster.eval(test)
    with phase("final upload"):
        import numpy as np

        finish(args.dir, {"model": np.frombuffer(booster.save_raw("ubj"), np.uint8)})


if __name__ == "__main__":
    main()
