"""One commit of a repository, fetched without a git program, as files in a folder.

    python -P -m outlast.supervisor.git  a JSON object on standard input, with the secret; answers

In a separate process, so that a stop ends it at once with its ssh, and the secret's memory with
it.

Fetched shallow: that commit and no other. Its name is the hash of all that it holds, computed here
from the bytes that came, so what is there under it is what was asked for. A token goes into a
header of the one connection; a deploy key lies in a file of root's for the time of the fetch.
Submodules are fetched alike, each at the commit that the one above names; they get the secret where
they lie on the same host. Files that Git LFS keeps elsewhere are not fetched, and named.

    GitRefused      the same try fails again: no such commit, no access; one sentence for people
    GitUnreachable  the host did not answer; another time, or another machine, may do
"""

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.base.names import check_relative
from outlast.spec.delivery import DeliveryError, Git
from outlast.supervisor import subprocesses

if TYPE_CHECKING:
    from dulwich.client import GitClient

ANSWER_SEC = 60.0
CONNECT_SEC = 20
SUBMODULES_DEEP = 8
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_POINTER_BYTES = 1024
"""A pointer is shorter."""
USER = "x-access-token"
"""The user name beside a token, if the address has none."""

_UNREACHABLE = re.compile(
    r"could not resolve|name resolution|connection (?:refused|reset|closed|timed out)|timed out"
    r"|no route|network is unreachable|kex_exchange|broken pipe|unexpected http resp (?:429|5\d\d)",
    re.IGNORECASE,
)
_NOT_ADVERTISED = re.compile(r"unadvertised|not allowed|not advertised", re.IGNORECASE)
_NO_COMMIT = re.compile(r"not our ref|no such (?:commit|object|ref)|unknown commit", re.IGNORECASE)
_NOT_LET_IN = re.compile(
    r"permission denied|authenti|unexpected http resp 40[13]|access denied|not authori", re.I
)
_CAUSE = re.compile(
    r"\(Caused by \w+\((?P<quote>['\"])(?:HTTPS?Connection\(.*?\): )?(?P<cause>.*)(?P=quote)\)\)$"
)
"""What urllib3 tells of a connection that came to nothing."""
_STRANGE_HOST = re.compile(r"host key verification failed|host identification has changed", re.I)


class GitRefused(Exception):
    """The commit cannot be had with these settings."""


class GitUnreachable(Exception):
    """The host did not answer, or not to the end."""


def fetch(git: Git, secret: bytes | None, into: Path, *, pause: Callable[[float], None]) -> None:
    """The files of the commit in the new folder `into`, there whole or not at all. What `pause`
    raises while waiting ends it. Raises GitRefused, GitUnreachable, subprocesses.Stuck and
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
    """The process's whole life: one order, one answer."""
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
            " and only a pointer to it came; commit what it is, or put it into a bucket and name it"
            " in outlast:dataPaths, or set outlast:gitPath to a folder without"
        )


def _check_out(git: Git, secret: bytes | None, scratch: Path, files: Path, deep: int = 0) -> None:
    """The commit in the folder `files`, its submodules in it. `scratch` is made, and holds what is
    needed for the time of the fetch."""
    from dulwich.index import InvalidPathError, build_index_from_tree
    from dulwich.objects import Commit, ObjectID
    from dulwich.repo import Repo

    files.mkdir(exist_ok=True)
    scratch.mkdir()
    wanted = ObjectID(git.commit.encode())
    with Repo.init_bare(str(scratch / "repository"), mkdir=True) as repo:
        _fetch_objects(git, secret, repo, scratch)
        # By name: an object's name is the hash of its bytes.
        store = repo.object_store
        commit = store[wanted] if wanted in store else None  # noqa: SIM401 - it has no get
        if not isinstance(commit, Commit):
            raise GitRefused(_no_commit(git))
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
            raise GitRefused(f"submodule {path}: lies {deep} submodules deep, which is too many")
        try:
            shared = secret if module.secret else None
            _check_out(module, shared, scratch / str(number), files / path, deep + 1)
        except GitRefused as error:
            raise GitRefused(f"submodule {path}: {error}") from None


