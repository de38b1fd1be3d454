"""Where a VM gets its code: the rules of the `delivery` and `git…` settings, and the part that the
VM gets.

The program and the supervisor share it. It knows only the names of secrets.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from outlast.base.codec import canonical_json
from outlast.spec import secrets

BUCKET = "bucket"
IMAGE = "image"
GIT = "git"
KINDS = (BUCKET, IMAGE, GIT)

GIT_KEYS = ("gitUrl", "gitCommit", "gitPath", "gitRef", "gitSecret")
"""Settings that are strings; `gitHostKeys` is a list."""

VALUE_LIMIT = 262_144
"""Bytes that the platform allows one metadata value (Metadata, discovery document compute v1,
revision 20261106)."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# No part begins with a dash, which ssh would read as an option.
_SCP = re.compile(
    r"(?P<user>(?!-)[\w.-]+)@(?P<host>(?!-)[\w.-]+):(?P<path>(?!//|-)[^\s:]+)", re.ASCII
)
# ssh would read a leading dash as an option, and its configuration may pass the name to a shell.
_HOST = re.compile(r"(?!-)[\w.-]+|[0-9A-Fa-f:.]+", re.ASCII)
_USER = re.compile(r"(?!-)[\w.+%~-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REF = re.compile(r"(?![-/.])(?!.*(?:\.\.|//|@\{|\.lock$|[/.]$))[^\s~^:?*\[\\\x00-\x1f]+")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST_KEY = re.compile(
    r"(?P<hosts>[^\s|#@]\S*) (?:ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}(?: .*)?"
)


class DeliveryError(ValueError):
    """A setting breaks a rule; the message is a sentence that begins with the setting's name."""


@dataclass(frozen=True)
class Remote:
    """The parts of a repository's address."""

    scheme: str
    """`https`, `ssh`, or `http` on this machine's own loopback."""
    user: str
    host: str
    port: int | None
    path: str
    """Without a slash at the start if the address, such as git@host:path, has none."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises DeliveryError for an address that no VM could or should use."""
        scp = _SCP.fullmatch(url)
        if scp is not None and "://" not in url:
            return cls("ssh", scp["user"], scp["host"], None, scp["path"])
        try:
            parts = urlsplit(url)
            port, password = parts.port, parts.password
        except ValueError:
            parts, port, password = urlsplit(""), None, None
        # An address with a password is never shown.
        user = parts.username or ""
        if password is not None or secrets.looks_secret(user):
            raise DeliveryError(
                f"gitUrl of {parts.hostname}: holds a password; keep it as a secret of Secret"
                " Manager, name that in outlast:gitSecret, and take it out of the address"
            )
        local = parts.scheme == "http" and parts.hostname in _LOOPBACK
        host = parts.hostname or ""
        good = (parts.scheme in ("https", "ssh") or local) and _HOST.fullmatch(host)
        good = good and _USER.fullmatch(user)
        if not good or not parts.path.strip("/") or re.search(r"\s", url):
            raise DeliveryError(
                f"gitUrl {url!r}: must be an address such as https://HOST/OWNER/NAME.git,"
                " ssh://git@HOST/OWNER/NAME.git or git@HOST:OWNER/NAME.git; set outlast:gitUrl"
            )
        if parts.query or parts.fragment:
            raise DeliveryError(
                f"gitUrl of {parts.hostname}: has a query or a fragment, which no repository's"
                " address needs; leave it out"
            )
        return cls(parts.scheme, user, host, port, parts.path)

    @property
    def authority(self) -> str:
        """Host and port as an address has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def known_as(self) -> str:
        """The host as a line of known_hosts names it."""
        return self.host if self.port in (None, 22) else f"[{self.host}]:{self.port}"


@dataclass(frozen=True)
class Git:
    """A commit of a repository, and how to fetch it."""

    url: str
    commit: str
    """All 40 digits."""
    path: str = ""
    """Folder of the repository to work in; empty for the whole repository."""
    requirements: str = ""
    """File or folder below `path` whose packages the trainer needs; empty for none."""
    secret: str = ""
    """`projects/P/secrets/NAME/versions/V` of a token, or of a deploy key; empty for none."""
    host_keys: tuple[str, ...] = ()
    """Lines of known_hosts for an ssh host."""

    @property
    def remote(self) -> Remote:
        return Remote.parse(self.url)

    @property
    def source(self) -> str:
        """Replaces the digest of the source in the run's identity; the repository's address is not
        part of it.
        """
        return f"git:{self.commit}:{self.path}"

    def lend(self, other: "Git") -> "Git":
        """Another repository, with this one's secret if both are read by https from the same host
        and port: a token is sent nowhere else.
        """
        here, there = self.remote, other.remote
        if here.scheme == "ssh" or (here.scheme, here.authority) != (there.scheme, there.authority):
            return other
        return replace(other, secret=self.secret)

    def to_json(self) -> str:
        """JSON for the metadata; empty fields are left out."""
        kept = {key: value for key, value in asdict(self).items() if value}
        return canonical_json(kept).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError for anything that `to_json` did not write."""
        try:
            found = json.loads(text)
            kept = cls(**{**found, "host_keys": tuple(found.get("host_keys", ()))})
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"git {text[:80]!r}: must be JSON of a commit to fetch") from None
        texts = (kept.url, kept.commit, kept.path, kept.requirements, kept.secret, *kept.host_keys)
        if not all(isinstance(one, str) for one in texts):
            raise ValueError(f"git {text[:80]!r}: each field must be a text")
        if not _COMMIT.fullmatch(kept.commit):
            raise ValueError(f"git commit {kept.commit!r}: must have 40 digits")
        kept.remote  # noqa: B018 - checks the address
        return kept


@dataclass(frozen=True)
class Delivery:
    """The checked settings."""

    kind: str
    git: Git | None = None
    ref: str = ""
    """Branch that `outlast up --latest` follows; empty for none."""


def check(
    texts: Mapping[str, str],
    host_keys: Sequence[Any],
    *,
    project: str,
    source: str,
) -> Delivery:
    """The delivery that the settings ask for. `texts`: `delivery`, `requirements`, GIT_KEYS;
    `source` is the setting of that name. Raises DeliveryError."""
    kind = texts["delivery"]
    if kind != GIT:
        for key in (*GIT_KEYS, "gitHostKeys"):
            if texts.get(key) or (key == "gitHostKeys" and host_keys):
                raise DeliveryError(
                    f"{key} beside outlast:delivery {kind}: is for code from git; set"
                    f" outlast:delivery to {GIT}, or leave out {key}"
                )
        return Delivery(kind)
    if not texts["gitUrl"]:
        raise DeliveryError(
            "gitUrl: is not set, and outlast:delivery is git; set outlast:gitUrl to the"
            " repository's address"
        )
    remote = Remote.parse(texts["gitUrl"])
    if source:
        raise DeliveryError(
            f"source {source!r} beside outlast:delivery git: is a folder of this checkout; name"
            " the repository's own in outlast:gitPath, and leave out outlast:source"
        )
    git = Git(
        url=texts["gitUrl"],
        commit=_commit(texts["gitCommit"], texts["gitRef"]),
        path=_inside("gitPath", texts["gitPath"], "folder of the repository"),
        requirements=_inside(
            "requirements", texts["requirements"], "file or folder below outlast:gitPath"
        ),
        secret=_secret_name(texts["gitSecret"], project),
        host_keys=_host_keys(remote, host_keys),
    )
    if remote.scheme == "ssh" and not git.secret:
        raise DeliveryError(
            f"gitSecret: is not set, and {remote.host} is reached by ssh; keep a deploy key as a"
            " secret of Secret Manager and name it in outlast:gitSecret"
        )
    return Delivery(GIT, git, _ref(texts["gitRef"]))


def check_module(name: str) -> str:
    """Checks the name of the user's trainer, a module in the delivered folder."""
    if not _MODULE.fullmatch(name):
        raise DeliveryError(
            f"trainer {name!r}: must be the name of a Python module, NAME.py or NAME/ in the"
            " delivered folder; set outlast:trainer"
        )
    return name


def _commit(text: str, ref: str) -> str:
    if not text and ref:
        raise DeliveryError(
            f"gitCommit: is not set; run outlast up --latest, which writes the commit that"
            f" {ref} is at"
        )
    if not _COMMIT.fullmatch(text):
        raise DeliveryError(
            f"gitCommit {text!r}: must be all 40 digits, 0-9 and a-f, because a short name or a"
            " branch may mean another commit tomorrow; set outlast:gitCommit, in quotes, to what"
            " git rev-parse prints"
        )
    return text


def _inside(key: str, text: str, what: str) -> str:
    path = text.strip().rstrip("/")
    if path in ("", "."):
        return path
    parts = path.split("/")
    if "" in parts or "\\" in path or any(part in (".", "..", ".git") for part in parts):
        raise DeliveryError(
            f"{key} {text!r}: must be a {what}, without .. in it; set outlast:{key}"
        )
    return path


def _ref(text: str) -> str:
    if text and not _REF.fullmatch(text):
        raise DeliveryError(
            f"gitRef {text!r}: must be a branch such as main; set outlast:gitRef or leave it empty"
        )
    return text


def _secret_name(text: str, project: str) -> str:
    try:
        return secrets.check_name("gitSecret", text, project)
    except secrets.SecretNameError as error:
        raise DeliveryError(str(error)) from None


def _host_keys(remote: Remote, lines: Sequence[Any]) -> tuple[str, ...]:
    if remote.scheme != "ssh":
        if lines:
            raise DeliveryError(
                f"gitHostKeys beside an address of {remote.scheme}: are for ssh hosts; leave"
                " out outlast:gitHostKeys"
            )
        return ()
    for line in lines:
        match = _HOST_KEY.fullmatch(line) if isinstance(line, str) else None
        if match is None:
            raise DeliveryError(
                f"gitHostKeys {line!r}: must be a line as ssh-keyscan prints it, HOST TYPE KEY; set"
                " outlast:gitHostKeys"
            )
        if remote.known_as not in match["hosts"].split(","):
            raise DeliveryError(
                f"gitHostKeys of {match['hosts']}: are not for {remote.known_as}, which"
                " outlast:gitUrl names; set outlast:gitHostKeys"
            )
    if not lines:
        port = f" -p {remote.port}" if remote.port else ""
        raise DeliveryError(
            f"gitHostKeys: is empty, and a VM talks to no ssh host that it cannot recognise; take"
            f" the lines of ssh-keyscan{port} {remote.host}, compare them with what the host"
            " publishes, and set outlast:gitHostKeys"
        )
    return tuple(lines)
