"""`--json`: each command prints what `outlast/cli/documents` and docs/json.md say."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import click
import numpy as np
import pytest
from click.testing import CliRunner

from outlast.base.exits import State
from outlast.base.folders import PACKAGE
from outlast.bucket.store import MemoryStore
from outlast.cli import (
    data,
    experiments,
    fetch,
    handover,
    price_refresh,
    recover,
    repair,
    runs,
    stack,
    up,
)
from outlast.cli.app import cli
from outlast.cli.audit import audit
from outlast.cli.commands import dev
from outlast.cli.commands.output import Form, JsonOption
from outlast.cli.dev import pull
from outlast.cli.doctor import examine
from outlast.cli.documents.costs import Price, ProjectCosts, RefreshedPrices
from outlast.cli.documents.previews import Review
from outlast.cli.documents.rehearsals import OnGoogle
from outlast.cli.errors import EngineError
from outlast.cli.prune import select
from outlast.cli.rehearsal import rehearse as rehearsal
from outlast.cli.rehearsal.google import budget
from outlast.cli.rehearsal.google import rehearse as google
from outlast.cli.rehearsal.google.assumptions import ASSUMPTIONS, Answer, Outcome
from outlast.cli.rehearsal.google.report import GoogleReport
from outlast.cli.rehearsal.guarantees import Guarantee, Verdict
from outlast.cli.rehearsal.report import Report
from outlast.cli.rehearsal.seen import Fault
from outlast.cli.review import preview
from outlast.cli.runs import Place
from outlast.costs.pricing import Item, Sum
from outlast.spec.metrics import Last
from tests.cli import test_preview, test_resume
from tests.cli.json_documents import problems
from tests.cli.test_inspect import TREE, model
from tests.cli.test_names import commands
from tests.cli.test_overview import plant
from tests.cli.test_resume import COMMITTED, LAYOUT, asked  # noqa: F401  a fixture

Patch = pytest.MonkeyPatch


@pytest.fixture
def planted(monkeypatch: Patch) -> Place:
    """A run that is done, with attempts, in the one bucket of this project."""
    store = MemoryStore()
    run = plant(store, "first", state=State.STOPPED)
    store.put(run.log_piece(2, 0), b"one\ntwo\n")
    plant(store, "second")
    place = Place("first", store, run)
    monkeypatch.setattr(experiments, "buckets", lambda: {"runs": ""})
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: store)
    monkeypatch.setattr(runs, "find", lambda name: replace(place, name=name))
    monkeypatch.setattr(recover, "recover", lambda _: recover.Recovered(True, ("a bucket",)))
    return place


def found(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def of_overview(*words: str, code: int = 0) -> Callable[..., str]:
    return lambda monkeypatch, tmp_path: found(*words, code=code)


def checkpoints(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(
        runs, "find", lambda _: Place("dev", test_resume.stack(COMMITTED).memory, LAYOUT)
    )
    return found("checkpoints", "dev")


def fetched(monkeypatch: Patch, tmp_path: Path) -> str:
    one = fetch.Fetched("first", "0", tmp_path, ("model",), None)
    monkeypatch.setattr(fetch, "fetch", lambda *_, **__: one)
    return found("fetch", "first")


def inspected(monkeypatch: Patch, tmp_path: Path) -> str:
    np.save(tmp_path / "w.npy", np.eye(2))
    (tmp_path / "trees.json").write_text(json.dumps(model([TREE])))
    (tmp_path / "m.pkl").write_bytes(b"x")

    @contextlib.contextmanager
    def verified(*_: object) -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr(fetch, "verified", verified)
    text = found("inspect", "first")
    shown = json.loads(text)
    assert shown["parameters"] and shown["trees"] and shown["others"]
    return text


def stopped(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(stack, "find", lambda _: test_resume.stack(COMMITTED))
    return found("stop", "dev", "--now")


def upped(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(up, "up", lambda *_, aside: up.Upped("first", "no quota" if aside else ""))
    monkeypatch.setattr(up, "latest", lambda _: up.Latest("main", "c" * 40, ""))
    text = found("up", "first", "--latest")
    assert json.loads(text)["commit"] == "c" * 40 and json.loads(text)["recovered"]
    return text


def destroyed(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(up, "destroy", lambda *_, aside: "stays" if aside else "")
    return found("destroy", "first")


def ran(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(up, "up", lambda *_, aside: up.Upped("first"))
    place = runs.find("first")
    plant(place.store, "first", state=State.DONE)  # type: ignore[arg-type]
    one = fetch.Fetched("first", "0", tmp_path, ("model",), None)
    monkeypatch.setattr(fetch, "fetch", lambda *_, **__: one)
    text = found("run", "first")
    assert len(text.splitlines()) == 2
    return text


def resumed(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(stack, "find", lambda _: test_resume.stack(COMMITTED))
    return found("resume", "dev")


def repaired(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(stack, "find", lambda _: test_resume.stack(COMMITTED))
    monkeypatch.setattr(repair, "repair", lambda *_: repair.Repaired(COMMITTED, 2))
    return found("repair", "dev")


def handed_over(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(runs, "find_damaged", lambda _: runs.find("first"))
    done = handover.HandedOver(COMMITTED, "o/p/before", "gs://b/experiments/dev/0")
    monkeypatch.setattr(handover, "hand_over", lambda *_: done)
    return found("handover", "gs://b/experiments/dev/0", "o/p/s")


def previewed(monkeypatch: Patch, tmp_path: Path) -> str:
    review = test_preview.reviewed(
        [*test_preview.unchanged(template=test_preview.OTHER_TEMPLATE)],
        _aaaaaaaaaa=test_preview.OPEN,
    )
    monkeypatch.setattr(preview, "review", lambda *_, **__: review)
    text = found("preview", "dev", code=review.exit_code)
    shown = json.loads(text)
    assert shown["runs"] and shown["changes"] and shown["cost"]["after"]["items"]
    return text


def costs(monkeypatch: Patch, tmp_path: Path) -> str:
    """Also of a project; and prices, without Google's catalog."""
    refreshed = price_refresh.Refresh(tmp_path, "2026-01-01", 3, 2, 1)
    monkeypatch.setattr(price_refresh, "refresh", lambda: refreshed)
    text = found("costs", "--refresh-prices")
    assert problems(json.loads(text), RefreshedPrices) == []
    text = found("costs", "--all")
    assert problems(json.loads(text), ProjectCosts) == [] and json.loads(text)["runs"]
    text = found("costs", "first")
    assert json.loads(text)["vms"] and json.loads(text)["attempts"]
    return text


