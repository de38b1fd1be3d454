"""Brings a stack up, on request with the newest commit of its branch, and destroys it."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.bucket.head import HeadError
from outlast.bucket.standing import end_if_expired
from outlast.bucket.store import StoreError
from outlast.cli import boots, engine, leftovers, stack
from outlast.cli.errors import OperateError, UsageError
from outlast.spec import keys
from outlast.spec.delivery import DeliveryError, Remote

ASK_SEC = 60.0
FIRST_TRY_SEC = 10.0
"""Seconds that a group gets for its first try to create a VM."""


@dataclass(frozen=True)
class Latest:
    """The newest commit of a stack's branch."""

    ref: str
    commit: str
    before: str
    """The stack's previous commit; empty for none."""


@dataclass(frozen=True)
class Upped:
    """A stack that is up."""

    experiment: str
    """Its name, if it has a run; empty for a foundation."""
    why: str = ""
    """Why its group creates no VM, if the platform says so within seconds."""


def up(name: str | None, flags: Sequence[str] = (), *, aside: bool = False) -> Upped:
    """Runs `pulumi up` of the stack, or of the selected one, with `flags` of Pulumi's; its output
    goes to this terminal, with `aside` to stderr.

    Raises EngineError if it ends with an error, which it has printed.
    """
    engine.show_engine(
        ["up", "--yes", "--skip-preview", *_of(name), *flags], env=os.environ, aside=aside
    )
    try:
        found = name or engine.run_engine(["stack", "--show-name"], env=os.environ).strip()
        group = stack.find(found).group
    except OperateError:
        return Upped("")  # a foundation
    return Upped(found, boots.stuck(group, patience_sec=FIRST_TRY_SEC) if group else "")


def destroy(name: str, flags: Sequence[str] = (), *, aside: bool = False) -> str:
    """Runs `pulumi destroy` of the stack, with `flags` of Pulumi's, and deletes what its state has
    lost; returns what remains of its run, in words.

    A run that is open past its deadline is ended as expired, because no VM will do it. Raises
    EngineError as `up` does.
    """
    try:
        deployed = stack.find(name)  # Its outputs are deleted with it.
    except OperateError:
        deployed = None  # A foundation, or a stack that was never complete.
    place = leftovers.place_of(name)
    command = ["destroy", "--yes", "--skip-preview", *_of(name), *flags]
    engine.show_engine(command, env=os.environ, aside=aside)
    if place and not _is_partial(flags):
        leftovers.delete(place)
    return _left(deployed) if deployed else ""


def _is_partial(flags: Sequence[str]) -> bool:
    """Whether a destroy only shows, or only concerns a part of the stack."""
    some = ("--preview-only", "--target", "-t", "--exclude", "-x")
    return any(flag.partition("=")[0] in some for flag in flags)


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
    """Writes the newest commit of `gitRef` into the stack's configuration.

    Uses the credentials of this machine's git. Raises UsageError if the stack follows no branch,
    and OperateError if the repository cannot be read or has no such branch.
    """
    import json

    text = engine.run_engine(["config", "--json", *_of(name)], env=os.environ)
    config = {key: entry.get("value", "") for key, entry in json.loads(text).items()}
    url, ref = config.get("outlast:gitUrl", ""), config.get("outlast:gitRef", "")
    if not url or not ref:
        missing = "gitRef" if url else "gitUrl"
        raise UsageError(
            f"outlast:{missing}: is not set, so there is no branch to follow; set outlast:gitUrl"
            " and outlast:gitRef, or leave out --latest."
        )
    commit = resolve(url, ref)
    engine.run_engine(["config", "set", "outlast:gitCommit", commit, *_of(name)], env=os.environ)
    return Latest(ref, commit, config.get("outlast:gitCommit", ""))


def resolve(url: str, ref: str) -> str:
    """The newest commit of a branch. Raises UsageError if no VM could use the address, or if it
    contains a password; then it is passed to no other program.
    """
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
            # There is no terminal for questions.
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
        said = keys.without_person(
            (done.stderr.strip().splitlines() or ["git printed nothing"])[-1]
        )
        raise OperateError(f"gitUrl {url}: cannot be read with this machine's git ({said}).")
    return commit


def _ssh() -> str:
    return os.environ.get("GIT_SSH_COMMAND", "ssh") + " -o BatchMode=yes"


def _of(name: str | None) -> list[str]:
    return ["-s", name] if name else []
