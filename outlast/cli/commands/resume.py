"""`outlast resume`."""

from typing import TYPE_CHECKING

import click

from outlast.cli.terminal import say

if TYPE_CHECKING:
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
def resume(experiment: str, step: str | None) -> None:
    """Reopen a run that failed or was stopped, or continue it with changes, at the next pulumi up.

    You may first change the machine, correct the code, and change arguments that the trainer lists
    as mutable: the run keeps its name (outlast:run) and resumes from its last checkpoint.

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
