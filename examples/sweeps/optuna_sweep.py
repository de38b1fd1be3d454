"""Lets Optuna choose the trials of a sweep: it asks, Outlast trains and tells the results.

    python examples/sweeps/optuna_sweep.py lr.yaml --trials 24 --at-once 4

The file has `search: ask`, a metric and a goal. Interrupted, run it again: trials with the same
parameters are not trained twice. Needs `pip install optuna`.
"""

import argparse
import json
import subprocess
from collections.abc import Callable
from typing import Any

import optuna  # type: ignore[import-not-found]


def outlast_sweep(*words: str) -> Any:
    """What `outlast sweep WORDS --json` prints."""
    done = subprocess.run(
        ["outlast", "sweep", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def search(
    file: str, trials: int, at_once: int, outlast: Callable[..., Any] = outlast_sweep
) -> optuna.Study:
    """Searches with Optuna's own sampler; `at_once` trials train side by side."""
    study = optuna.create_study(direction="maximize")  # as the file's goal says
    outlast("up", file)  # what the trials share
    for start in range(0, trials, at_once):
        asked: dict[str, list[optuna.trial.Trial]] = {}
        for _ in range(min(at_once, trials - start)):
            trial = study.ask()
            parameters = {"learning-rate": trial.suggest_float("learning-rate", 1e-3, 1, log=True)}
            found = outlast("ask", file, "--params", json.dumps(parameters))
            asked.setdefault(found["id"], []).append(trial)  # equal parameters are one trial
        outlast("up", file)
        for result in outlast("tell", file, *asked, "--wait"):
            for trial in asked[result["id"]]:
                if result["state"] == "done":
                    study.tell(trial, result["value"])
                elif result["state"] == "pruned":
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                else:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return study


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Lets Optuna choose the trials of a sweep.")
    parser.add_argument("file")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=4)
    flags = parser.parse_args()
    found = search(flags.file, flags.trials, flags.at_once)
    print(f"best: {found.best_value} with {found.best_params}")
