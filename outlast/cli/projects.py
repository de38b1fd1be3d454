"""Which Google project a command is about, where no stack has to be named."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from outlast.cli import experiments
from outlast.cli.errors import UsageError

VARIABLES = (
    "GOOGLE_PROJECT",
    "GOOGLE_CLOUD_PROJECT",
    "GCLOUD_PROJECT",
    "CLOUDSDK_CORE_PROJECT",
)
"""In the provider's order (provider reference of hashicorp/google, read on 2026-11-30)."""
GCLOUD_SEC = 20.0


@dataclass(frozen=True)
class Chosen:
    """A project, and what named it."""

    project: str
    by: str
    stack: str = ""
    """A stack of this folder that is in the project; empty for none."""


def choose(given: str = "") -> Chosen:
    """The given project, else the one that the stacks of this folder name, else that of the
    environment, else gcloud's. Raises UsageError if there is none, or several.
    """
    named = {one.project: one.stack for one in reversed(experiments.settings()) if one.project}
    if given:
        return Chosen(given, "--project", named.get(given, ""))
    if len(named) > 1:
        raise UsageError(
            f"--project: the stacks of this folder are in {', '.join(sorted(named))}; name one of"
            " these projects."
        )
    for project, stack in named.items():
        return Chosen(project, f"gcp:project of stack {stack}", stack)
    for variable in VARIABLES:
        if project := os.environ.get(variable, ""):
            return Chosen(project, variable)
    if project := _of_gcloud():
        return Chosen(project, "gcloud config")
    raise UsageError(
        "--project: neither the settings of a stack here, nor a variable such as GOOGLE_PROJECT,"
        " nor gcloud's configuration names a project; name one."
    )


def _of_gcloud() -> str:
    """The project of gcloud's active configuration; empty without gcloud or one."""
    if shutil.which("gcloud") is None:
        return ""
    try:
        done = subprocess.run(
            ["gcloud", "config", "get-value", "project", "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GCLOUD_SEC,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = done.stdout.strip()
    return found if done.returncode == 0 and found != "(unset)" else ""
