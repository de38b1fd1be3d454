"""`outlast resume`."""

from typing import TYPE_CHECKING

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents import changes
from outlast.cli.terminal import say

if TYPE_CHECKING:
    from outlast.cli.resume import Resumed
    from outlast.cli.rewind import Rewound


def _checked_step(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    from outlast.cli import rewind

    try:
        if text is not None:
            rewind.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@click.command()
@click.argument("experiment")
@click.option(
    "--from",
    "step",
    metavar="[PART:]STEP",
    callback=_checked_step,
    help="Set the run back to the checkpoint of this step (outlast checkpoints lists them).",
)
@json_option(changes.Resumed)
def resume(experiment: str, step: str | None, as_json: bool) -> None:
    """Reopen a run that failed or was stopped, or continue it with changes, at the next pulumi up.

    You may first change the machine, correct the code, and change arguments that the trainer lists
    as mutable: the run keeps its name (outlast:run) and resumes from its last checkpoint.

    With --from, EXPERIMENT may also be the folder or gs:// path of a run without a stack.

    \b
    outlast resume first && outlast up first
    outlast resume first --from 4000
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
        if as_json:
            say_json(_document(experiment, None, back))
            return
        _say_set_back(experiment, back)
        say(f"{experiment}: its own command resumes from step {step}")
        return
    with reading(experiment):
        deployed = stack.find(experiment)
        back = None if step is None else rewind.plan(deployed.store(), deployed.layout, step)
        done = resuming.resume(deployed)
        if back is not None:
            back.write()
    if as_json:
        say_json(_document(experiment, done, back))
        return
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


def _document(experiment: str, done: "Resumed | None", back: "Rewound | None") -> changes.Resumed:
    head = back.head if back is not None else done.head if done is not None else None
    return {
        "experiment": experiment,
        "resume": done.resume if done else None,
        "step": head.step if head else 0,
        "dropped": back.dropped if back else 0,
        "keeps_name": done.renamed if done else False,
        "changed": [str(change) for change in done.changed] if done else [],
    }


def _say_set_back(experiment: str, back: "Rewound") -> None:
    from outlast.base import numbers
    from outlast.cli import rewind

    newer = numbers.count(back.dropped, "newer checkpoint")
    to = rewind.said(back.head.chain[-1])
    say(f"{experiment}: set back to step {to}; {newer} given up")
