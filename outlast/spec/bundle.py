"""The bundle: one reproducible zip of the code that a VM runs.

It contains what a VM runs of `outlast/` (without `LEFT_OUT`), all of `outlast/trainers/`,
`requirements/vm.txt` and the wheel of pip beside it, because stock Debian has no pip. All are
stored, sorted, with fixed times and modes, so that the same sources give the same bytes in every
checkout. Besides that wheel it takes only Python sources, by name, so a key, an `.env` or a `.git`
among them never leaves the machine.

The files of a command or trainer are under `source/`, the user's requirements in
`requirements/user.txt` or, for a folder, under `package/`. In a git repository, files that git
ignores are left out; names that begin with a dot and names of keys are left out everywhere, and a
file that holds a key is refused.
"""

import fnmatch
import hashlib
import io
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.spec import keys

TRAINERS = "outlast/trainers"
PACKAGES = ("outlast", TRAINERS)
"""Packages of the bundle, each listed separately: in a checkout, the second is a link to
`trainers/`.
"""
LEFT_OUT = frozenset(
    f"outlast/{part}"
    for part in (
        *("cli", "cloud", "components", "costs", "dynamic", "localcloud", "machines"),
        *("policy", "requirements", "settings", "startup"),
    )
)
"""Folders that only the user's machine needs, apart from NEEDED."""
NEEDED = ("outlast/cloud/__init__.py", "outlast/cloud/credentials.py")
"""Files of those folders that a VM's client of the bucket needs."""
REQUIREMENTS = "requirements/vm.txt"
PIP_WHEEL = "requirements/pip-*.whl"
"""Pattern of pip's wheel, which `requirements/pip.txt` pins."""
USER_REQUIREMENTS = "requirements/user.txt"
USER_CONSTRAINTS = "requirements/outlast-constraints.txt"
"""Name beside the user's requirements, if they use constraints."""
SOURCE = "source"
PACKAGE = "package"
ENVIRONMENT = "pyvenv.cfg"
"""File at the top of a virtual environment."""
SOURCE_BYTES_MAX = 100 << 20
"""The most bytes of source; anything larger is data, which a VM reads from the bucket."""

KEY_FILES = (
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.keystore", "*.jks", "*.ppk", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ed25519*", "id_ecdsa*", "deploy_key*", "deploy-key*"),
    *("*credentials*.json", "*service-account*.json", "*service_account*.json"),
    *("client_secret*.json", "kaggle.json", "*.tfstate", "*.tfstate.*"),
    *("secrets.json", "secrets.toml", "secrets.yml", "secrets.yaml"),
    *("*.env", "*.tfvars", "*.keytab", "*.netrc", "_netrc", "credentials", "kubeconfig*"),
)
"""Names of files that never leave the machine, even if a repository contains them."""

_KEY_FILE = re.compile("|".join(map(fnmatch.translate, KEY_FILES)))
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNIX = 3


class BundleError(ValueError):
    """No bundle can be made of the checkout; the message is a sentence."""


@dataclass(frozen=True)
class Bundle:
    """A written bundle."""

    path: Path
    sha256: str


def build(root: Path, into: Path, extra: Mapping[str, bytes] | None = None) -> Bundle:
    """Writes the bundle to `into/<sha256>.zip`, once and complete.

    `root` is the folder of the package `outlast`: a checkout, or where a wheel is installed.
    `extra` are more files, by their names in the bundle. Raises BundleError if a part is missing.
    """
    data = pack(root, extra)
    sha256 = hashlib.sha256(data).hexdigest()
    path = into / f"{sha256}.zip"
    if not path.exists():
        into.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=into, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    return Bundle(path, sha256)


def pack(root: Path, extra: Mapping[str, bytes] | None = None) -> bytes:
    """The bundle's bytes, which depend only on the sources' names and bytes."""
    extra = extra or {}
    names = sorted({*members(root), *extra})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = _MODE
            entry.create_system = _UNIX  # Otherwise the bytes would depend on the operating system.
            data = extra.get(name)
            if data is None:
                data = _path(root, name).read_bytes()
                if not fnmatch.fnmatchcase(name, PIP_WHEEL):
                    refuse_keys(name, data)
            archive.writestr(entry, data)
    return buffer.getvalue()


def members(root: Path) -> Iterator[str]:
    """The bundle's files, as paths below `root` with forward slashes."""
    for package in PACKAGES:
        if not (root / package / "__init__.py").is_file():
            raise BundleError(
                f"{package}: is not a package in {root}; install Outlast again, or restore the"
                " checkout"
            )
        listed = _listed_by_git(root / package)
        # In a checkout inside another repository's ignored folder, git lists nothing.
        known = None if not listed or "__init__.py" not in listed else set(listed)
        needed = (name for name in NEEDED if name.startswith(package) and (root / name).is_file())
        for name in (*_sources(root, package), *needed):
            if known is None or name.removeprefix(f"{package}/") in known:
                yield name
    for name in (PIP_WHEEL, REQUIREMENTS):
        found = sorted((root / "outlast").glob(name))
        if len(found) != 1:
            raise BundleError(
                f"{name}: {len(found)} files in {root}, must be 1; restore it: a VM installs from"
                " it"
            )
        yield f"requirements/{found[0].name}"


