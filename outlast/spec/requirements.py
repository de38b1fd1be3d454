"""Reads requirements files as pip does.

The program reads them at preview, so that a line that no VM can install is refused before anything
is created; the supervisor reads them again and writes one file for pip. `packaging` parses names,
versions, markers and extras; this module parses lines, options, includes, paths and addresses.

Included files become lines of the including file, so that a file can be delivered alone.
"""

import codecs
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from packaging import utils

from outlast.spec.requirement_line import (
    FLAGS,
    PACKAGE_OPTIONS,
    PKG_DEV,
    Line,
    Own,
    Requirement,
    RequirementsError,
    Tree,
    shown,
)

NAME = "requirements.txt"
CONSTRAINTS = "outlast-constraints.txt"
"""Name of the file with all constraints, beside the file for pip."""
FILE_BYTES_MAX = 4 << 20

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # Before UTF-16, whose mark is a prefix of this one.
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED = re.compile(rb"coding[:=]\s*([-\w.]+)")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")

_OTHER_FORMS = {
    "poetry.lock": "poetry export --output requirements.txt",
    "uv.lock": "uv export --output-file requirements.txt",
    "pdm.lock": "pdm export --output requirements.txt",
    "pylock.toml": "uv export --output-file requirements.txt",
    "Pipfile": "pipenv requirements --hash >requirements.txt",
    "Pipfile.lock": "pipenv requirements --hash >requirements.txt",
}
"""Files that pip cannot install from, with the command that writes one that it can."""


@dataclass(frozen=True)
class Folder:
    """The files of a folder on this machine. A link that leads out of it is not followed."""

    root: Path

    def read(self, name: str) -> bytes | None:
        path = self._inside(name)
        return path.read_bytes() if path is not None and path.is_file() else None

    def is_folder(self, name: str) -> bool:
        path = self._inside(name)
        return path is not None and path.is_dir()

    def names(self, folder: str) -> set[str]:
        path = self._inside(folder)
        found = path.iterdir() if path is not None and path.is_dir() else ()
        return {f"{one.name}/" if one.is_dir() else one.name for one in found}

    def _inside(self, name: str) -> Path | None:
        try:
            path = (self.root / name).resolve()
        except (OSError, ValueError):  # No file system has such a name.
            return None
        return path if path.is_relative_to(self.root.resolve()) else None


@dataclass(frozen=True)
class Files:
    """Files by their names."""

    named: Mapping[str, bytes]

    def read(self, name: str) -> bytes | None:
        return self.named.get(name)

    def is_folder(self, name: str) -> bool:
        return name == "." or any(other.startswith(f"{name}/") for other in self.named)

    def names(self, folder: str) -> set[str]:
        start = "" if folder == "." else f"{folder}/"
        rests = (name[len(start) :] for name in self.named if name.startswith(start))
        return {"".join(rest.partition("/")[:2]) for rest in rests}


@dataclass(frozen=True)
class Requirements:
    """The content of a requirements file and its includes."""

    wanted: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    options: tuple[str, ...] = ()
    """Lines with pip's options, such as indexes."""
    indexes: tuple[str, ...] = ()
    """The addresses of indexes among them."""
    files: tuple[str, ...] = ()
    """Every file that was read, the requested one first."""
    data: bytes = b""
    """The file itself, if it includes no other; otherwise an equivalent one."""

    @property
    def is_hashed(self) -> bool:
        """Whether pip checks every hash."""
        return "--require-hashes" in self.options or any(one.hashes for one in self.wanted)

    @property
    def locals(self) -> tuple[str, ...]:
        """Files and folders that must be beside it."""
        found = [one.source.local for one in self.wanted if one.source.local]
        links = [line.removeprefix("--find-links ") for line in self.options]
        found += [link for link in links if link.startswith("./")]
        return tuple(dict.fromkeys(found))

    @property
    def text(self) -> str:
        """One equivalent file, before any commit was fetched."""
        return self.render([one.line() for one in self.wanted])

    @property
    def constraints_text(self) -> str:
        """The content of CONSTRAINTS; empty for none."""
        return "".join(f"{line}\n" for line in dict.fromkeys(c.line() for c in self.constraints))

    def render(self, lines: Sequence[str]) -> str:
        """One file for pip with the requirements `lines`."""
        constraints = [f"-c {CONSTRAINTS}"] if self.constraints else []
        return "".join(f"{line}\n" for line in dict.fromkeys([*self.options, *constraints, *lines]))

    def place_of(self, name: str) -> str:
        """File and line of a package; empty if only another package needs it."""
        wanted = utils.canonicalize_name(name)
        return next((one.place for one in self.wanted if one.name == wanted), "")