def rehearsed(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(rehearsal, "rehearse", lambda **_: report())
    return found("rehearse")


def report() -> Report:
    return Report(
        *("storm", "dev", "0"),
        metrics={"loss": Last(1, 0.5)},
        faults=(Fault("kill", 1, 1), Fault("preempt", None, None, {"planned": "delete"})),
        parts=({"part": "a", "step": 1, "done": True},),
        guarantees=[Guarantee("same-bytes", "says", Verdict.HELD, "equal")],
    )


def pushed(monkeypatch: Patch, tmp_path: Path) -> str:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a").write_text("1")
    return found("data", "push", str(tmp_path / "mine"))


def listed(monkeypatch: Patch, tmp_path: Path) -> str:
    pushed(monkeypatch, tmp_path)
    use = data.Use("first", "0", State.OPEN)
    monkeypatch.setattr(data, "uses_of", lambda _: ({"gs://runs/data/mine": [use]}, []))
    text = found("data", "ls")
    assert json.loads(text)[0]["used_by"]
    return text


def pulled(monkeypatch: Patch, tmp_path: Path) -> str:
    monkeypatch.setattr(dev, "_way", lambda *_: (None, None))
    monkeypatch.setattr(pull, "pull", lambda *_: pull.Pulled(tmp_path, 1, 2))
    return found("dev", "pull", "first", "a", str(tmp_path))


def audited(monkeypatch: Patch, tmp_path: Path) -> str:
    cost = Sum((Item("disk", 0.1), Item("address", None)))
    one = audit.Finding("disk", "lost", "no stack", cost, lambda: None, "[a/b/c]", "zones/z")
    seen = audit.Audit("my-project", (one,), ("young",), ("kept",), {"other": 1}, ("unread",))
    monkeypatch.setattr(audit, "read", lambda *_, **__: seen)
    return found("audit", "--project", "my-project", code=audit.FOUND)


def diagnosed(monkeypatch: Patch, tmp_path: Path) -> str:
    checks = (examine.Check("API", examine.Verdict.PROBLEM, "is not enabled; enable it"),)
    seen = examine.Diagnosis("my-project", "--project", "", checks)
    monkeypatch.setattr(examine, "examine", lambda *_, **__: seen)
    return found("doctor", code=examine.FOUND)


def pruned(monkeypatch: Patch, tmp_path: Path) -> str:
    item = select.Item("run", "gs://b/experiments/a/0/", "done", 9, Sum(), lambda: None)
    left = select.Left("gs://b/experiments/b/0/", "its stack is up")
    monkeypatch.setattr(select, "plan", lambda _: select.Plan((item,), (left,), ()))
    return found("prune")


CASES: dict[str, Callable[..., str]] = {
    "list": of_overview("list"),
    "status": of_overview("status", "first"),
    "costs": costs,
    "report": of_overview("report", "first"),
    "wait": of_overview("wait", "first", code=4),
    "watch": of_overview("watch", "first", code=4),
    "logs": of_overview("logs", "first"),
    "checkpoints": checkpoints,
    "data ls": listed,
    "data push": pushed,
    "dev pull": pulled,
    "audit": audited,
    "doctor": diagnosed,
    "prune": pruned,
    "fetch": fetched,
    "inspect": inspected,
    "stop": stopped,
    "up": upped,
    "destroy": destroyed,
    "recover": of_overview("recover", "first"),
    "run": ran,
    "resume": resumed,
    "repair": repaired,
    "handover": handed_over,
    "preview": previewed,
    "rehearse": rehearsed,
}


def options(group: click.Group = cli, words: str = "") -> dict[str, JsonOption]:
    """The option of every command that has it, by its words."""
    found: dict[str, JsonOption] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, JsonOption):
                found[f"{words}{name}"] = option
        if isinstance(command, click.Group):
            found |= options(command, f"{words}{name} ")
    return found


