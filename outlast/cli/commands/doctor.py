"""`outlast doctor`."""

import sys

import click

from outlast.cli.commands.output import json_option, say_json
from outlast.cli.documents.upkeep import Diagnosis


@click.command()
@click.argument("stack", required=False, default="")
@click.option("--project", default="", metavar="ID", help="Without STACK: the Google project.")
@click.option("--zone", default="", help="Without STACK: the zone of the VMs.")
@json_option(Diagnosis, help="Print it as JSON, for an issue report.")
def doctor(stack: str, project: str, zone: str, as_json: bool) -> None:
    """Say what would keep an up from working, and what to do about it.

    It checks who you are, which APIs are enabled, your permissions, organization policies, quotas,
    the bucket, the image, and whether the zone has the machine and its GPU. Without STACK it checks
    for a stack with the default settings, in the project that the stacks here, the environment or
    gcloud name. Nothing is created. The JSON has no token, key or secret. Exit code 3: an up would
    not work.

    \b
    outlast doctor
    outlast doctor dev --json
    """
    from outlast.cli.doctor import examine
    from outlast.cli.doctor.show import show_diagnosis

    if stack and (project or zone):
        raise click.UsageError(
            "--project and --zone: leave them out beside STACK, whose settings name both."
        )
    found = examine.examine(stack, project=project, zone=zone)
    if as_json:
        say_json(found.as_json())
    else:
        show_diagnosis(found)
    sys.exit(found.exit_code)
