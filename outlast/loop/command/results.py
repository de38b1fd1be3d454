"""A command's result: the files in RESULT_DIR, or else those that it left elsewhere."""

import filecmp
import itertools
import os
import shutil
from pathlib import Path

from outlast.loop.command.folder import is_plain
from outlast.loop.command.listing import Listing
from outlast.loop.command.work import Produced

TAKEN_NAMES = ("RESULT.json", "MANIFEST.json")


def tidy_result(folder: Path, *, without: Path | None = None) -> list[str]:
    """Make ``folder`` plain: links become copies of their targets, names that no object can have
    are changed, and everything else that is not a file or a folder is removed. Links to the run's
    data (``without``) and to folders around the link itself are left out. Returns sentences for the
    user."""
    said = _follow_folders(folder, without)
    for path in sorted(folder.rglob("*"), key=os.fsencode, reverse=True):
        if path.is_symlink():
            target = path.resolve()
            path.unlink()
            if not target.is_file():
                said.append(f"{_shown(path.name)}: a link to nothing, left out of the result")
                continue
            shutil.copyfile(target, path)
        elif not path.is_file() and not path.is_dir():
            path.unlink()
            continue
        name = path.name
        if name in TAKEN_NAMES and path.parent == folder:
            name = f"command-{name}"
            said.append(f"{path.name}: the name is reserved in a result; kept as {name}")
        elif not is_plain(name):
            name = plain_name(name)
            said.append(f"{_shown(path.name)}: no object can have this name, kept as {name}")
        if name != path.name:
            path.rename(_free(path.with_name(name)))
    return said[::-1]


def _follow_folders(folder: Path, without: Path | None) -> list[str]:
    """Replace links to folders by copies; return sentences about those that are left out."""
    said = []
    for path in sorted(folder.rglob("*"), key=os.fsencode):
        if not path.is_symlink() or not path.is_dir():
            continue
        target = path.resolve()
        path.unlink()
        if without is not None and target.is_relative_to(without.resolve()):
            said.append(f"{_shown(path.name)}: a link to the run's data, left out of the result")
        elif path.resolve().is_relative_to(target):
            said.append(
                f"{_shown(path.name)}: a link to a folder around it, left out of the result"
            )
        else:
            _copy_folder(target, path, (target,))
    return said


def _copy_folder(source: Path, target: Path, above: tuple[Path, ...]) -> None:
    """Copy all files of ``source``, also those behind links, except links back to one of the
    folders ``above``."""
    target.mkdir()
    for entry in sorted(source.iterdir(), key=lambda entry: os.fsencode(entry.name)):
        if entry.is_dir():
            place = entry.resolve()
            if place not in above:
                _copy_folder(place, target / entry.name, (*above, place))
        elif entry.is_file():
            shutil.copyfile(entry, target / entry.name)


def plain_name(name: str) -> str:
    """The name with ``%XX`` for each character that an object's name cannot have."""
    found = []
    for letter in name:
        whole = letter != "%" and is_plain(letter)
        found.append(letter if whole else "".join(f"%{byte:02X}" for byte in os.fsencode(letter)))
    return "".join(found)[:200]


def add_checkpoint(result: Path, checkpoint: Path, listing: Listing, *, move: bool) -> None:
    """Add the checkpoint's files to the result below ``checkpoint/``."""
    for name in listing.files:
        target = result / "checkpoint" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            shutil.move(checkpoint / name, target)
        else:
            shutil.copy2(checkpoint / name, target)


def add_work(result: Path, work: Path, produced: Produced, *, move: bool) -> None:
    """Add the files of the working folder under their own paths, or below ``work/`` if another file
    has the path."""
    for name in produced.files:
        target = result / name
        if not (work / name).is_file():
            continue  # another program's file, deleted meanwhile
        if target.is_file() and filecmp.cmp(work / name, target, shallow=False):
            continue
        target = _untaken(result, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            shutil.move(work / name, target)
        else:
            shutil.copy2(work / name, target)


def _untaken(result: Path, name: str) -> Path:
    """A path for a file of this name: not taken, and not below another file."""
    tops = itertools.chain(["", "work"], (f"work-{number}" for number in itertools.count(2)))
    for top in tops:
        target = result / top / name
        above = (folder for folder in target.parents if folder.is_relative_to(result))
        if not os.path.lexists(target) and not any(folder.is_file() for folder in above):
            return target
    raise AssertionError("the names never end")


def _free(path: Path) -> Path:
    """The path, or a free one beside it."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _shown(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")