def _submodules(git: Git, store: Any, tree: Any, files: Path) -> Iterator[tuple[str, Git]]:
    """The submodules of a commit that lies in `files`: path and what is to be fetched for it."""
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
            raise GitRefused(f"submodule {path}: .gitmodules has no address of it; add it")
        yield path, _submodule(git, path, addresses[path], sha.decode())


def _place_of_submodule(raw: bytes, files: Path) -> str:
    """A submodule's path in the folder of the commit, which chose it: one that leads nowhere
    else."""
    try:
        path = check_relative(raw.decode(), "submodule")
    except ValueError as error:
        raise GitRefused(f"submodule {raw[:200]!r}: has a bad path ({error}); rename it") from None
    parts = path.split("/")
    if any(part.lower() == ".git" for part in parts):
        raise GitRefused(f"submodule {path!r}: lies in a .git folder; rename it")
    for end in range(1, len(parts) + 1):
        place = files.joinpath(*parts[:end])
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise GitRefused(
                f"submodule {path!r}: {'/'.join(parts[:end])!r} is a link or a file in the"
                " repository; rename one"
            )
    return path


def _submodule(git: Git, path: str, address: str, commit: str) -> Git:
    """How a submodule is fetched: an address may be relative to that of the repository."""
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
        # The secret goes to no other port of the host than the one that it was given for.
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
    """The files in it that only point to what Git LFS keeps."""
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink() and path.stat().st_size < LFS_POINTER_BYTES:
            with path.open("rb") as file:
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    found.append(path)
    return found


def ask(git: Git, *, answer_sec: float) -> None:
    """Whether a repository by https, that is read without a secret, gives the commit out: no more
    than the first bytes of it are fetched. Raises GitRefused and GitUnreachable; a host that gives
    out the tips of branches alone says nothing of other commits, and neither is raised."""
    from dulwich.errors import GitProtocolError, HangupException
    from dulwich.repo import MemoryRepo

    wanted = git.commit.encode()

    def unless_a_tip(refs: Any, depth: Any = None) -> list[Any]:
        return [] if wanted in refs.values() else [wanted]

    def given(data: bytes) -> int:
        raise _Given

    with _told_apart(git):
        client, path = _client(git, None, Path(), answer_sec)
        for version in (None, 0):
            walker = MemoryRepo().get_graph_walker()
            try:
                client.fetch_pack(
                    path, unless_a_tip, walker, given, depth=1, protocol_version=version
                )
            except _Given:
                pass
            except HangupException as error:
                if client.protocol_version < 2 or error.stderr_lines:
                    raise
                continue  # as in `_fetch_objects`
            except GitProtocolError as error:
                if not (_NO_COMMIT.search(str(error)) or _NOT_ADVERTISED.search(str(error))):
                    raise
                if version == 0:  # by the newer protocol any commit is given out
                    raise GitRefused(_no_commit(git)) from None
            return


class _Given(Exception):
    """The first bytes came."""


def _fetch_objects(git: Git, secret: bytes | None, repo: Any, scratch: Path) -> None:
    from dulwich.errors import GitProtocolError, HangupException

    client, path = _client(git, secret, scratch, ANSWER_SEC)
    wanted = [git.commit.encode()]

    def every(refs: Any, depth: Any = None) -> list[Any]:
        # A host that gives out no commit by its name has it, if at all, in a branch or a tag.
        return [
            sha for name, sha in refs.items() if name.startswith((b"refs/heads/", b"refs/tags/"))
        ]

    def only(refs: Any, depth: Any = None) -> list[Any]:
        return wanted

    with _told_apart(git):
        try:
            client.fetch(path, repo, determine_wants=only, depth=1)
        except HangupException as error:
            if client.protocol_version < 2 or error.stderr_lines:
                raise
            # The client cannot read this protocol's refusal; the older one's it can.
            client.fetch(path, repo, determine_wants=only, depth=1, protocol_version=0)
        except BrokenPipeError:
            # The host had refused, and hung up while it was still being asked.
            client.fetch(path, repo, determine_wants=every)
        except GitProtocolError as error:
            hung_up = isinstance(error.__cause__, BrokenPipeError)  # the same, as dulwich has it
            unnamed = client.protocol_version < 2 and _NO_COMMIT.search(str(error))
            if not hung_up and not unnamed and not _NOT_ADVERTISED.search(str(error)):
                raise
            client.fetch(path, repo, determine_wants=every)