def read(name: str, tree: Tree, *, alone: bool = False) -> Requirements:
    """Reads the requirements file `name` of `tree`. `alone`: only files that it includes are
    delivered beside it. Raises RequirementsError.
    """
    found = _Reader(tree, posixpath.dirname(name), alone)
    found.file(name, constraint=False, chain=())
    whole = Requirements(
        tuple(found.wanted),
        tuple(found.constraints),
        tuple(dict.fromkeys(found.options)),
        tuple(dict.fromkeys(found.indexes)),
        tuple(found.files),
    )
    _check_hashes(whole)
    _check_trusted(whole)
    own = found.files[name]
    return replace(whole, data=whole.text.encode() if len(found.files) > 1 else own)


def of_list(place: str, texts: Sequence[object], *, tree: Tree) -> Requirements:
    """Reads a list of requirements in a pyproject.toml, which cannot have options. Raises
    RequirementsError.
    """
    found = []
    for number, text in enumerate(texts):
        at = f"{place}[{number}]"
        if not isinstance(text, str):
            raise RequirementsError(f"{at} {text!r}: must be a text such as 'numpy>=2'; correct it")
        found.append(Line(at, text, tree, "", False).requirement(text.strip()))
    return Requirements(tuple(sorted(found, key=lambda one: one.text)))


def refuse_other_forms(name: str) -> None:
    """Raises RequirementsError for a file that only another installer reads."""
    last = posixpath.basename(name)
    if last in _OTHER_FORMS:
        raise RequirementsError(
            f"{name}: pip cannot install from it; write a file that it can:"
            f" {_OTHER_FORMS[last]}, and name that"
        )
    if last.endswith((".yml", ".yaml")):
        raise RequirementsError(_conda(name))
    if last in ("pyproject.toml", "setup.py", "setup.cfg"):
        folder = posixpath.dirname(name) or "."
        raise RequirementsError(f"{name}: is part of a project; name its folder, {folder}")


def repository(index: str) -> tuple[str, str, str] | None:
    """(project, location, name) if the index is an Artifact Registry repository, else None."""
    parts = urlsplit(index)
    match = PKG_DEV.fullmatch(parts.hostname or "")
    names = parts.path.strip("/").split("/")
    return (names[0], match["location"], names[1]) if match and len(names) > 1 else None


def grant(index: str, email: str) -> str:
    """The command that lets a service account read an index in Artifact Registry."""
    owner, location, name = repository(index) or ("", "", "")
    return (
        f"gcloud artifacts repositories add-iam-policy-binding {name} --project {owner}"
        f" --location {location} --member serviceAccount:{email} --role"
        " roles/artifactregistry.reader"
    )


def hosts_of_google(indexes: Sequence[str]) -> list[str]:
    """The hosts of indexes that accept the VM's token."""
    hosts = (urlsplit(index).hostname or "" for index in indexes)
    return sorted({host for host in hosts if PKG_DEV.fullmatch(host)})


# ---------------------------------------------------------------------------------------------
# Files


class _Reader:
    """Collects the requirements of a file and its includes."""

    def __init__(self, tree: Tree, base: str, alone: bool) -> None:
        self.wanted: list[Requirement] = []
        self.constraints: list[Requirement] = []
        self.options: list[str] = []
        self.indexes: list[str] = []
        self.files: dict[str, bytes] = {}
        self._tree = tree
        self._base = base
        self._alone = alone

    def file(self, name: str, *, constraint: bool, chain: tuple[str, ...]) -> None:
        data = self._tree.read(name)
        if data is None:
            raise RequirementsError(f"{name}: does not exist; check its name")
        self.files.setdefault(name, data)
        text = _decoded(name, data)
        _refuse_conda(name, text)
        for number, line in _logical_lines(text):
            one = Line(f"{name} line {number}", line, self._tree, self._base, self._alone)
            self._line(one, name, constraint, (*chain, name))

    def _line(self, line: Line, file: str, constraint: bool, chain: tuple[str, ...]) -> None:
        line.refuse_variables()
        asked, words = line.split()
        given = list(line.options(words))
        if asked:
            own = line.own_options(given)
            self._keep(line.requirement(asked), own, constraint)
            return
        for option, value in given:
            if option in ("-r", "-c"):
                line.alone(given, option)
                other = line.included(file, value, chain)
                self.file(other, constraint=option == "-c", chain=chain)
            elif option == "-e":
                own = line.own_options([one for one in given if one[0] != "-e"])
                self._keep(line.requirement(value), own, constraint)
                return
            else:
                self._option(line, file, option, value)

    def _keep(self, found: Requirement, own: Own, constraint: bool) -> None:
        found = replace(found, hashes=own.hashes, options=own.options)
        if not constraint:
            self.wanted.append(found)
            return
        if not found.name or found.extras or found.source.local or found.source.git:
            raise RequirementsError(
                f"{found.place} {shown(found.text)}: a constraint must be a name and its versions,"
                " without extras, paths and repositories; write it into a requirements file"
            )
        self.constraints.append(found)

    def _option(self, line: Line, file: str, option: str, value: str) -> None:
        if option in FLAGS:
            self.options.append(option)
        elif option in ("--index-url", "--extra-index-url"):
            self.indexes.append(line.index(option, value))
            self.options.append(f"{option} {self.indexes[-1]}")
        elif option == "--find-links":
            self.options.append(f"{option} {line.links(file, value)}")
        elif option in PACKAGE_OPTIONS:
            raise line.bad(f"{option} must follow its package; put them on one line")
        else:
            self.options.append(f"{option} {shlex.quote(value)}")


