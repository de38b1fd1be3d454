"""A copy of the checkout that only the test changes."""

import shutil
import sys
from pathlib import Path

import yaml

from outlast.base.folders import PACKAGE

ROOT = PACKAGE.parent

PARTS = ("outlast", "trainers", "components", "requirements", "startup",
         "__main__.py", "Pulumi.dev.yaml")  # fmt: skip


def copy_checkout(folder: Path) -> None:
    """Puts the program and all that it bundles into `folder`, run by this virtual environment."""
    ignored = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=ignored, symlinks=True)
        else:
            shutil.copy2(source, folder / part)
    project = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    project["runtime"]["options"]["virtualenv"] = str(Path(sys.prefix))
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))
