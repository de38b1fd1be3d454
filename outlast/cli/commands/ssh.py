"""`outlast ssh`."""

import click

from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.argument("command", nargs=-1, metavar="[-- COMMAND]...")
def ssh(experiment: str, command: tuple[str, ...]) -> None:
    """Open a shell on the VM that works on an experiment now, or run a command there.

    On Google: gcloud compute ssh through Identity-Aware Proxy, which outlast:ssh iap allows. On the
    local cloud: a shell with the VM's environment, in its root folder. The exit code is that of the
    shell or command.

    \b
    outlast ssh first
    outlast ssh first -- nvidia-smi
    """
    from outlast.cli import ssh as sessions
    from outlast.cli import stack

    found = sessions.session(experiment, stack.find(experiment).group, command)
    if found.note:
        say(f"warning: {found.note}", err=True)
    say(f"{experiment}: VM {found.vm}", err=True)
    sessions.become(found)
