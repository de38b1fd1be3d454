"""One commit of a repository, fetched without a git program, as files in a folder.

    python -P -m outlast.supervisor.git  a JSON object on standard input, with the secret; answers

In a separate process, so that a stop ends it at once with its ssh, and the secret's memory with
it.

The fetch is shallow: only that commit. Its name is the hash of its content, computed here from the
received bytes, so it is certainly the requested content. Submodules are fetched in the same way,
each at the commit that its parent names; they get the secret if they are on the same host. Files in
Git LFS are not fetched; the error names them.
"""

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from outlast.base.names import check_relative
from outlast.spec.delivery import DeliveryError, Git
from outlast.spec.git_host import GitRefused, GitUnreachable, fetch_objects, no_commit
from outlast.supervisor import subprocesses

SUBMODULES_DEEP = 8
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_POINTER_BYTES = 1024
"""Every pointer is shorter than this."""


def fetch(git: Git, secret: bytes | None, into: Path, *, pause: Callable[[float], None]) -> None:
    """Writes the commit's files into the new folder `into`, completely or not at all. An exception
    from `pause` ends the fetch. Raises GitRefused, GitUnreachable, subprocesses.Stuck and
    OSError."""
    into.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".git-", dir=into.parent))
    order = {
        "git": git.to_json(),
        "secret": None if secret is None else base64.b64encode(secret).decode(),
        "scratch": str(scratch),
    }
    try:
        done = subprocesses.run(
            [sys.executable, "-P", "-m", __name__],
            stdin=json.dumps(order).encode(),
            both=True,
            pause=pause,
        )
        if done.code:
            raise GitUnreachable(f"git host {git.remote.host}: {done.last_line()}")
        answer = json.loads(done.said.splitlines()[-1])
        if answer["refused"]:
            raise GitRefused(answer["refused"])
        if answer["unreachable"]:
            raise GitUnreachable(answer["unreachable"])
        shutil.rmtree(into, ignore_errors=True)
        (scratch / "files").rename(into)
    except subprocesses.Stuck as error:
        raise subprocesses.Stuck(f"git host {git.remote.host}: {error}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Reads one order from standard input and prints one answer."""
    order = json.load(sys.stdin)
    secret = order["secret"]
    answer = {"refused": "", "unreachable": ""}
    try:
        _fetch(
            Git.from_json(order["git"]),
            None if secret is None else base64.b64decode(secret),
            Path(order["scratch"]),
        )
    except GitRefused as error:
        answer["refused"] = str(error)
    except GitUnreachable as error:
        answer["unreachable"] = str(error)
    print(json.dumps(answer), flush=True)


def _fetch(git: Git, secret: bytes | None, scratch: Path) -> None:
    files = scratch / "files"
    _check_out(git, secret, scratch / "objects", files)
    if pointers := _lfs_pointers(files / git.path):
        more = f" (and {len(pointers) - 1} more)" if pointers[1:] else ""
        raise GitRefused(
            f"gitCommit {git.commit}: {pointers[0].relative_to(files)}{more} is kept by Git LFS,"
            " and only a pointer was fetched; commit the file, or put it into a bucket and name it"
            " in outlast:dataPaths, or set outlast:gitPath to a folder without"
        )


def _check_out(git: Git, secret: bytes | None, scratch: Path, files: Path, deep: int = 0) -> None:
    """Checks the commit out into the folder `files`, with its submodules. Creates `scratch` for
    temporary files."""
    from dulwich.index import InvalidPathError, build_index_from_tree
    from dulwich.objects import Commit, ObjectID
    from dulwich.repo import Repo

    files.mkdir(exist_ok=True)
    scratch.mkdir()
    wanted = ObjectID(git.commit.encode())
    with Repo.init_bare(str(scratch / "repository"), mkdir=True) as repo:
        fetch_objects(git, secret, repo, scratch)
        # Read by name: an object's name is the hash of its bytes.
        store = repo.object_store
        commit = store[wanted] if wanted in store else None  # noqa: SIM401 - it has no get
        if not isinstance(commit, Commit):
            raise GitRefused(no_commit(git))
        try:
            build_index_from_tree(str(files), str(scratch / "index"), store, commit.tree)
        except InvalidPathError as error:
            raise GitRefused(
                f"gitCommit {git.commit}: has a file or folder that is not allowed in a checkout"
                f" ({error}); rename it"
            ) from None
        modules = list(_submodules(git, store, commit.tree, files))
    for number, (path, module) in enumerate(modules):
        if deep == SUBMODULES_DEEP:
            raise GitRefused(
                f"submodule {path}: is nested {deep} submodules deep, which is too many"
            )
        try:
            shared = secret if module.secret else None
            _check_out(module, shared, scratch / str(number), files / path, deep + 1)
        except GitRefused as error:
            raise GitRefused(f"submodule {path}: {error}") from None


def _submodules(git: Git, store: Any, tree: Any, files: Path) -> Iterator[tuple[str, Git]]:
    """Yields the path of each submodule of the commit in `files`, and how to fetch it."""
    from dulwich.config import ConfigFile, parse_submodules
    from dulwich.submodule import iter_cached_submodules

    named = files / ".gitmodules"
    if named.is_symlink():
        raise GitRefused(".gitmodules: is a link; commit the file itself")
    text = named.read_bytes() if named.is_file() else b""
    try:
        addresses = {
            path.decode(): url.decode()
            for path, url, _ in parse_submodules(ConfigFile.from_file(BytesIO(text)))
        }
    except (ValueError, KeyError) as error:
        raise GitRefused(f".gitmodules: cannot be read ({error}); correct it") from None
    for raw, sha in iter_cached_submodules(store, tree):
        path = _place_of_submodule(raw, files)
        if path not in addresses:
            raise GitRefused(f"submodule {path}: has no address in .gitmodules; add it")
        yield path, _submodule(git, path, addresses[path], sha.decode())


def _place_of_submodule(raw: bytes, files: Path) -> str:
    """A submodule's path, checked: the commit chose it, and it must not lead out of the commit's
    folder."""
    try:
        path = check_relative(raw.decode(), "submodule")
    except ValueError as error:
        raise GitRefused(f"submodule {raw[:200]!r}: has a bad path ({error}); rename it") from None
    parts = path.split("/")
    if any(part.lower() == ".git" for part in parts):
        raise GitRefused(f"submodule {path!r}: is in a .git folder; rename it")
    for end in range(1, len(parts) + 1):
        place = files.joinpath(*parts[:end])
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise GitRefused(
                f"submodule {path!r}: {'/'.join(parts[:end])!r} is a link or a file in the"
                " repository; rename one"
            )
    return path


def _submodule(git: Git, path: str, address: str, commit: str) -> Git:
    """How to fetch a submodule; its address may be relative to that of the repository."""
    base, rest = git.url.rstrip("/"), address
    while rest.startswith(("./", "../")):
        step, _, rest = rest.partition("/")
        base = base if step == "." else base.rpartition("/")[0]
    url = address if rest == address else f"{base}/{rest}"
    found = replace(git, url=url, commit=commit, path="", requirements="")
    try:
        remote = found.remote
    except DeliveryError:
        raise GitRefused(
            f"submodule {path}: its address must be an https or ssh address, or relative to"
            " the repository's; correct it in .gitmodules"
        ) from None
    here = git.remote
    if remote.scheme == "ssh" and here.scheme == "https" and remote.host == here.host:
        # The secret must reach only the port of the host that it was given for.
        return replace(found, url=f"https://{here.authority}/{remote.path.lstrip('/')}")
    if (remote.scheme, remote.known_as) == (here.scheme, here.known_as):
        return found
    if remote.scheme == "ssh":
        raise GitRefused(
            f"submodule {path}: {remote.host} is reached by ssh, and is not the host that"
            " outlast:gitHostKeys knows; write its https address into .gitmodules"
        )
    return replace(found, secret="", host_keys=())


def _lfs_pointers(folder: Path) -> list[Path]:
    """The files in a folder that are only pointers to Git LFS."""
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink() and path.stat().st_size < LFS_POINTER_BYTES:
            with path.open("rb") as file:
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    found.append(path)
    return found


if __name__ == "__main__":
    main()
