"""`outlast fetch`."""

from pathlib import Path

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import Fetched
from outlast.cli.terminal import say

into_folder = click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="The folder for all results.",
)


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT...")
@into_folder
@click.option("--best", is_flag=True, help="The best checkpoint so far, instead of the result.")
@click.option("--part", metavar="NAME", help="Only this part of a run with parts.")
@click.option("--curves", is_flag=True, help="Also draw training_curves.png.")
@click.option(
    "--notebook", is_flag=True, help="Also write curves.ipynb, and rows.jsonl, which it draws."
)
@click.option("--tensorboard", is_flag=True, help="Also write a folder for TensorBoard.")
@json_option(Fetched, form=Form.SEVERAL, help="Print paths and files as JSON.")
def fetch(
    experiments: tuple[str, ...],
    into: Path,
    best: bool,
    part: str | None,
    curves: bool,
    notebook: bool,
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Fetch results into results/EXPERIMENT/RUN, and print these folders.

    Every file is verified before it gets its name. An interrupted fetch continues when it is called
    again; a file with other bytes is never replaced. EXPERIMENT may also be a run's folder or gs://
    path. Exit code 1: the result is missing, or cannot be read or written.

    --curves, --notebook and --tensorboard write what the run logged, each step once, even while the
    run is still training. --curves needs matplotlib: pip install 'outlast[curves]'.

    \b
    outlast wait first && outlast fetch first
    outlast fetch first --best
    outlast fetch first --curves --tensorboard && tensorboard --logdir results/first
    """
    from outlast.cli import fetch as fetching
    from outlast.cli import runs
    from outlast.cli.exports.extras import Extra

    wanted = {Extra.CURVES: curves, Extra.NOTEBOOK: notebook, Extra.TENSORBOARD: tensorboard}
    extras = [extra for extra, is_wanted in wanted.items() if is_wanted]

    found = []
    for experiment in experiments:
        place = runs.find(experiment)
        one = fetching.fetch(place, into, part=part, best=best, extras=extras)
        found.append(one.as_json())
        if one.without:
            say(f"outlast: {one.without}", err=True)
        if not as_json:
            say(str(one.path))
    if as_json:
        say_json(found[0] if len(experiments) == 1 else found)
