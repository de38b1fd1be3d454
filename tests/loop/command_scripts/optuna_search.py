"""A search with Optuna in an SQLite file, as its guide writes it: the study is loaded where there
is one, and each trial's value follows from its parameters."""

import argparse
import os
import time

import optuna

parser = argparse.ArgumentParser()
parser.add_argument("--storage", required=True)
parser.add_argument("--trials", type=int, default=16)
args = parser.parse_args()


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    time.sleep(float(os.environ.get("PACE", "0")))
    return (x - 2) ** 2 + rate


study = optuna.create_study(
    study_name="search",
    storage=args.storage,
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=1),
)
done = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
print(f"begins after {done}", flush=True)
study.optimize(objective, n_trials=args.trials - done)
