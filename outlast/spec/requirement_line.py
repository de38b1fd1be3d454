"""One line of a requirements file: a package, an address, a path, or options, as pip reads them.

`packaging` parses names, versions, markers and extras; this module parses the rest. What no VM can
install is refused with the line and the remedy.
"""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from packaging import markers, utils
from packaging import requirements as pep508

from outlast.spec.delivery import DeliveryError, Git, Remote

SHOWN = 120
"""The most characters of a line that a message shows."""

PACKAGE_OPTIONS = {"--hash", "--global-option", "--config-settings", "--config-setting", "-C"}
"""Options of one package, on its own line."""
FLAGS = {"--no-index", "--pre", "--prefer-binary", "--require-hashes"}
_VALUES = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--pypi-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
    "--trusted-host": "--trusted-host",
    "--use-feature": "--use-feature",
}
_FILES = {
    "-r": "-r",
    "--requirement": "-r",
    "--requirements": "-r",
    "-c": "-c",
    "--constraint": "-c",
    "--constraints": "-c",
    "-e": "-e",
    "--editable": "-e",
}
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_ADDRESS = re.compile(r"(?P<vcs>git|hg|svn|bzr)\+|(?P<scheme>[a-z][a-z0-9+.-]*):", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tar\.gz|tgz|tar\.bz2|tbz|tar\.xz|txz|tlz)$", re.I)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_EXTRAS = re.compile(r"(?P<rest>.+?)\s*(?P<extras>\[[^\[\]]*\])")
_HASH = re.compile(r"sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})", re.I)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.I)
_CONDA = re.compile(r"(?P<name>[A-Za-z0-9._-]+)=(?P<version>[0-9][^=\s]*)(?:=\S*)?")
PKG_DEV = re.compile(r"(?P<location>[a-z0-9-]+)-python\.pkg\.dev")
"""The hosts of Artifact Registry's Python repositories."""


class RequirementsError(ValueError):
    """Packages that no VM can install as requested; the message is a sentence that begins with the
    file and, if known, the line.
    """


class Tree(Protocol):
    """The files that come with a requirements file, by names with forward slashes."""

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None if there is no such file."""
        ...

    def is_folder(self, name: str) -> bool: ...

    def names(self, folder: str) -> set[str]:
        """The names in a folder; folders end with a slash."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a requirement comes from, if not from an index; at most one of them is set."""

    url: str = ""
    """An archive or a wheel by https."""
    local: str = ""
    """A file or folder, relative to the folder of the file that is installed."""
    git: Git | None = None
    """A commit; `path` is the folder of the project in it."""


@dataclass(frozen=True)
class Requirement:
    """One requested or constrained package."""

    place: str
    """File and line, for messages."""
    text: str
    """In pip's form, without hashes and other options; equal for the same meaning."""
    name: str = ""
    """Canonical name; empty if only a build would show it."""
    extras: str = ""
    """`[a,b]`, or empty."""
    marker: str = ""
    source: Source = field(default_factory=Source)
    hashes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Its options, in pip's form."""

    @property
    def is_pinned(self) -> bool:
        """Whether it allows only one version."""
        if self.source != Source():
            return bool(self.source.url)
        versions = list(pep508.Requirement(self.text).specifier)
        return len(versions) == 1 and (
            versions[0].operator == "==="
            or (versions[0].operator == "==" and not versions[0].version.endswith(".*"))
        )

    def applies(self) -> bool:
        """Whether this machine needs it."""
        return not self.marker or markers.Marker(self.marker).evaluate()

    def line(self, path: str = "") -> str:
        """The line for pip; `path` is the folder of a fetched commit."""
        text = self.text
        if path:
            text = f"{path}{self.extras}" + (f" ; {self.marker}" if self.marker else "")
        hashes = (f"--hash={one}" for one in self.hashes)
        return " \\\n    ".join([text, *self.options, *hashes])


def shown(text: str) -> str:
    """A line as shown in a message: short, and without a password."""
    clean = _USERINFO.sub("***@", " ".join(text.split()))
    return repr(clean if len(clean) <= SHOWN else f"{clean[:SHOWN]}…")


