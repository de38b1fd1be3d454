"""`outlast dev pull`: copies a file or folder from the VM of an experiment, and nothing else.

The VM names the files, so each name is checked before it becomes a path. Files arrive in a new
folder beside the target, are verified by size and SHA-256, and get their names once all are there.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base.names import DIGEST, check_file_names
from outlast.cli.dev.channel import Channel, Lost
from outlast.cli.dev.vms import Way
from outlast.cli.errors import OperateError, UsageError


@dataclass(frozen=True)
class Pulled:
    """What was copied."""

    path: Path
    files: int
    size: int

    def as_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "files": self.files, "bytes": self.size}


@dataclass(frozen=True)
class _Remote:
    """A file on the VM; its name is empty if it was asked for by itself."""

    name: str
    size: int
    sha256: str


def pull(way: Way, name: str, remote: str, local: Path) -> Pulled:
    """Copies `remote`, relative to the home folder on the VM unless it is absolute, to `local`,
    which must not exist; in an existing folder, to its last name there.

    Raises UsageError for a target that exists, OperateError if there is no VM or no such file, or
    if it changes while it is copied.
    """
    last = Path(remote.rstrip("/")).name
    if not last or last == "..":
        raise UsageError(f"remote {remote!r}: must name a file or a folder on the VM")
    target = local / last if local.is_dir() else local
    if os.path.lexists(target):
        raise UsageError(f"{target}: exists already; move it away, or name another place")
    where = name
    try:
        vm = way.vm()
        if vm is None:
            raise OperateError(f"{name}: its group has no VM now; see outlast status {name}")
        where = f"VM {vm.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".outlast-pull-", dir=target.parent) as scratch,
            way.connect(vm) as channel,
        ):
            files = _checked(channel.begin(pull=remote).get("files"))
            whole = Path(scratch) / "whole"
            for file in files:
                _fetch(channel, file, whole / file.name if file.name else whole)
            if not files:
                whole.mkdir()
            # A file may have been created there meanwhile, which must not be replaced.
            if os.path.lexists(target):
                raise UsageError(f"{target}: was created meanwhile; name another place")
            whole.rename(target)
    except Lost as error:
        raise OperateError(f"{where}: {error}") from None
    except OSError as error:
        raise OperateError(f"{target}: {error.strerror or error}") from None
    return Pulled(target, len(files), sum(file.size for file in files))


def _checked(listed: Any) -> list[_Remote]:
    """The files as the VM lists them. Raises OperateError for any name but a plain path."""
    try:
        files = [_remote(*entry) for entry in listed]
        if [file.name for file in files] != [""]:
            check_file_names((file.name for file in files), "file")
    except (ValueError, TypeError) as error:
        raise OperateError(f"the VM's list of files: {error}") from None
    return files


def _remote(name: Any, size: Any, sha256: Any) -> _Remote:
    if type(name) is not str or type(size) is not int or size < 0:
        raise ValueError(f"file {name!r}: must have a name and a size in bytes, not {size!r}")
    return _Remote(name, size, DIGEST.check(sha256, name))


def _fetch(channel: Channel, file: _Remote, to: Path) -> None:
    """Copies one file. Raises OperateError if it is not what was listed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    digest, got = hashlib.sha256(), 0
    channel.send("file", path=file.name)
    with to.open("xb") as written:
        while True:
            message, piece = channel.receive(1.0)
            if message.get("kind") == "refused":
                raise OperateError(f"VM: {message.get('why')}")
            if message.get("kind") != "piece":
                continue
            if not piece:
                break
            got += len(piece)
            if got > file.size:
                break
            digest.update(piece)
            written.write(piece)
    if (got, digest.hexdigest()) != (file.size, file.sha256):
        raise OperateError(
            f"{file.name or to.name}: changed on the VM while it was copied; pull it again"
        )
