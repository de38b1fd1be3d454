"""Interprets pip's failures: whether to try again, and what people can do.

EnvironmentRefused     the same try fails again: no such package, bad hashes; one sentence
EnvironmentUnreachable the index did not answer
Denied                 an index of Google refused; new permissions may still be spreading
"""

import re

from outlast.base.retry import Trouble
from outlast.spec import requirements
from outlast.spec.requirements import Requirements

_NETWORK = re.compile(
    r"connection broken|name resolution|timed out|timeouterror|connection (?:refused|reset)"
    r"|newconnectionerror|no route|network is unreachable|http error 5\d\d|5\d\d server error"
    r"|max retries exceeded|connection error",
    re.IGNORECASE,
)
_USERS = re.compile(
    r"no matching distribution|resolutionimpossible|do not match the hashes|hashes are required"
    r"|invalid requirement|failed building wheel|failed to build|subprocess-exited-with-error"
    r"|could not open requirements file|requires-python|requires a different python|error: invalid"
    r"|does not appear to be a python project|metadata-generation-failed|cannot find command",
    re.IGNORECASE,
)
_NO_ROOM = re.compile(r"no space left|errno 28|disk quota exceeded", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(?P<status>40[13]) (?:client )?error[^\n]*?https?://(?P<host>[^/\s:]+)"
    r"|http error (?P<status2>40[13]) while getting https?://(?P<host2>[^/\s:]+)",
    re.IGNORECASE,
)
_NO_GIT = re.compile(r"cannot find command ['\"]?git", re.IGNORECASE)
_BUILD = re.compile(
    r"failed building wheel|failed to build|subprocess-exited-with-error|metadata-generation-failed"
    r"|does not appear to be a python project",
    re.IGNORECASE,
)
_ACCESS = "give the VM access to the package index"
_MISSING = re.compile(r"no matching distribution found for (?P<name>[A-Za-z0-9][\w.-]*)", re.I)


class EnvironmentRefused(Exception):
    """The packages cannot be installed as requested."""


class EnvironmentUnreachable(Exception):
    """It may work later, or on another machine."""

    trouble = Trouble.SILENT


class Denied(Exception):
    """An index that takes this VM's token did not let it in; new permissions may be spreading."""

    trouble = Trouble.FORBIDDEN


def meaning(
    what: str, said: str, asked: Requirements | None, email: str, *, builds: bool
) -> tuple[type[Exception], str]:
    """The error to raise for pip's output, and its first sentence. ``asked`` are the requirements;
    None for the project itself, or if nothing is built (``builds``)."""
    if _NO_ROOM.search(said):
        return EnvironmentRefused, f"{what}: the VM's boot disk is full; set outlast:bootDiskGb"
    if _NETWORK.search(said):
        return EnvironmentUnreachable, f"{what}; {_ACCESS}"
    denied = [
        (one["host"] or one["host2"], one["status"] or one["status2"])
        for one in _DENIED.finditer(said)
    ]
    google = {requirements.hosts_of_google([index])[0]: index for index in _google(asked)}
    for host, status in denied:
        if host in google:
            return Denied, (
                f"{what}: the index {host} answered {status}; let this VM read it:"
                f" {requirements.grant(google[host], email)}"
            )
    for host, status in denied:
        if status == "401":
            return EnvironmentRefused, (
                f"{what}: the index {host} answered 401; use one that needs no password, or keep"
                " the packages in Artifact Registry, which a VM reads with its own token"
            )
    if _NO_GIT.search(said):
        return EnvironmentRefused, (
            f"{what}: a package needs another one from git, but the image has no git; add the "
            "other one to the requirements as NAME @ git+https://HOST/OWNER/NAME.git@COMMIT"
        )
    if not _USERS.search(said) and not denied:
        return EnvironmentUnreachable, f"{what}; {_ACCESS}"
    if builds and asked is None and _BUILD.search(said):
        return EnvironmentRefused, (
            f"{what}: its build failed; correct pyproject.toml or, if the project need not be"
            " built (its modules are in outlast:source), set package = false under [tool.uv]"
        )
    missing = _MISSING.search(said)
    place = asked.place_of(missing["name"]) if asked and missing else ""
    at = f": {place} {missing['name']}" if missing and place else ""
    # An index may give this answer for a package that it does not have.
    answered = f" (the index {denied[0][0]} answered {denied[0][1]})" if denied else ""
    return EnvironmentRefused, f"{what}{at}{answered}; correct outlast:requirements"


def _google(asked: Requirements | None) -> list[str]:
    """The indexes that take the VM's own token."""
    indexes = asked.indexes if asked else ()
    return [index for index in indexes if requirements.hosts_of_google([index])]
