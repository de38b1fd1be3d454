"""`outlast completion`."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and experiments.

    Put the line for your shell into its startup file: ~/.bashrc, ~/.zshrc (after compinit), or
    ~/.config/fish/config.fish.

    \b
    eval "$(outlast completion bash)"
    eval "$(outlast completion zsh)"
    outlast completion fish | source
    """
    from click.shell_completion import get_completion_class

    from outlast.cli.names import VARIABLE

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    click.echo(kind(root.command, {}, "outlast", VARIABLE).source())