def _path(root: Path, name: str) -> Path:
    """The path of a member of the bundle."""
    return root / name if name.startswith("outlast/") else root / "outlast" / name


def source_files(folder: Path) -> dict[str, bytes]:
    """The user's own files, by their names below `folder`.

    Raises BundleError for a folder without files or with too many bytes, for a link, and for a file
    that holds a key or a token, because a bundle stays in the bucket.
    """
    found: dict[str, bytes] = {}
    total = 0
    for name in source_names(folder):
        path = folder / name
        if path.is_symlink():
            raise BundleError(
                f"{folder.name}/{name}: is a link, which the bundle cannot hold; replace it by the"
                " file"
            )
        if not path.is_file():  # It was deleted without telling git, or is another repository.
            continue
        total += path.stat().st_size
        if total > SOURCE_BYTES_MAX:
            raise BundleError(
                f"{folder.name}: has more than {SOURCE_BYTES_MAX >> 20} MiB of files; keep data in"
                " the bucket, or let git ignore what is not code"
            )
        found[name] = path.read_bytes()
        refuse_keys(f"{folder.name}/{name}", found[name])
    if not found:
        raise BundleError(f"{folder.name}: holds no file to deliver; check the folder")
    return found


def source_names(folder: Path) -> list[str]:
    """The names below `folder` that are the user's code, sorted: files and links, without what git
    ignores, names that begin with a dot, names of keys, caches and virtual environments. git may
    list a file that no longer exists.
    """
    listed = _listed_by_git(folder)
    names = sorted(_listed(folder) if listed is None else listed)
    environments = tuple(
        name.removesuffix(ENVIRONMENT) for name in names if name.endswith(f"/{ENVIRONMENT}")
    )
    return [
        name
        for name in names
        if not any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
        and not _is_key_file(name.rpartition("/")[2])
        and not name.startswith(environments)
    ]


def _is_key_file(name: str) -> bool:
    return _KEY_FILE.match(name.lower()) is not None


def refuse_keys(name: str, data: bytes) -> None:
    """Raises BundleError if a file holds a key or a token."""
    key = keys.find(data)
    if key is not None:
        raise BundleError(
            f"{name}: line {key.line} holds {key.what}, and delivered files stay in the bucket;"
            " keep it as a secret of Secret Manager, name that in outlast:secretEnv, and let git"
            " ignore the file, or remove the line (if it is not a key, write"
            f" '{keys.ALLOWED.decode()}' in that line)"
        )


def inside(root: Path, name: str) -> Path | None:
    """The file or folder of the checkout `root` that a setting names; None if it does not exist."""
    try:
        path, top = (root / name).resolve(), root.resolve()
        there = path.exists()
    except (OSError, ValueError):  # No file system has such a name.
        return None
    return path if there and path != top and path.is_relative_to(top) else None


def is_hidden(path: Path, root: Path) -> bool:
    """Whether a name that begins with a dot leads to `path` from the checkout `root`."""
    return any(part.startswith(".") for part in path.relative_to(root.resolve()).parts)


def may_leave(path: Path, root: Path) -> bool:
    """Whether a file of the checkout `root` may leave this machine: not a key, not hidden, not
    ignored by git.
    """
    name = path.name
    if is_hidden(path, root) or path.is_symlink():
        return False
    if _is_key_file(name):
        return False
    listed = _listed_by_git(path.parent)
    return listed is None or name in listed


def _listed_by_git(folder: Path) -> list[str] | None:
    """What git would commit of the folder; None if there is no repository, or no git."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _listed(folder: Path) -> list[str]:
    """Every file and link of the folder, without hidden folders and virtual environments."""
    found = []
    for here, folders, files in os.walk(folder):
        if ENVIRONMENT in files and Path(here) != folder:
            folders.clear()
            continue
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(here, name).relative_to(folder).as_posix() for name in (*files, *links)]
    return found


def _sources(root: Path, folder: str) -> Iterator[str]:
    for entry in os.scandir(root / folder):
        name = f"{folder}/{entry.name}"
        if entry.name.startswith(".") or entry.is_symlink() or name in (*LEFT_OUT, TRAINERS):
            continue
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _sources(root, name)
        elif entry.name.endswith(".py") or entry.name == "py.typed":
            yield name