@contextlib.contextmanager
def _told_apart(git: Git) -> Iterator[None]:
    """Turns what talking to the host raises into GitRefused and GitUnreachable."""
    from dulwich.client import HTTPUnauthorized
    from dulwich.errors import GitProtocolError, NotGitRepository
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HTTPUnauthorized:
        raise GitRefused(_not_let_in(git)) from None
    except NotGitRepository:
        raise GitRefused(
            f"gitUrl {git.url}: is not a repository, or none that may be read {_with(git)}; check"
            " both"
        ) from None
    except FileNotFoundError as error:
        if error.filename != "ssh":
            raise
        raise GitRefused(
            f"gitUrl {git.url}: the image has no ssh; choose one that has it, or an https address"
        ) from None
    except GitProtocolError as error:
        raise _meaning(git, str(error)) from None
    except (HTTPError, OSError, EOFError) as error:
        raise GitUnreachable(f"git host {git.remote.host}: {_told(error)}") from None


def _client(
    git: Git, secret: bytes | None, scratch: Path, answer_sec: float
) -> "tuple[GitClient, str]":
    from dulwich.client import HttpGitClient, SSHGitClient, default_urllib3_manager

    remote = git.remote
    if remote.scheme == "ssh":
        ssh = shlex.join(["ssh", *_ssh_options(git, secret or b"", scratch)])
        client = SSHGitClient(
            remote.host,
            port=remote.port,
            username=remote.user or None,
            ssh_command=ssh,
            quiet=True,
        )
        return client, remote.path
    port = f":{remote.port}" if remote.port else ""
    base = f"{remote.scheme}://{remote.host}{port}"
    client = HttpGitClient(
        base,
        pool_manager=default_urllib3_manager(None, timeout=answer_sec, base_url=base),
        username=(remote.user or USER) if secret else None,
        password=secret.decode().strip() if secret else None,
        quiet=True,
    )
    return client, remote.path


def _ssh_options(git: Git, key: bytes, scratch: Path) -> list[str]:
    """No configuration of the machine's, no other key, no host but the one that is known."""
    key_file, hosts = scratch / "key", scratch / "known_hosts"
    descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.strip() + b"\n")  # without the line break at its end it is not a key
    hosts.write_text("".join(f"{line}\n" for line in git.host_keys))
    options = {
        "IdentityFile": key_file,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "ConnectTimeout": CONNECT_SEC,
        "ServerAliveInterval": 15,
    }
    argv = ["-F", "/dev/null"]
    for name, value in options.items():
        argv += ["-o", f"{name}={value}"]
    return argv


def _meaning(git: Git, said: str) -> Exception:
    """What the host's own words mean for the run; unknown ones may be the network's."""
    if _UNREACHABLE.search(said):
        return GitUnreachable(f"git host {git.remote.host}: {_first_line(said)}")
    if _STRANGE_HOST.search(said):
        return GitRefused(
            f"gitHostKeys of {git.remote.known_as}: the host has another key; compare with what it"
            " publishes before you set outlast:gitHostKeys again"
        )
    if _NO_COMMIT.search(said):
        return GitRefused(_no_commit(git))
    if _NOT_LET_IN.search(said):
        return GitRefused(_not_let_in(git))
    if re.search(r"not found|does not (?:exist|appear)|no such|could not be found", said, re.I):
        return GitRefused(f"gitUrl {git.url}: cannot be read {_with(git)} ({_first_line(said)})")
    return GitUnreachable(f"git host {git.remote.host}: {_first_line(said)}")


def _no_commit(git: Git) -> str:
    return (
        f"gitCommit {git.commit}: is not in {git.url}; push it, or set outlast:gitCommit to one"
        " that is"
    )


def _not_let_in(git: Git) -> str:
    return (
        f"gitUrl {git.url}: may not be read {_with(git)}; give outlast:gitSecret a token or"
        " key that may read it"
    )


def _with(git: Git) -> str:
    return f"with the secret {git.secret.split('/')[3]}" if git.secret else "without a secret"


def _first_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "no word"
    cause = _CAUSE.search(last)
    return (cause["cause"] if cause else last)[:200]


def _told(error: BaseException) -> str:
    return _first_line(str(error)) if str(error) else type(error).__name__


if __name__ == "__main__":
    main()
