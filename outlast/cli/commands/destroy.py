"""`outlast destroy`."""

import click

from outlast.cli.commands.recover import recovered
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option("--yes", "-y", is_flag=True, hidden=True, expose_value=False)
def destroy(experiment: str) -> None:
    """Run pulumi destroy without its questions, after recovering from an interrupted update.

    The bucket is kept, with everything that the run has committed: the next up resumes it.
    """
    from outlast.cli import up as stack_up

    recovered(experiment)
    left = stack_up.destroy(experiment)
    if left:
        say(f"{experiment}: {left}")
