"""`outlast sweep`: many trials of one experiment."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.commands.fetch import into_folder
from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import Fetched
from outlast.cli.documents.sweeps import Asked, Leaderboard, SweepOutcome, SweepPreview, TrialLine
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.sweep.bring_up import Prepared

HELP = {"help_option_names": ["-h", "--help"]}
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    help="How many stacks to work on at the same time; default: one for each core.",
)


@click.group(context_settings=HELP)
def sweep() -> None:
    """Try many values of an experiment's parameters, each as a trial with its own run.

    A YAML file describes a sweep: base (a stack), parameters (lists or ranges), search (grid,
    random or ask), trials, parallel, budget, metric, goal and stopping; see docs/sweeps.md.

    \b
    outlast sweep preview lr.yaml
    outlast sweep up lr.yaml
    outlast sweep leaderboard lr
    """


def asked_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """FILE, or the short form of a grid."""
    options = (
        click.argument("file", required=False),
        click.option(
            "--grid",
            multiple=True,
            metavar="NAME=VALUE,…",
            help="Instead of FILE: a parameter and its values; repeatable.",
        ),
        click.option("--base", metavar="STACK", help="With --grid: the stack that trials vary."),
        click.option("--name", help="With --grid: the sweep's name; default: that of the stack."),
        click.option("--metric", help="With --grid: what the leaderboard compares."),
        click.option(
            "--goal", type=click.Choice(["max", "min"]), help="With --metric: which is better."
        ),
        click.option("--parallel", type=int, help="With --grid: open trials at the same time."),
    )
    for option in reversed(options):  # the last one applied is the first in the help
        command = option(command)
    return command


def _asked(file: str | None, grid: tuple[str, ...], **named: Any) -> "Prepared":
    """What FILE or the short form asks for. Raises UsageError."""
    from outlast.cli.sweep import bring_up, finding
    from outlast.cli.sweep import file as files

    given = {key: value for key, value in named.items() if value is not None}
    if file and (grid or given):
        other = "--grid" if grid else f"--{next(iter(given))}"
        raise click.UsageError(f"{other} beside FILE {file}: give one of them.")
    if file:
        return finding.prepared(file)
    base = given.pop("base", None)
    if not grid or not base:
        raise click.UsageError("give a sweep FILE, or --grid NAME=VALUE,VALUE and --base STACK.")
    return bring_up.prepare(files.short(grid, base, **given), "--grid")


@sweep.command(context_settings=HELP)
@asked_options
@json_option(SweepPreview)
def preview(as_json: bool, **asked: Any) -> None:
    """Show the trials of a sweep, and what they cost, before any money is spent.

    Nothing is created. It reads, as far as it may, which trials have already ended and the
    project's quotas.

    \b
    outlast sweep preview lr.yaml
    outlast sweep preview --grid learning-rate=0.1,0.01 --base dev
    """
    from outlast.cli.sweep import finding, plan, tables

    prepared = _asked(**asked)
    state, why = finding.state_if_known(prepared)
    wanted, _ = prepared.with_asked(state)
    found = plan.preview(prepared.sweep, wanted, state, prepared.any_settings, why)
    if as_json:
        say_json(found.as_json())
    else:
        tables.show_preview(found)


@sweep.command(context_settings=HELP)
@asked_options
@jobs_option
@click.option("--wait", is_flag=True, help="Stay, and start the waiting trials as others end.")
@json_option(SweepOutcome)
def up(jobs: int | None, wait: bool, as_json: bool, **asked: Any) -> None:
    """Start the trials of a sweep that are missing.

    A trial that is up, or has ended, is left alone, so the same command continues after Ctrl-C, a
    crash or a closed laptop. A trial starts if fewer than `parallel` others are open and its worst
    case fits the rest of the budget; otherwise it waits for the next up. Exit code 1: a trial could
    not be started, or another process works on the sweep; 130 after Ctrl-C.

    \b
    outlast sweep up lr.yaml
    outlast sweep up --grid learning-rate=0.1,0.01 --base dev --metric test_accuracy --goal max
    """
    from outlast.cli.polling import Pauses
    from outlast.cli.sweep import bring_up, finding, tables
    from outlast.cli.sweep.stacks import EngineStacks

    prepared = _asked(**asked)
    name = prepared.sweep.name
    work = bring_up.BringUp(
        prepared,
        finding.objects_of(prepared),
        EngineStacks(name),
        jobs=jobs or bring_up.jobs_by_default(),
    )
    try:
        outcome = work.run(pauses=Pauses() if wait else None)
    except KeyboardInterrupt:
        say(f"outlast: the same command continues sweep {name}", err=True)
        raise
    if as_json:
        say_json({"sweep": name, **outcome.as_json()})
    else:
        tables.show_outcome(outcome, name)
    sys.exit(1 if outcome.failed else 0)


@sweep.command(context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@json_option(TrialLine, form=Form.LIST)
def status(where: str, as_json: bool) -> None:
    """Show how the trials stand, from the bucket; it works after a destroy too.

    waiting: the next up starts it. starting: its group has no VM yet. The other states are those of
    outlast status, and outlast status TRIAL shows more.

    \b
    outlast sweep status lr
    """
    from outlast.cli.sweep import finding, leaderboard, tables

    objects = finding.found(where)
    state = finding.state_of(objects)
    if as_json:
        lines = leaderboard.of(objects, state, without_values=True).lines
        say_json([line.as_json() for line in lines])
    else:
        tables.show_status(state)


@sweep.command("leaderboard", context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@click.option("--metric", help="Compare by this metric instead of the sweep's; with --goal.")
@click.option("--goal", type=click.Choice(["max", "min"]), help="Instead of the sweep's goal.")
@click.option("--step", type=click.IntRange(0), help="Compare at this step.")
@click.option("--every", is_flag=True, help="Also show trials of earlier code and parameters.")
@json_option(Leaderboard)
def show_leaderboard(
    where: str, metric: str | None, goal: str | None, step: int | None, every: bool, as_json: bool
) -> None:
    """Compare the trials at equal steps, the best first; it works after a destroy too.

    The step is the largest one that all compared trials have reached. Trials that were pruned,
    stopped or failed are shown with their last value and are not compared. Trials that differ in
    their seed only are also shown together, with mean and standard deviation. Exit code 1: a trial
    could not be read; the rest is printed.

    \b
    outlast sweep leaderboard lr
    outlast sweep leaderboard lr --json | jq -r .best
    """
    from outlast.cli.errors import reading
    from outlast.cli.show.console import show_unread
    from outlast.cli.sweep import finding, leaderboard, tables

    objects = finding.found(where)
    state = finding.state_of(objects)
    with reading(f"sweep {objects.name}"):
        found = leaderboard.of(
            objects, state, metric=metric or "", goal=goal or "", at=step, every=every
        )
    if as_json:
        say_json(found.as_json())
    else:
        tables.show_leaderboard(found)
    show_unread(found.unread)
    sys.exit(1 if found.unread else 0)


@sweep.command(context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@click.option("--best", is_flag=True, help="Only the result of the best trial.")
@into_folder
@json_option(Fetched, form=Form.LIST)
def fetch(where: str, best: bool, into: Path, as_json: bool) -> None:
    """Fetch the results of the trials that are done into results/TRIAL/RUN.

    Exit code 1: a trial could not be read or fetched.

    \b
    outlast sweep fetch lr --best
    """
    from outlast.base.exits import State
    from outlast.cli import fetch as fetching
    from outlast.cli.errors import OperateError, reading
    from outlast.cli.show.console import show_unread
    from outlast.cli.sweep import finding, leaderboard, states

    objects = finding.found(where)
    state = finding.state_of(objects)
    runs = [one.record.run for one in state.current if one.state == State.DONE]
    unread = [f"trial {one.record.run}: {one.why}" for one in state.current if one.why]
    if best:
        with reading(f"sweep {objects.name}"):
            board = leaderboard.of(objects, state)
        if board.unread:
            raise OperateError(
                f"sweep {objects.name}: the best trial is not known: {'; '.join(board.unread)}"
            )
        first = board.best
        if first is None:
            raise OperateError(f"sweep {objects.name}: no trial has a value of its metric yet.")
        runs = [first.trial.record.run]
    if not runs:
        raise OperateError(
            "; ".join([f"sweep {objects.name}: no trial is known to be done", *unread])
            if unread
            else f"sweep {objects.name}: no trial is done yet."
        )
    found = []
    for run in runs:
        one = fetching.fetch(states.place_of(objects, run), into)
        found.append(one.as_json())
        if not as_json:
            say(str(one.path))
    if as_json:
        say_json(found)
    show_unread(unread)
    sys.exit(1 if unread else 0)


@sweep.command(context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@jobs_option
@json_option(SweepOutcome)
def destroy(where: str, jobs: int | None, as_json: bool) -> None:
    """Destroy everything that the sweep has declared, and remove its stacks.

    The bucket stays, with all runs: leaderboard, status and fetch work as before, and the next up
    continues trials that have not ended. Exit code 1: something could not be destroyed.

    \b
    outlast sweep destroy lr
    """
    from outlast.cli.sweep import bring_up, finding, tables
    from outlast.cli.sweep.stacks import EngineStacks

    objects = finding.found(where)
    outcome = bring_up.destroy(
        objects,
        EngineStacks(objects.name),
        jobs=jobs or bring_up.jobs_by_default(),
    )
    if as_json:
        say_json({"sweep": objects.name, **outcome.as_json()})
    else:
        tables.show_outcome(outcome, objects.name)
    sys.exit(1 if outcome.failed else 0)


@sweep.command(context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@click.option("--params", required=True, metavar="JSON", help="The trial's parameters.")
@json_option(Asked)
def ask(where: str, params: str, as_json: bool) -> None:
    """Add a trial with parameters that another optimiser has chosen, and print its id.

    The next outlast sweep up starts it. The same parameters are the same trial.

    \b
    outlast sweep ask lr.yaml --params '{"learning-rate": 0.02}'
    """
    from outlast.cli.errors import UsageError
    from outlast.cli.sweep import asking, finding

    try:
        parameters = json.loads(params)
    except ValueError as error:
        raise UsageError(f"--params {params[:80]}: is not JSON ({error}).") from None
    prepared = finding.prepared(where)
    asked = asking.ask(prepared, finding.objects_of(prepared), parameters)
    if as_json:
        say_json(asked.as_json(), line=True)
    else:
        say(asked.run)


@sweep.command(context_settings=HELP)
@click.argument("where", metavar="FILE|NAME")
@click.argument("trials", nargs=-1, metavar="[ID]...")
@click.option("--wait", is_flag=True, help="Wait until the trials have ended.")
@json_option(TrialLine, form=Form.LIST)
def tell(where: str, trials: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Print the results of trials, by default of all: state and last value.

    --json prints the best value too. ID is what ask and status print.

    \b
    outlast sweep tell lr 1698ebe3ab --wait --json
    """
    from outlast.cli.polling import Pauses
    from outlast.cli.sweep import asking, finding

    lines = asking.tell(finding.found(where), trials, pauses=Pauses() if wait else None)
    if as_json:
        say_json([line.as_json() for line in lines])
        return
    for line in lines:
        value = "no value" if line.value is None else f"{line.value:.6g} at step {line.step}"
        say(f"{line.trial.record.run}: {line.trial.state}, {value}")