@dataclass(frozen=True)
class Own:
    """Options of one package."""

    hashes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One line, and what its words mean."""

    place: str
    text: str
    tree: Tree
    base: str
    """Folder of the file that is installed: pip runs there."""
    is_alone: bool

    def bad(self, why: str) -> RequirementsError:
        return RequirementsError(f"{self.place} {shown(self.text)}: {why}")

    def refuse_variables(self) -> None:
        if found := _VARIABLE.search(self.text):
            raise self.bad(
                f"pip on a VM has no variable {found[0]}; write the value, or for a password keep"
                " the packages in Artifact Registry, which a VM reads with its own token"
            )

    def split(self) -> tuple[str, list[str]]:
        """The requirement, and the words of the options after it."""
        found = re.search(r"(?:^|(?<=\s))-", self.text)
        at = found.start() if found else len(self.text)
        try:
            return self.text[:at].strip(), shlex.split(self.text[at:])
        except ValueError as error:
            raise self.bad(f"its quotes do not match ({error}); correct them") from None

    def options(self, words: list[str]) -> Iterator[tuple[str, str]]:
        """Each option by its long name, and its value."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=")
            if not word.startswith("--") and len(word) > 2:
                option, equals, value = word[:2], "=", word[2:]  # -rbase.txt
            if option in FLAGS and not equals:
                yield option, ""
                continue
            known = _VALUES.get(option) or _FILES.get(option)
            if known is None and option not in PACKAGE_OPTIONS:
                raise self.bad(
                    f"{word.partition('=')[0]} is not an option in a requirements file; leave it"
                    " out"
                )
            if not equals:
                if not rest:
                    raise self.bad(f"{option} has no value; add it, or leave out the option")
                value = rest.pop(0)
            yield known or option, value

    def own_options(self, given: Sequence[tuple[str, str]]) -> Own:
        """Options after a package, which apply only to it."""
        hashes, options = [], []
        for option, value in given:
            if option not in PACKAGE_OPTIONS:
                raise self.bad(f"pip ignores {option} on a package's line; put it on its own line")
            if option == "--hash":
                if not _HASH.fullmatch(value):
                    raise self.bad(
                        f"--hash={value[:20]}… must be sha256: and 64 hexadecimal digits (or"
                        " sha384, sha512); write the file with uv pip compile --generate-hashes"
                    )
                hashes.append(value.lower())
            else:
                options.append(f"{option} {shlex.quote(value)}")
        return Own(tuple(sorted(hashes)), tuple(options))

    def alone(self, given: Sequence[tuple[str, str]], option: str) -> None:
        if len(given) > 1:
            raise self.bad(f"{option} must be alone on its line; put the rest on another")

    def included(self, file: str, value: str, chain: tuple[str, ...]) -> str:
        """The file that this line includes."""
        if "://" in value:
            raise self.bad(
                "a file at an address may change while the run stays the same; keep a copy beside"
                " this file and name that"
            )
        name = posixpath.normpath(posixpath.join(posixpath.dirname(file), value))
        if value.startswith(("/", "~", "file:")) or "\\" in self.text:
            raise self.bad("must be a path relative to this file, with forward slashes; correct it")
        if name.startswith("../") or name == "..":
            raise self.bad(f"{value} is outside of what is delivered; move it beside this file")
        if name in chain:
            raise self.bad(f"{value} includes this file again; leave one of them out")
        if self.tree.read(name) is None:
            raise self.bad(
                f"{name} does not exist, or is ignored by git or is a file that must not leave "
                "this machine; check its name"
            )
        return name

    def index(self, option: str, value: str) -> str:
        """The address of an index."""
        parts = self._parts(value)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise self.bad(f"{option} must be an address with https; correct it")
        self._refuse_password(value)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def links(self, file: str, value: str) -> str:
        """An address, or a path relative to `base`."""
        if value.startswith(("https://", "http://")):
            self._refuse_password(value)
            return value
        beside = posixpath.relpath(
            posixpath.join(posixpath.dirname(file) or ".", value), self.base or "."
        )
        return f"./{self._local(beside if self._is_there(beside) else value)}"

    def requirement(self, asked: str) -> Requirement:
        """A package, an address or a path."""
        if _DRIVE.match(asked) or ("\\" in asked and "://" not in asked):
            raise self.bad("a path must be relative and with forward slashes; correct it")
        if beside := re.match(r"file:(?!/)(?P<path>[^#]+)", asked):  # as pip-compile writes -e .
            return self._path(beside["path"])
        if _ADDRESS.match(asked):
            return self._address(asked)
        name, at, url = asked.partition("@")
        if (not at or "/" in name) and _looks_like_path(asked):
            return self._path(asked)
        try:
            found = pep508.Requirement(asked)
        except pep508.InvalidRequirement as error:
            raise self.bad(_why_invalid(asked, str(error))) from None
        if found.url is not None:
            rest, marker = found.url, str(found.marker or "")
            one = self._at(rest, marker)
            return _named(one, found.name, "".join(_extras(found.extras)), found.url)
        if utils.canonicalize_name(found.name) == "python":
            raise self.bad(
                "Python is not a package of the index; it comes with the VM's image; leave out the"
                " out"
            )
        return Requirement(
            self.place,
            str(found),
            utils.canonicalize_name(found.name),
            _extras(found.extras),
            str(found.marker or ""),
        )

    def _address(self, asked: str) -> Requirement:
        """An address without a name before it; its fragment may have one."""
        url, marker = _marker_apart(asked)
        one = self._at(url, self._marker(marker))
        egg = re.search(r"[#&]egg=([^&]+)", url)
        if egg is None:
            return one
        match = _EXTRAS.fullmatch(unquote(egg[1]))
        name, extras = (match["rest"], match["extras"]) if match else (unquote(egg[1]), "")
        return _named(one, name, extras, url)

    def _at(self, url: str, marker: str) -> Requirement:
        """A package at an address."""
        match = _ADDRESS.match(url)
        vcs, scheme = (match["vcs"] or "", match["scheme"] or "") if match else ("", "")
        tail = f" ; {marker}" if marker else ""
        if vcs.lower() == "git":
            git = self._git(url[4:])
            return Requirement(self.place, f"{url}{tail}", marker=marker, source=Source(git=git))
        if vcs or scheme.lower() in ("git", "ssh", "svn", "hg"):
            raise self.bad(
                f"a VM has no {vcs or 'program'} to read it with; name a commit as"
                " git+https://HOST/OWNER/NAME.git@COMMIT, or a wheel or an archive by https"
            )
        if scheme.lower() == "file":
            raise self.bad(
                "names a file of your machine, which no VM has (pip freeze writes such lines);"
                " write the name and the version, NAME==VERSION"
            )
        if not scheme:
            raise self.bad("the part after @ must be an address; write a path alone, such as ./lib")
        if scheme.lower() not in ("https", "http"):
            raise self.bad(
                f"pip cannot read {scheme}:; name a wheel or an archive by https, or put it"
                " into the folder that outlast:requirements names"
            )
        self._refuse_password(url)
        return Requirement(self.place, f"{url}{tail}", marker=marker, source=Source(url=url))

    def _git(self, address: str) -> Git:
        """A commit, which is fetched without a git program."""
        url, _, fragment = address.partition("#")
        before, at, commit = url.rpartition("@")
        if not at or "/" in commit.strip("/") and not _COMMIT.fullmatch(commit):
            before, commit = url, ""
        if not before.startswith(("https://", "http://127.0.0.1:")):
            raise self.bad(
                "a VM has no git program and no key; write git+https://HOST/OWNER/NAME.git@COMMIT"
                " of a repository that is public or is opened by outlast:gitSecret on the host of"
                " outlast:gitUrl, or put a wheel beside this file"
            )
        self._refuse_password(before)
        if not _COMMIT.fullmatch(commit):
            found = commit or "no commit"
            raise self.bad(
                f"names {found}, and must name a commit by its 40 digits, because a branch or a tag"
                f" may move; write git+{before}@COMMIT, which git ls-remote {before} prints"
            )
        folder = re.search(r"(?:^|&)subdirectory=([^&]+)", fragment)
        path = posixpath.normpath(unquote(folder[1])) if folder else ""
        if path.startswith(("/", "..")):
            raise self.bad(f"subdirectory {path} is outside of the repository; correct it")
        try:
            Remote.parse(before)
        except DeliveryError:
            raise self.bad(
                "must be an address such as git+https://HOST/OWNER/NAME.git@COMMIT; correct it"
            ) from None
        return Git(before, commit.lower(), "" if path == "." else path)

    def _path(self, asked: str) -> Requirement:
        text, _, marker = (part.strip() for part in asked.partition(";"))
        marker = self._marker(marker)
        match = _EXTRAS.fullmatch(text)
        path, extras = (match["rest"], match["extras"]) if match else (text, "")
        local = self._local(path)
        tail = f" ; {marker}" if marker else ""
        return Requirement(
            self.place,
            f"./{local}{extras}{tail}",
            extras=extras,
            marker=marker,
            source=Source(local=local),
        )

    def _local(self, path: str) -> str:
        """A path relative to where pip runs."""
        if path.startswith(("/", "~")):
            raise self.bad(
                "names a path on your machine, which no VM has; put it into the folder that"
                " outlast:requirements names, and write a relative path"
            )
        if self.is_alone:
            raise self.bad(
                "names a file beside this one, which is delivered alone; set"
                " outlast:requirements to the folder that holds both"
            )
        local = posixpath.normpath(path)
        name = posixpath.normpath(posixpath.join(self.base, local))
        if name == ".." or name.startswith("../"):
            raise self.bad(f"{path} is outside of what is delivered; put it into the folder")
        if not self._is_there(local):
            raise self.bad(f"{name} does not exist, or is not delivered; check its name")
        return local

    def _is_there(self, local: str) -> bool:
        name = posixpath.normpath(posixpath.join(self.base, local))
        return self.tree.is_folder(name) or self.tree.read(name) is not None

    def _marker(self, text: str) -> str:
        try:
            return str(markers.Marker(text)) if text else ""
        except markers.InvalidMarker as error:
            why = _first(str(error))
            raise self.bad(f"its condition is not valid ({why}); correct it") from None

    def _parts(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018 - checks it
        except ValueError as error:
            raise self.bad(f"is not an address ({error}); correct it") from None
        return parts

    def _refuse_password(self, url: str) -> None:
        parts = self._parts(url)
        if "@" not in parts.netloc or parts.netloc.startswith("oauth2accesstoken@"):
            return
        if PKG_DEV.fullmatch(parts.hostname or ""):
            raise self.bad("holds a key; remove it: a VM reads this host with its own token")
        raise self.bad(
            "holds a password or a token, which must not be in a file; remove it, and keep"
            " private packages in Artifact Registry, which a VM reads with its own token, or as"
            " wheels beside this file"
        )


def _named(one: Requirement, name: str, extras: str, url: str) -> Requirement:
    tail = f" ; {one.marker}" if one.marker else ""
    text = f"{name}{extras} @ {url}{tail}"
    return replace(one, name=utils.canonicalize_name(name), extras=extras, text=text)


def _extras(names: set[str]) -> str:
    return f"[{','.join(sorted(names))}]" if names else ""


def _marker_apart(text: str) -> tuple[str, str]:
    """An address, which may hold a semicolon, and the condition after it."""
    rest, _, marker = re.sub(r"\s+;|;\s+", "\0", text, count=1).partition("\0")
    return rest.strip(), marker.strip()


def _looks_like_path(asked: str) -> bool:
    text = asked.partition(";")[0].strip()
    match = _EXTRAS.fullmatch(text)
    path = match["rest"] if match else text
    return path.startswith(".") or "/" in path or bool(_ARCHIVE.search(path))


def _why_invalid(asked: str, why: str) -> str:
    conda = _CONDA.fullmatch(asked)
    if conda:
        return (
            "is conda's form, and pip's has two equals signs; write"
            f" {conda['name']}=={conda['version']}, as PyPI has it"
        )
    return f"is not a requirement ({_first(why)}); write such as 'numpy>=2'"


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