def _decoded(name: str, data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise RequirementsError(
            f"{name}: has {len(data)} bytes, and no requirements file needs more than"
            f" {FILE_BYTES_MAX >> 20} MiB; check its name"
        )
    mark, encoding = next((one for one in _ENCODINGS if data.startswith(one[0])), (b"", "utf-8"))
    if not mark:
        comments = [line for line in data.splitlines()[:2] if line.startswith(b"#")]
        declared = next((m[1].decode() for m in map(_DECLARED.search, comments) if m), "utf-8")
        encoding = declared
    try:
        text = data[len(mark) :].decode(encoding)
    except LookupError:
        raise RequirementsError(
            f"{name} line 1: declares the encoding {encoding!r}, which Python does not know; save"
            " the file as UTF-8"
        ) from None
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise RequirementsError(
            f"{name} line {number}: byte 0x{data[len(mark) + error.start]:02x} is not {encoding};"
            " save the file as UTF-8"
        ) from None
    if "\0" in text:
        number = text[: text.index("\0")].count("\n") + 1
        raise RequirementsError(
            f"{name} line {number}: holds a null character, so it is not text, or UTF-16 without"
            " its mark; save the file as UTF-8"
        )
    return text


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line: continued ones joined, without comments and empty ones."""
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        first = first if parts else number
        is_comment = line.lstrip().startswith("#")
        parts.append(f" {line}" if is_comment else line.rstrip("\\"))
        if line.endswith("\\") and not is_comment:
            continue
        yield from _without_comment(first, parts)
        parts = []
    yield from _without_comment(first, parts)


def _without_comment(number: int, parts: Sequence[str]) -> Iterator[tuple[int, str]]:
    if found := _COMMENT.sub("", "".join(parts)).strip():
        yield number, found


def _refuse_conda(name: str, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"(?:channels|dependencies)\s*:\s*(?:\[.*)?$", line) or line == "@EXPLICIT":
            raise RequirementsError(_conda(f"{name} line {number} {shown(line)}"))


def _conda(place: str) -> str:
    return (
        f"{place}: is a conda file, which pip cannot install from; write a requirements.txt with"
        " the packages that the trainer imports, as PyPI names them (in the environment:"
        " pip list --format=freeze), and name that"
    )


def _check_hashes(found: Requirements) -> None:
    """pip checks hashes of all packages or of none, and of one version each."""
    if not found.is_hashed:
        return
    for one in found.wanted:
        what = shown(one.text)
        if one.source.local or one.source.git:
            raise RequirementsError(
                f"{one.place} {what}: other lines have hashes, and pip checks none of a folder or a"
                " repository; name a wheel by https with its --hash, or leave all hashes out"
            )
        if not one.hashes and "#sha" not in one.source.url:
            raise RequirementsError(
                f"{one.place} {what}: has no --hash, and others have; write the file with uv pip"
                " compile --generate-hashes, or leave all hashes out"
            )
        if not one.is_pinned:
            raise RequirementsError(
                f"{one.place} {what}: has a hash, and must be one version, with ==; write the file"
                " with uv pip compile --generate-hashes"
            )


def _check_trusted(found: Requirements) -> None:
    """pip passes over an index that it does not trust, and says so in one line of many."""
    prefix = "--trusted-host "
    trusted = {line.removeprefix(prefix) for line in found.options if line.startswith(prefix)}
    for index in found.indexes:
        parts = urlsplit(index)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme == "http" and not local and not {parts.hostname, parts.netloc} & trusted:
            raise RequirementsError(
                f"{found.files[0]} --index-url {shown(index)}: pip passes over an index by http;"
                f" use https, or add the line --trusted-host {parts.netloc}"
            )
