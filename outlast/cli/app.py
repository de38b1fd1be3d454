"""The command `outlast`: parses, calls, draws. What it does lives in the modules beside it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from outlast.base import exits
from outlast.base.console import write_line
from outlast.base.folders import PACKAGE
from outlast.base.log import log_to
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.cloud import LocalCloud
    from outlast.cli.rehearsal.report import Report
    from outlast.cli.rewind import Rewound


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _show_version(context) if asked else None,
    help="Show the version and the commit.",
)
def cli() -> None:
    """Training on preemptible Compute Engine VMs, so that preemption does not matter."""


def _show_version(context: click.Context) -> None:
    from outlast.cli import version

    say(f"outlast {version.text()}")
    context.exit()


@cli.command()
@click.option("--scenario", metavar="NAME|FILE", help="What happens to it; default storm.")
@click.option("--list", "lists", is_flag=True, help="List the named scenarios.")
@click.option("--stack", metavar="NAME", help="Rehearse your own stack, Pulumi.NAME.yaml.")
@click.option(
    "--data",
    metavar="gs://BUCKET/PATH=FOLDER",
    multiple=True,
    help="Files that the local bucket has before; repeatable.",
)
@click.option("--limit-rows", type=click.IntRange(min=64), help="Train on the first rows only.")
@click.option("--epochs", type=click.IntRange(min=1), help="Train for fewer epochs.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def rehearse(
    scenario: str | None,
    lists: bool,
    stack: str | None,
    data: tuple[str, ...],
    limit_rows: int | None,
    epochs: int | None,
    as_json: bool,
) -> None:
    """Run the stack on this machine, in a scenario, and check the guarantees.

    Without a scenario, the run is preempted once and killed twice. docs/scenarios.md has the
    scenarios, and how to write one.

    \b
    Exit codes
      0   every guarantee was seen held
      1   a guarantee is broken
      2   none is broken, and nothing put some of them to the test
    """
    from outlast.cli.rehearsal import rehearse as rehearsal
    from outlast.cli.rehearsal import scenario as scenarios
    from outlast.cli.rehearsal.guarantees import Verdict
    from outlast.cli.render import Screen, show_report, show_scenarios

    if lists or scenario == "list":
        listed = scenarios.listed()
        if as_json:
            say(json.dumps(dict(listed), indent=2))
        else:
            show_scenarios(listed)
        return
    with Screen(quiet=as_json) as screen:
        report: Report = rehearsal.rehearse(
            watcher=screen,
            name=scenario,
            stack=stack,
            data=data,
            limit_rows=limit_rows,
            args={} if epochs is None else {"epochs": epochs},
        )
    if as_json:
        say(json.dumps(report.as_json(), indent=2))
    else:
        show_report(report)
    if report.count(Verdict.BROKEN):
        sys.exit(1)
    sys.exit(exits.DONE if report.held else 2)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("."))
def init(folder: Path) -> None:
    """Write a new project: a program of ten lines, a trainer, a stack to rehearse.

    FOLDER is made if it does not exist; the default is this folder.
    """
    from outlast.cli import init as projects

    for name in projects.write(folder):
        say(str(folder / name))
    where = "" if folder == Path(".") else f"cd {folder} && "
    say(f"next: {where}outlast rehearse")


class _Verbatim(click.Command):
    """A command that parses its own words, ``--`` among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = list(args)
        return []


@cli.command(cls=_Verbatim)
def train(words: list[str]) -> None:
    """Run any training command so that it can be killed: outlast train -- python train.py"""
    _become("-P", "-m", "outlast.loop.command", *words)


@cli.command(cls=_Verbatim)
def mark(words: list[str]) -> None:
    """Inside of outlast train: say that the checkpoint is complete."""
    _become("-I", "-S", str(PACKAGE / "loop" / "command" / "mark.py"), "mark", *words)


