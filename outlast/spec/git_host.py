"""Talking to the host of a git repository: whether it has a commit, and the commit's objects.

The program asks before it creates anything; a VM fetches. A token is sent in a header of one
connection; a deploy key is in a file of root's during the fetch. Needs no git program.

    GitRefused      the same try fails again: no such commit, no access; one sentence for people
    GitUnreachable the host did not answer; a later try or another machine may succeed
"""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.base.retry import Trouble
from outlast.spec.delivery import Git

if TYPE_CHECKING:
    from dulwich.client import GitClient

ANSWER_SEC = 60.0
CONNECT_SEC = 20
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
"""urllib3's message about a failed connection."""
_STRANGE_HOST = re.compile(r"host key verification failed|host identification has changed", re.I)


class GitRefused(Exception):
    """The commit cannot be had with these settings."""


class GitUnreachable(Exception):
    """The host did not answer, or not completely."""

    trouble = Trouble.SILENT


def ask(git: Git, *, answer_sec: float) -> None:
    """Checks whether a public https repository serves the commit, by fetching its first bytes.
    Raises GitRefused and GitUnreachable, but neither for a host that serves only the tips of
    branches, because it says nothing about other commits.
    """
    from dulwich.errors import GitProtocolError, HangupException
    from dulwich.repo import MemoryRepo

    wanted = git.commit.encode()

    def unless_a_tip(refs: Any, depth: Any = None) -> list[Any]:
        return [] if wanted in refs.values() else [wanted]

    def given(data: bytes) -> int:
        raise _Given

    with _classified(git):
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
                continue  # as in `fetch_objects`
            except GitProtocolError as error:
                if not (_NO_COMMIT.search(str(error)) or _NOT_ADVERTISED.search(str(error))):
                    raise
                if version == 0:  # With the newer protocol, a host serves any commit.
                    raise GitRefused(no_commit(git)) from None
            return


class _Given(Exception):
    """The first bytes came."""


def fetch_objects(git: Git, secret: bytes | None, repo: Any, scratch: Path) -> None:
    """Fetches the commit's objects into dulwich's bare repository; `scratch` is for the key. Raises
    GitRefused and GitUnreachable."""
    from dulwich.errors import GitProtocolError, HangupException

    client, path = _client(git, secret, scratch, ANSWER_SEC)
    wanted = [git.commit.encode()]

    def every(refs: Any, depth: Any = None) -> list[Any]:
        # A host that serves no commit by name may still have it in a branch or tag.
        return [
            sha for name, sha in refs.items() if name.startswith((b"refs/heads/", b"refs/tags/"))
        ]

    def only(refs: Any, depth: Any = None) -> list[Any]:
        return wanted

    with _classified(git):
        try:
            client.fetch(path, repo, determine_wants=only, depth=1)
        except HangupException as error:
            if client.protocol_version < 2 or error.stderr_lines:
                raise
            # The client cannot read this protocol's refusal; the older one's it can.
            client.fetch(path, repo, determine_wants=only, depth=1, protocol_version=0)
        except BrokenPipeError:
            # The host had refused and closed the connection during the request.
            client.fetch(path, repo, determine_wants=every)
        except GitProtocolError as error:
            hung_up = isinstance(error.__cause__, BrokenPipeError)  # the same, as dulwich has it
            unnamed = client.protocol_version < 2 and _NO_COMMIT.search(str(error))
            if not hung_up and not unnamed and not _NOT_ADVERTISED.search(str(error)):
                raise
            client.fetch(path, repo, determine_wants=every)


@contextlib.contextmanager
def _classified(git: Git) -> Iterator[None]:
    """Converts the errors of a connection into GitRefused and GitUnreachable."""
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
        raise GitUnreachable(f"git host {git.remote.host}: {_described(error)}") from None


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
    """Ignores the machine's configuration; uses only this key and this known host."""
    key_file, hosts = scratch / "key", scratch / "known_hosts"
    descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.strip() + b"\n")  # A key needs the line break at its end.
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
    """What the host's message means for the run; an unknown message may come from the network."""
    if _UNREACHABLE.search(said):
        return GitUnreachable(f"git host {git.remote.host}: {_first_line(said)}")
    if _STRANGE_HOST.search(said):
        return GitRefused(
            f"gitHostKeys of {git.remote.known_as}: the host has another key; compare with what it"
            " publishes before you set outlast:gitHostKeys again"
        )
    if _NO_COMMIT.search(said):
        return GitRefused(no_commit(git))
    if _NOT_LET_IN.search(said):
        return GitRefused(_not_let_in(git))
    if re.search(r"not found|does not (?:exist|appear)|no such|could not be found", said, re.I):
        return GitRefused(f"gitUrl {git.url}: cannot be read {_with(git)} ({_first_line(said)})")
    return GitUnreachable(f"git host {git.remote.host}: {_first_line(said)}")


def no_commit(git: Git) -> str:
    """The message about a commit that the repository does not have."""
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


def _described(error: BaseException) -> str:
    return _first_line(str(error)) if str(error) else type(error).__name__
