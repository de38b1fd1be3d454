"""`outlast stop`."""

import sys

import click

from outlast.base import exits
from outlast.cli.commands.options import MINUTES_MAX, Amount
from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.changes import Stopped
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option(
    "--timeout-minutes",
    type=Amount(0, MINUTES_MAX, min_open=True),
    default=10.0,
    show_default=True,
    help="How long the VM has for the checkpoint; after that, the run is ended without one.",
)
@click.option("--now", is_flag=True, help="End the run at once, without a last checkpoint.")
@json_option(Stopped)
def stop(experiment: str, timeout_minutes: float, now: bool, as_json: bool) -> None:
    """End a run as stopped, after a last checkpoint. outlast resume continues it.

    The VM sees the request with its next heartbeat. If no VM is at work, or it is silent, the run
    is ended at once, and the steps since the newest checkpoint are lost. Ctrl-C ends only the
    waiting: the request stays, and if this VM is preempted first, the next one ends the run. Exit
    code 1: the run is not open, or cannot be read.

    \b
    outlast stop first
    outlast stop first --timeout-minutes 2 --json | jq .steps_lost
    """
    from outlast.cli import stack
    from outlast.cli import stop as stopping
    from outlast.cli.errors import reading

    with reading(experiment):
        deployed = stack.find(experiment)
        try:
            done = stopping.stop(deployed, now=now, limit_sec=60 * timeout_minutes)
        except KeyboardInterrupt:
            say(
                f"outlast: if a VM was asked, it still stops; see outlast status {experiment}",
                err=True,
            )
            sys.exit(exits.CTRL_C)
    if as_json:
        say_json(done.as_json(experiment))
        return
    step = done.head.end.step if done.head.end else done.head.step
    why = f" without a checkpoint, because {done.why}" if done.why else ""
    say(f"{experiment}: {done.head.state} at step {step}{why}; steps lost: {done.lost}")
    if done.head.state is not exits.State.DONE:
        say(f"{experiment}: continue with: outlast resume {experiment}")
