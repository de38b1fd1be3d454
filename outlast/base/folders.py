"""Finds Outlast's own files and the user's project."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The package `outlast`, in a checkout or an installed wheel, with `components`, `policy`,
`requirements`, `startup` and `trainers`, which are links in a checkout.
"""
PROJECT_FILE = "Pulumi.yaml"

DATA = (
    *("cli/hosts/run_program.py", "cli/hosts/step_aside.sh", "cli/hosts/pulumi-language-python"),
    *("cli/template/Pulumi.yaml", "cli/template/train/mine.py", "components/PulumiPlugin.yaml"),
    *("cli/report/templates/page.html", "costs/prices.yaml"),
    *("localcloud/scenarios/storm.yaml", "localcloud/vm/shims/halt"),
    *("localcloud/vm/shims/driver/nvidia-smi", "policy/rules.py", "requirements/pip-*.whl"),
    *("requirements/pip.txt", "requirements/runtime.in", "requirements/vm.txt", "startup/boot.sh"),
)
"""Of each kind of file that no import finds, one that a whole installation has; a pattern."""


def missing_data() -> str:
    """A sentence about a file that this installation lacks, such as of a wheel that was built
    without its data; empty if it is whole."""
    for name in DATA:
        if not any(PACKAGE.glob(name)):
            return (
                f"{PACKAGE / name}: is missing, and Outlast does not work without it; install it"
                " again: pip install --force-reinstall outlast"
            )
    return ""


def project() -> Path:
    """The folder of the Pulumi project: the working folder or the nearest folder above it with a
    Pulumi.yaml, otherwise this package's checkout. Raises FileNotFoundError with a sentence if
    there is neither.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, PACKAGE.parent):
        if (folder / PROJECT_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"{here}: neither this folder nor one above it has a {PROJECT_FILE}; go to your project,"
        " or create one with outlast init"
    )
