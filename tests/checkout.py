"""A copy of the checkout, or of one of its commits, that only the test changes."""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from outlast.base.folders import PACKAGE

ROOT = PACKAGE.parent

PARTS = ("outlast", "trainers", "components", "policy", "requirements", "startup",
         "__main__.py", "Pulumi.dev.yaml")  # fmt: skip


def copy_checkout(folder: Path, root: Path = ROOT) -> None:
    """Puts the program and all that it bundles into `folder`, run by this virtual environment."""
    ignored = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        source = root / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=ignored, symlinks=True)
        else:
            shutil.copy2(source, folder / part)
    project = yaml.safe_load((root / "Pulumi.yaml").read_text())
    project["runtime"]["options"]["virtualenv"] = str(Path(sys.prefix))
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(project))


def copy_commit(commit: str, folder: Path) -> bool:
    """Puts all files of a commit into `folder`; False if this clone does not have the commit."""
    if not _git("cat-file", "-e", f"{commit}^{{commit}}"):
        return False
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    assert _git("archive", f"--output={archive}", commit)
    shutil.unpack_archive(archive, folder, filter="fully_trusted")
    archive.unlink()
    return True


def replace_checkout(folder: Path) -> None:
    """Makes the code in `folder` the working tree's. The stack's settings stay, as do files that
    are not the project's."""
    settings = (folder / "Pulumi.dev.yaml").read_text()
    for part in PARTS:
        path = folder / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_checkout(folder)
    (folder / "Pulumi.dev.yaml").write_text(settings)


def _git(*words: str) -> bool:
    return (
        subprocess.run(["git", "-C", ROOT, *words], capture_output=True, timeout=60).returncode == 0
    )
