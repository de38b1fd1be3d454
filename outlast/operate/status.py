"""The state of one run, from the bucket alone: any machine that may read it can tell."""

import json
import os
from dataclasses import dataclass
from typing import Any

from outlast.layout import EXPERIMENT_PATTERN, METRICS_FILE, Layout, check_metrics, format_time
from outlast.operate import engine, ledger
from outlast.operate.errors import OperateError, UsageError
from outlast.operate.ledger import Ledger


@dataclass(frozen=True)
class Status:
    """What `outlast status` shows."""

    experiment: str
    run: str
    url: str
    ledger: Ledger | None
    """None: no VM of the run has got as far as taking a term yet."""
    metrics: dict[str, float] | None
    """The last row of a finished run's metrics."""

    def as_json(self) -> dict[str, Any]:
        book = self.ledger
        end = book.head.end if book else None
        return {
            "experiment": self.experiment,
            "run": self.run,
            "url": self.url,
            "state": book.head.state if book else "waiting",
            "reason": end.reason if end else None,
            "step": book.step if book else 0,
            "total": book.total if book else None,
            "deadline": format_time(book.head.deadline) if book else None,
            "attempts": [a.as_json() for a in book.attempts] if book else [],
            "metrics": self.metrics,
        }


def find(experiment: str, *, bucket: str | None, run: str | None) -> Status:
    """The status of an experiment's run. OperateError: there is none, or it cannot be read."""
    from outlast.run.head import HeadError
    from outlast.run.store import StoreError, open_store

    if not EXPERIMENT_PATTERN.fullmatch(experiment):
        raise UsageError(
            f"experiment {experiment!r}: must match [a-z]([-a-z0-9]{{0,38}}[a-z0-9])?; "
            "name the experiment as its stack does."
        )
    prefix = f"experiments/{experiment}"
    if bucket is None or run is None:
        outputs = _outputs(experiment)
        bucket, prefix = bucket or str(outputs["bucket"]), str(outputs["prefix"])
        run = run or str(outputs["run"])
    layout = Layout(prefix, run)
    try:
        store = open_store(f"gs://{bucket}")
        book = ledger.read(store, layout)
        metrics = _last_metrics(store, book)
    except (HeadError, StoreError, ValueError) as error:
        raise OperateError(f"run {run} of {experiment}: cannot be read: {error}") from None
    return Status(experiment, run, f"gs://{bucket}/{layout.root}", book, metrics)


def _outputs(experiment: str) -> dict[str, Any]:
    """The outputs of the experiment's stack, by the shell's own engine and backend."""
    text = engine.run_engine(["stack", "output", "--json", "-s", experiment], env=os.environ)
    outputs = json.loads(text)
    if "run" not in outputs:
        raise OperateError(f"stack {experiment}: is not up; run pulumi up first.")
    return outputs


def _last_metrics(store: Any, book: Ledger | None) -> dict[str, float] | None:
    end = book.head.end if book else None
    if end is None or end.result is None:
        return None
    table = check_metrics(store.get(end.result.path + METRICS_FILE)[0])
    return {name: values[-1] for name, values in table.items() if values}
