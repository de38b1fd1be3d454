"""Where Outlast's own files lie, and where the user's project does."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The package `outlast`, in a checkout or where a wheel is installed. With `components`, `policy`,
`requirements`, `startup` and `trainers`, which are links in a checkout."""
PROJECT_FILE = "Pulumi.yaml"


def project() -> Path:
    """The folder of the Pulumi project: the working folder or the nearest one above it that has a
    Pulumi.yaml, otherwise the checkout that this package lies in. Raises FileNotFoundError with a
    sentence if there is neither."""
    here = Path.cwd()
    for folder in (here, *here.parents, PACKAGE.parent):
        if (folder / PROJECT_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"{here}: neither this folder nor one above it has a {PROJECT_FILE}; go to your project,"
        " or make one with outlast init"
    )
