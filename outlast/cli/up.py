"""Brings a stack up, with the newest commit of its branch if that is asked for, and down."""

import os
import re
import subprocess
from dataclasses import dataclass

from outlast.bucket.head import HeadError
from outlast.bucket.standing import end_if_expired
from outlast.bucket.store import StoreError
from outlast.cli import engine, stack
from outlast.cli.errors import OperateError, UsageError
from outlast.spec import keys
from outlast.spec.delivery import DeliveryError, Remote

ASK_SEC = 60.0


@dataclass(frozen=True)
class Latest:
    """Where a stack's branch is now."""

    ref: str
    commit: str
    before: str
    """The commit that the stack had; empty for none."""


def up(name: str | None) -> None:
    """`pulumi up` of the stack, or of the selected one; what it says goes to this terminal.

    EngineError: it ended with an error, which it has said.
    """
    engine.show_engine(["up", "--yes", "--skip-preview", *_of(name)], env=os.environ)


def destroy(name: str) -> str:
    """`pulumi destroy` of the stack; what stays of its run, in words, if there is any.

    A run that is open past its deadline is ended as expired, since no VM will. EngineError: as
    `up`.
    """
    try:
        deployed = stack.find(name)  # its outputs go with it
    except OperateError:
        deployed = None  # a foundation, or one that was never whole
    engine.show_engine(["destroy", "--yes", "--skip-preview", *_of(name)], env=os.environ)
    return _left(deployed) if deployed else ""


def _left(deployed: stack.Deployed) -> str:
    run = f"run {deployed.layout.run}"
    try:
        head = end_if_expired(deployed.head_file())
    except (HeadError, StoreError, OperateError):
        return ""
    if head.end is None:
        return f"{run} stays open at step {head.step} in {deployed.url}; the next up resumes it"
    return f"{run} stays in {deployed.url}, {head.state} at step {head.end.step}"


def latest(name: str | None) -> Latest:
    """Writes the commit that `gitRef` is at into the stack's configuration.

    The repository is asked with the credentials of this machine's own git. UsageError: the stack
    follows no branch; OperateError: it cannot be read, or has no such branch.
    """
    import json

    text = engine.run_engine(["config", "--json", *_of(name)], env=os.environ)
    config = {key: entry.get("value", "") for key, entry in json.loads(text).items()}
    url, ref = config.get("outlast:gitUrl", ""), config.get("outlast:gitRef", "")
    if not url or not ref:
        missing = "gitRef" if url else "gitUrl"
        raise UsageError(
            f"outlast:{missing}: is not set, so there is no branch to follow; set outlast:gitUrl"
            " and outlast:gitRef, or leave --latest out."
        )
    commit = resolve(url, ref)
    engine.run_engine(["config", "set", "outlast:gitCommit", commit, *_of(name)], env=os.environ)
    return Latest(ref, commit, config.get("outlast:gitCommit", ""))


def resolve(url: str, ref: str) -> str:
    """The commit that a branch of a repository is at. UsageError: the address is none that a VM
    could fetch from, or holds a password; it goes to no other program then."""
    try:
        Remote.parse(url)
    except DeliveryError as error:
        raise UsageError(f"outlast:{error}.") from None
    name = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--exit-code", "--", url, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SEC,
            # There is no terminal to ask at.
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": _ssh()},
        )
    except FileNotFoundError:
        raise OperateError("git: is not on PATH; install it, or set outlast:gitCommit.") from None
    except subprocess.TimeoutExpired:
        raise OperateError(f"gitUrl {url}: no answer in {ASK_SEC:.0f} s; try again.") from None
    if done.returncode == 2:
        raise OperateError(f"gitRef {ref}: is not a branch of {url}; set outlast:gitRef.")
    commit = done.stdout.partition("\t")[0].strip()
    if done.returncode or not re.fullmatch("[0-9a-f]{40}", commit):
        # By this machine's own configuration git may ask another address, with a password in it.
        said = keys.without_person((done.stderr.strip().splitlines() or ["git said nothing"])[-1])
        raise OperateError(f"gitUrl {url}: cannot be read with this machine's git ({said}).")
    return commit


def _ssh() -> str:
    return os.environ.get("GIT_SSH_COMMAND", "ssh") + " -o BatchMode=yes"


def _of(name: str | None) -> list[str]:
    return ["-s", name] if name else []
