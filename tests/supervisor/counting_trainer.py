"""A trainer of the tests' bundle: adds up its steps, and waits where a file is missing."""

import argparse
import os
import sys
import time
from pathlib import Path

import outlast

STEPS = 20


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--gate-at", type=int, default=10)
    parser.add_argument("--crash-at", type=int)
    options = parser.parse_args(argv)
    total = {"sum": 0}
    with outlast.train(state={"total": total}, total=STEPS) as run:
        for step in run.steps():
            if step == options.gate_at and options.gate is not None:
                options.gate.with_suffix(".waiting").write_text(str(os.getpid()))
                # Inside a step: what was handed over before is at most step - 1.
                while not options.gate.exists():
                    time.sleep(0.01)
            if step == options.crash_at:
                raise RuntimeError("crashed as asked")
            total["sum"] += step
            run.log(sum=total["sum"])
            Path(os.environ["LOG_DIR"], f"run-{os.environ['RUN_ID']}").write_text(str(step))
        run.result("sum.txt").write_text(str(total["sum"]))
        run.result("strays.txt").write_text(" ".join(strays()))
    return 0


def strays() -> list[str]:
    """Modules that an editable install serves and no machine would have."""
    bundle = os.environ["PYTHONPATH"].split(":")[0]
    return [
        name
        for name, module in sys.modules.items()
        if name.split(".")[0] == "outlast"
        and not str(getattr(module, "__file__", "")).startswith(f"{bundle}/")
    ]