def test_every_command_that_prints_json_declares_its_document() -> None:
    for words, command in commands():
        for option in command.params:
            if "--json" in option.opts:
                assert isinstance(option, JsonOption), (
                    f"{words} --json: declare it with json_option, and its document in"
                    " outlast/cli/documents"
                )


@pytest.mark.parametrize(
    "name",
    # What a sweep's commands print is checked in all tests of tests/cli/sweep.
    [name for name in options() if not name.startswith("sweep ")],
)
@pytest.mark.usefixtures("planted", "asked")
def test_each_command_prints_the_document_that_it_declares(
    name: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    assert name in CASES, f"outlast {name} --json: add a case here"
    option, text = options()[name], CASES[name](monkeypatch, tmp_path)
    if option.form is Form.LINES:
        shown: Sequence[Any] = [json.loads(line) for line in text.splitlines()]
    else:
        shown = json.loads(text)
        assert isinstance(shown, list) == (option.form is Form.LIST)
        shown = shown if isinstance(shown, list) else [shown]
    assert shown
    for one in shown:
        wrong = [problems(one, kind) for kind in option.document]
        assert [] in wrong, min(wrong, key=len)


def test_several_experiments_are_a_list(planted: Place) -> None:
    assert [one["experiment"] for one in json.loads(found("status", "a", "b"))] == ["a", "b"]


def test_a_refused_preview_is_a_document_too(monkeypatch: Patch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise EngineError("epochs: must be more than 0")

    monkeypatch.setattr(preview, "review", refused)
    done = CliRunner().invoke(cli, ["preview", "dev", "--json"])
    assert problems(json.loads(done.stdout), Review) == []


def test_a_rehearsal_on_google_is_a_document(monkeypatch: Patch) -> None:
    one = next(iter(ASSUMPTIONS.values()))
    made = GoogleReport(
        *("my-project", "us-central1-a", "debian", budget.Budget((budget.Part("VM", 0.1),))),
        run=report(),
        answers=(Answer(one, Outcome.HOLDS, "seen"),),
        began=datetime(2026, 1, 1, tzinfo=UTC),
    )
    monkeypatch.setattr(google, "rehearse", lambda *_: made)
    text = found("rehearse", "--on", "google", "--project", "my-project")
    assert problems(json.loads(text), OnGoogle) == []


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"what": "x"}, Price, "$: lacks hour"),
        ({"what": "x", "hour": None, "y": 1}, Price, "$: has y, which is not documented"),
        ({"what": "x", "hour": True}, Price, "$.hour: True is not float"),
        ([{"what": 1, "hour": 1}], list[Price], "$[0].what: 1 is not <class 'str'>"),
        ([], Price, "$: [] is not an object"),
        ({"pricesOf": "x"}, TypedDict("Price", {"pricesOf": str}), "$: pricesOf is not snake_case"),
    ],
)
def test_what_does_not_fit_is_found(value: Any, kind: Any, said: str) -> None:
    assert said in problems(value, kind)


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(PACKAGE.parent / "tools" / "json_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