def _become(*words: str) -> NoReturn:
    """Run a program of the trainer's side in place of this one, by Python with these words. Ctrl-C
    waits until that program is ready for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, *words])


@cli.command()
@click.argument("experiment")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(experiment: str, as_json: bool) -> None:
    """Show a run's state, attempts and reasons, as the bucket has them.

    EXPERIMENT may also be a run's folder or gs:// path.
    """
    from outlast.cli import runs
    from outlast.cli import status as states
    from outlast.cli.render import show_status

    found = states.read(runs.find(experiment))
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        show_status(found)


@cli.command()
@click.argument("experiment")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def costs(experiment: str, as_json: bool) -> None:
    """Count what a run has cost so far: every VM's hours, at list prices.

    EXPERIMENT may also be a run's gs:// path, of a stack that is long gone.
    """
    from outlast.cli import costs as counting
    from outlast.cli import runs
    from outlast.cli.render import show_costs

    found = counting.count(runs.find(experiment))
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        show_costs(found)


@cli.command()
@click.argument("experiment")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def checkpoints(experiment: str, as_json: bool) -> None:
    """List a run's checkpoints, and how another run begins with one.

    EXPERIMENT may also be a run's folder or gs:// path. The name under a checkpoint is what
    outlast:init takes, and init of outlast.train.
    """
    from outlast.cli.runs import OpenedRun, find

    found = [dict(row) for row in OpenedRun(find(experiment)).checkpoints()]
    if as_json:
        say(json.dumps(found, indent=2))
        return
    for row in found:
        tags = f"  {row['tags']}" if row["tags"] else ""
        part = f"{row['part']}  " if "part" in row else ""
        say(f"{part}step {row['step']}  term {row['term']}{tags}\n  {row['init']}")
    if not found:
        say(f"{experiment}: no checkpoint is committed yet")


@cli.command()
@click.argument("experiment", required=False)
@click.option("--latest", is_flag=True, help="First take the newest commit of outlast:gitRef.")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)  # pulumi's own habit
def up(experiment: str | None, latest: bool) -> None:
    """Run pulumi up without its questions, after recovering from an interrupted update.

    EXPERIMENT is a stack; default the selected one. With --latest the commit that the branch is at
    is written into the stack's configuration, outlast:gitCommit, before.
    """
    from outlast.cli import up as stack_up

    _recovered(experiment)
    if latest:
        found = stack_up.latest(experiment)
        same = " as before" if found.commit == found.before else ""
        say(f"outlast:gitCommit: {found.ref} is at {found.commit}{same}")
    stack_up.up(experiment)


@cli.command()
@click.argument("experiment")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)
def destroy(experiment: str) -> None:
    """Run pulumi destroy without its questions, after recovering from an interrupted update.

    The bucket stays, and in it all that the run has committed: the next up resumes it.
    """
    from outlast.cli import up as stack_up

    _recovered(experiment)
    left = stack_up.destroy(experiment)
    if left:
        say(f"{experiment}: {left}")


def _checked_step(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    from outlast.cli import rewind

    try:
        if text is not None:
            rewind.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@cli.command()
@click.argument("experiment")
@click.option(
    "--from",
    "step",
    metavar="[PART:]STEP",
    callback=_checked_step,
    help="Set the run back to the checkpoint of this step, as outlast checkpoints lists them.",
)
def resume(experiment: str, step: str | None) -> None:
    """Reopen a run that failed or was stopped, or go on with changes; `pulumi up` then does it.

    Before, the machine may be changed, the code corrected, and arguments that the trainer lists as
    mutable: the run keeps its name (outlast:run) and resumes from its last checkpoint.

    With --from, EXPERIMENT may also be the folder or gs:// path of a run without a stack.
    """
    from outlast.bucket.layout import is_run_path
    from outlast.cli import resume as resuming
    from outlast.cli import rewind, runs, stack
    from outlast.cli.errors import reading

    if step is not None and is_run_path(experiment):
        with reading(experiment):
            place = runs.find(experiment)
            back = rewind.plan(place.store, place.layout, step)
            back.write()
        _say_set_back(experiment, back)
        say(f"{experiment}: its own command resumes from step {step}")
        return
    with reading(experiment):
        deployed = stack.find(experiment)
        back = None if step is None else rewind.plan(deployed.store(), deployed.layout, step)
        done = resuming.resume(deployed)
        if back is not None:
            back.write()
    if back is not None:
        _say_set_back(experiment, back)
    if done.renamed:
        from outlast.spec import changes

        what = changes.said(done.changed) or "code or args"
        say(f"{experiment}: outlast:run keeps the run's name; changed: {what}")
    say(
        f"{experiment}: outlast:resume is now {done.resume}; pulumi up resumes from step "
        f"{done.head.step if step is None else step}"
    )


def _say_set_back(experiment: str, back: "Rewound") -> None:
    from outlast.cli import rewind

    newer = "1 newer checkpoint" if back.dropped == 1 else f"{back.dropped} newer checkpoints"
    to = rewind.said(back.head.chain[-1])
    say(f"{experiment}: set back to step {to}; {newer} given up")


@cli.command(name="stop")
@click.argument("experiment")
def stop_run(experiment: str) -> None:
    """End a run as stopped. What it committed is kept; outlast resume continues it."""
    from outlast.cli import resume as resuming
    from outlast.cli import stack
    from outlast.cli.errors import reading

    with reading(experiment):
        head = resuming.stop(stack.find(experiment))
    say(
        f"{experiment}: stopped at step {head.step}; its VM leaves with its next heartbeat, go on"
        f" with: outlast resume {experiment}"
    )


@cli.command()
@click.argument("experiment")
def recover(experiment: str) -> None:
    """Recover a stack whose pulumi up was killed: its lock, and what was being made."""
    if _recovered(experiment):
        say(f"{experiment}: recovered; continue with pulumi up")
    else:
        say(f"{experiment}: nothing to recover")


def _recovered(experiment: str | None) -> bool:
    """Whether there was something to recover; says what."""
    from outlast.cli import recover as recovery

    done = recovery.recover(experiment)
    for name in done.taken_up if done else ():
        say(f"{name}: was being made when pulumi was killed; taken up, if it exists")
    return done is not None


@cli.command()
@click.argument("experiment")
def repair(experiment: str) -> None:
    """Repair a HEAD that is gone, unreadable, or names no checkpoint that can be read.

    EXPERIMENT may also be the folder or gs:// path of a run without a stack.
    """
    from outlast.bucket.layout import is_run_path
    from outlast.cli import repair as repairing
    from outlast.cli import runs, stack
    from outlast.cli.errors import reading

    alone = is_run_path(experiment)
    with reading(experiment):
        if alone:
            done = repairing.repair_alone(runs.find_damaged(experiment))
        else:
            deployed = stack.find(experiment)
            done = repairing.repair(deployed.store(), deployed.layout, deployed.owner)
    if done.set_aside:
        say(f"{experiment}: {done.set_aside} newer checkpoints could not be used")
    if alone:
        then = f"at step {done.head.step}; its own command resumes from there"
    else:
        then = f"stopped at step {done.head.step}; go on with: outlast resume {experiment}"
    say(f"{experiment}: HEAD is repaired, {then}")


@cli.command()
@click.argument("experiment", required=False)
@click.option("--markdown", is_flag=True, help="Print it as a pull request's comment.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option(
    "--policy-pack-config",
    "config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Limits of the rules, as the engine takes them with --policy-pack.",
)
def preview(experiment: str | None, markdown: bool, as_json: bool, config: Path | None) -> None:
    """Say what pulumi up would do: to each run, to the bill, and against which rule.

    EXPERIMENT is a stack; default the selected one. Nothing is changed.

    \b
    Exit codes
      0   no rule is broken
      3   a rule is broken
      1   there is no preview: the program refuses the settings, or the engine failed
      64  bad usage
    """
    from outlast.cli.render import as_markdown, show_review
    from outlast.cli.review import preview as previews

    if markdown and as_json:
        raise click.UsageError("--markdown and --json: print one of them.")
    found = previews.review(experiment, config=config)
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    elif markdown:
        say(as_markdown(found))
    else:
        show_review(found)
    sys.exit(found.exit_code)


@cli.group()
def cloud() -> None:
    """A small Compute Engine on this machine, for `pulumi up` without an account."""


def _state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the local cloud; default .outlast/cloud in the project.",
    )(function)


def _state_folder(state: Path | None) -> Path:
    from outlast.cli.engine import project

    return (state or project() / ".outlast" / "cloud").absolute()


def _stack_ready(found: "LocalCloud") -> dict[str, str]:
    """Makes the checkout's stack known to the cloud's backend; the variables that lead there."""
    from outlast.cli import engine
    from outlast.cli.rehearsal import settings

    path = os.environ.get("PATH", os.defpath)
    variables = found.variables(engine.find_parts(), found.state / "pulumi", path)
    engine.ensure_stack(settings.STACK, {**engine.scrubbed(), **variables})
    return variables


def _running(state: Path | None) -> "LocalCloud":
    from outlast.cli.cloud import find
    from outlast.cli.errors import CloudError

    found = find(_state_folder(state))
    if found is None:
        raise CloudError(
            f"local cloud: none runs on {_state_folder(state)}; start one: outlast cloud start."
        )
    return found


@cloud.command()
@_state_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any free one.")
def start(state: Path | None, port: int) -> None:
    """Serve the local cloud in the background and print what to export.

    Where it runs already, only print it.

    \b
    eval "$(outlast cloud start)"
    pulumi up
    """
    import shlex

    from outlast.cli import cloud as clouds
    from outlast.cli import engine
    from outlast.cli.errors import CloudError
    from outlast.cli.rehearsal import settings

    parts = engine.find_parts()
    folder = _state_folder(state)
    found = clouds.find(folder)
    if found is not None and port not in (0, found.port):
        raise CloudError(
            f"--port {port}: the local cloud {found.pid} runs already at {found.url}; "
            "stop it first (outlast cloud stop)."
        )
    started = found is None
    if found is None:
        pace = settings.pace_of(settings.LOCAL_SETTINGS)
        found = clouds.start(folder, parts, port=port, pace=pace, dies_with_us=False)
    try:
        variables = _stack_ready(found)
    except BaseException:
        if started:
            found.stop()
        raise
    for name in sorted(engine.foreign(os.environ, variables)):
        say(f"unset {name}")
    for name, value in variables.items():
        say(f"export {name}={shlex.quote(value)}")
    say(
        f"# local cloud {found.pid} at {found.url}, state in {folder}\n"
        '# to use it in this shell: eval "$(outlast cloud start)"; to end it: outlast cloud stop',
    )


@cloud.command()
@_state_option
def stop(state: Path | None) -> None:
    """End the local cloud and every VM of it; its state stays."""
    found = _running(state)
    found.stop()
    say(f"local cloud {found.pid}: ended; its state stays in {found.state}")


@cloud.command()
@_state_option
def reset(state: Path | None) -> None:
    """End every VM and forget all that exists in the local cloud, buckets and stacks too.

    It goes on where it listens; the next `pulumi up` finds nothing.
    """
    import shutil

    found = _running(state)
    found.reset()
    # The engine's own record of what it has made there; nothing of that is left.
    shutil.rmtree(found.state / "pulumi" / "backend", ignore_errors=True)
    _stack_ready(found)
    say(f"local cloud {found.pid}: empty, at {found.url} as before")


@cloud.command(name="status")
@_state_option
def cloud_status(state: Path | None) -> None:
    """List the local cloud's VMs, groups and buckets."""
    found = _running(state)
    say(f"local cloud {found.pid} at {found.url}, state in {found.state}")
    vms = found.vms()
    for vm in vms:
        group = f"group {vm['group']}" if vm["group"] else "of no group"
        say(f"{vm['name']}  {vm['status']}  {vm['zone']}  {group}")
    if not vms:
        say("no VM")
    exists = found.audit()
    for group in exists["groups"]:
        say(f"group {group}")
    for bucket in exists["buckets"]:
        say(f"bucket {bucket['name']}: {bucket['objects']} objects")


@cloud.command()
@click.argument("vm")
@_state_option
def kill(vm: str, state: Path | None) -> None:
    """Cut a VM without a notice, as a host error does."""
    _running(state).act(vm, "kill")
    say(f"{vm}: killed")


@cloud.command()
@click.argument("vm")
@_state_option
def preempt(vm: str, state: Path | None) -> None:
    """Preempt a VM: the notice, then SIGTERM, then SIGKILL."""
    _running(state).act(vm, "preempt")
    say(f"{vm}: preempted")


def main() -> None:
    """Errors for a person are one sentence on stderr."""
    from outlast.cli.errors import OperateError

    log_to(write_line)
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        say(f"outlast: {error.format_message()}", err=True)
        sys.exit(exits.USAGE if isinstance(error, click.UsageError) else error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        say("outlast: interrupted; everything it started has ended", err=True)
        sys.exit(exits.CTRL_C)
    except OperateError as error:
        say(f"outlast: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
