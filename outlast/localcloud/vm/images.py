"""Images: copies of a VM's disk from which other VMs' disks start.

The folder of an image has the disk's files under `disk`, and `image.json`. On Compute Engine the
root of every VM is `/`; here each VM has a different one. So the files that contain the root of the
baked VM (interpreters of scripts, settings of a virtual environment, links) are listed when the
image is created, and get the root of the VM that boots from it."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

DISK, RECORD = "disk", "image.json"
# Folders that are in memory on a real VM, or recreated at each boot.
NOT_ON_DISK = {"dev", "proc", "run", "tmp"}
LONGEST_TEXT = 1 << 20


def is_baked(folder: Path) -> bool:
    """Whether the folder is an image from `bake`."""
    return (folder / RECORD).exists()


def bake(root: Path, folder: Path) -> None:
    """Creates in `folder` an image of a disk, completely or not at all. Raises OSError."""
    draft = folder.with_name(f".{folder.name}.new")
    for old in (draft, folder):
        shutil.rmtree(old, ignore_errors=True)
    (draft / DISK).mkdir(parents=True)
    _copy(root, draft / DISK, NOT_ON_DISK)
    record = {"root": str(root), "names_root": sorted(_naming(draft / DISK, str(root)))}
    (draft / RECORD).write_text(json.dumps(record))
    draft.rename(folder)


def unpack(folder: Path, root: Path) -> None:
    """Copies the image to a disk; `root` may exist. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    _copy(folder / DISK, root, set())
    record = json.loads((folder / RECORD).read_bytes())
    old, new = record["root"], str(root)
    top = os.path.realpath(root)
    for name in record["names_root"]:
        path = root / name
        # The folder may come from another person: the names in its record must be on the new disk.
        parent = os.path.realpath(path.parent)
        if not f"{parent}/".startswith(f"{top}/") or path.name in ("", ".."):
            raise OSError(f"{folder / RECORD}: {name!r} does not lie on the image's disk")
        if path.is_symlink():
            target = os.readlink(path).replace(old, new, 1)
            path.unlink()
            path.symlink_to(target)
        else:
            # Written in place, so that it keeps its mode.
            path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))


def _copy(source: Path, target: Path, without: set[str]) -> None:
    """Copies a folder's content with modes, times and links; shares blocks if possible. Raises
    OSError."""
    entries = [str(entry) for entry in source.iterdir() if entry.name not in without]
    if not entries:
        return
    command = ["cp", "--archive", "--reflink=auto", "--", *entries, str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())


def _naming(disk: Path, root: str) -> Iterator[str]:
    """Yields the text files and links on a disk that contain its VM's root."""
    for folder, folders, files in os.walk(disk):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink():
                names = os.readlink(path).startswith(root)
            else:
                found = path.lstat()
                names = (
                    stat.S_ISREG(found.st_mode)
                    and found.st_size <= LONGEST_TEXT
                    and root.encode() in (content := path.read_bytes())
                    and b"\0" not in content
                )
            if names:
                yield str(path.relative_to(disk))
