"""The trainer's own packages: wheels made once, kept in the bucket, installed offline ever after.

What is needed is a requirements file, or a folder with a `requirements.txt`, a `pyproject.toml`, or
both. On the first VM pip makes a wheel of everything, kept under the experiment as one zip,
`environments/<key>.zip`. The key is a digest of what was asked for and of the interpreter. A later
boot installs those very files, without a resolver and without a network. A project's own wheel has
a key of its own, so that a changed line of code fetches no dependency anew.

    EnvironmentRefused     the same try fails again: no such package, bad hashes; one sentence
    EnvironmentUnreachable the index did not answer, or the machine has no room
"""

import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.base.retry import Patience
from outlast.bucket.store import (
    NotFound,
    Object,
    PreconditionFailed,
    Store,
    StoreError,
)
from outlast.spec import identity
from outlast.supervisor import errand

Say = Callable[[str], None]

PROJECT = "pyproject.toml"
FILE = "requirements.txt"
MARK = ".complete"
"""In an environment: what it is of, once it is whole."""
HASHED = "--require-hashes"
TRIES = 3
LAST_LINES = 20
BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a zip raises that is none, or is encrypted, or is damaged inside."""

_OTHER_FILES = re.compile(
    r"^\s*(?:-r|-c|-e|--requirement|--constraint|--editable|\.|/|file:)", re.M
)
_NETWORK = re.compile(
    r"connection broken|name resolution|timed out|timeouterror|connection (?:refused|reset)"
    r"|newconnectionerror|no route|network is unreachable|no space left|http error 5\d\d",
    re.IGNORECASE,
)
_USERS = re.compile(
    r"no matching distribution|resolutionimpossible|do not match the hashes|hashes are required"
    r"|invalid requirement|failed building wheel|failed to build|subprocess-exited-with-error"
    r"|could not open requirements file|requires-python|requires a different python|error: invalid"
    r"|does not appear to be a python project|metadata-generation-failed",
    re.IGNORECASE,
)


class EnvironmentRefused(Exception):
    """The packages cannot be had as they are asked for."""


class EnvironmentUnreachable(Exception):
    """Another time, or another machine, may do."""


@dataclass(frozen=True)
class Layer:
    """Wheels that are made, kept and fetched together."""

    name: str
    key: str
    argv: tuple[str, ...]
    """What pip is to make wheels of."""
    folder: Path
    """Where pip runs."""


def layers(need: Path) -> list[Layer]:
    """What a requirements file, or a folder of a project, asks for. EnvironmentRefused: nothing."""
    if need.is_file():
        return [_requirements(need)]
    project, file = need / PROJECT, need / FILE
    found = [_requirements(file)] if file.is_file() else []
    if project.is_file():
        found += _project(need, locked=bool(found))
    if not found:
        raise EnvironmentRefused(
            f"requirements {need.name}: holds neither {PROJECT} nor {FILE}; set"
            " outlast:requirements to a folder that does, or to a file"
        )
    return found


def _requirements(file: Path) -> Layer:
    text = file.read_text(errors="replace")
    others = identity.files_digest(_files(file.parent)) if _OTHER_FILES.search(text) else ""
    hashed = (HASHED,) if "--hash=" in text else ()
    key = _key({"requirements": text, "others": others})
    return Layer("requirements", key, (*hashed, "--requirement", file.name), file.parent)


def _project(folder: Path, *, locked: bool) -> list[Layer]:
    """The project's own wheel, and a layer of its dependencies where they can be told without
    building it and no lock file names them."""
    try:
        stated = tomllib.loads((folder / PROJECT).read_text())
    except (ValueError, OSError) as error:
        raise EnvironmentRefused(f"{PROJECT}: is not valid TOML ({error}); mend it") from None
    table = stated.get("project")
    if not isinstance(table, dict) and "build-system" not in stated:
        if locked:
            return []  # settings of tools; the requirements are what counts
        raise EnvironmentRefused(f"{PROJECT}: has no [project]; add it, or a {FILE} beside it")
    table = table if isinstance(table, dict) else {}
    own = _key({"project": identity.files_digest(_files(folder)), "locked": str(locked)})
    if locked:
        return [Layer("project", own, ("--no-deps", "."), folder)]
    needs = table.get("dependencies", [])
    if "dependencies" in table.get("dynamic", []) or not isinstance(needs, list) or not table:
        return [Layer("project", own, (".",), folder)]
    project = Layer("project", own, ("--no-deps", "."), folder)
    if not needs:
        return [project]
    words = tuple(sorted(map(str, needs)))
    return [Layer("dependencies", _key({"dependencies": "\n".join(words)}), words, folder), project]


def _files(folder: Path) -> dict[str, bytes]:
    left_out = {"__pycache__", ".git"}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not left_out.intersection(path.relative_to(folder).parts)
    }


def _key(asked: dict[str, str]) -> str:
    """Wheels are of one interpreter and one libc."""
    place = {
        "python": sys.implementation.cache_tag,
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }
    return hashlib.sha256(identity.canonical_json({**asked, **place}).encode()).hexdigest()


@dataclass(frozen=True)
class Builder:
    """Makes the environment of this machine; its folders are nobody else's."""

    home: Path
    store: Store
    kept: str
    """Prefix of what is kept in the bucket, with a slash at the end."""
    log: Path
    patience: Patience
    say: Say
    baked: Path | None = None
    """The environment that the image may have: of the file whose SHA-256 stands in its mark."""

    def ensure(self, need: Path) -> Path:
        """The folder of the environment's programs, made where it is not there or not whole.

        Raises EnvironmentRefused, EnvironmentUnreachable, errand.Stuck, and what `clock.sleep`
        raises.
        """
        wanted = layers(need)
        if self.baked is not None and self._is_baked(wanted, self.baked):
            self.say("environment: the image has it already")
            return self.baked / "bin"
        venv, mark = self.home / "user-venv", self.home / "user-venv" / MARK
        keys = " ".join(layer.key for layer in wanted)
        if mark.is_file() and mark.read_text() == keys:
            return venv / "bin"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        shutil.rmtree(venv, ignore_errors=True)
        self._run([sys.executable, "-m", "venv", str(venv)], "python -m venv")
        wheels: list[Path] = []
        for layer in wanted:
            wheels += self._wheels(layer, venv)
        self.say(f"environment: installing {len(wheels)} wheels offline")
        install = ["install", "--isolated", "--no-index", "--no-deps", "--no-compile"]
        self._run(
            [*_pip(venv), *install, *map(str, dict.fromkeys(wheels))], "pip install", isolated=True
        )
        mark.with_suffix(".tmp").write_text(keys)
        mark.with_suffix(".tmp").replace(mark)
        return venv / "bin"

    def _is_baked(self, wanted: list[Layer], baked: Path) -> bool:
        """Whether a locked file is all that is asked for, and the image's environment is of it."""
        mark, (first, *others) = baked / MARK, wanted
        if others or first.argv[0] != HASHED or not mark.is_file():
            return False
        text = (first.folder / first.argv[-1]).read_bytes()
        alone = not _OTHER_FILES.search(text.decode(errors="replace"))
        return alone and mark.read_text().strip() == hashlib.sha256(text).hexdigest()

    def _wheels(self, layer: Layer, venv: Path) -> list[Path]:
        """The layer's wheels: from this disk, from the bucket, or made and kept there."""
        folder = self.home / "wheels" / layer.key
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as scratch:
                made = Path(scratch) / "wheels"
                made.mkdir()
                if not self._fetch(layer, Path(scratch), made):
                    self.say(f"environment: making wheels of the {layer.name}")
                    self._make(layer, made, venv)
                    self._keep(layer, Path(scratch), made)
                made.rename(folder)
        return sorted(folder.glob("*.whl"))

    def _name(self, layer: Layer) -> str:
        return f"{self.kept}{layer.key}.zip"

    def _fetch(self, layer: Layer, scratch: Path, into: Path) -> bool:
        packed = scratch / "kept.zip"
        try:
            kept = self.patience(lambda: self.store.fetch(self._name(layer), packed))
        except NotFound:
            return False
        except StoreError as error:
            raise EnvironmentUnreachable(f"environment {self._name(layer)}: {error}") from None
        try:
            self._unpack(layer, packed, into)
        except BAD_ZIP as error:
            self._drop_bad(layer, kept, error)
            shutil.rmtree(into)
            into.mkdir()
            return False
        packed.unlink()
        self.say(f"environment: the {layer.name} are in the bucket already")
        return True

    def _unpack(self, layer: Layer, packed: Path, into: Path) -> None:
        with zipfile.ZipFile(packed) as archive:
            for name in archive.namelist():
                if "/" in name or not name.endswith(".whl"):
                    raise EnvironmentRefused(
                        f"environment {self._name(layer)}: holds {name!r}, and may hold wheels"
                        " only; delete the object, and the next boot makes it again"
                    )
            archive.extractall(into)

    def _drop_bad(self, layer: Layer, kept: Object, error: Exception) -> None:
        """What is kept is no zip: every boot would meet it, so it makes room for a good one."""
        name = self._name(layer)
        self.say(f"environment {name}: is not a whole zip file ({error}); making it again")
        try:
            self.patience(lambda: self.store.delete(name, generation=kept.generation))
        except (NotFound, PreconditionFailed):
            pass  # another machine was first
        except StoreError as refused:
            raise EnvironmentRefused(
                f"environment {name}: is not a whole zip file and could not be deleted"
                f" ({refused}); delete the object, and the next boot makes it again"
            ) from None

    def _make(self, layer: Layer, into: Path, venv: Path) -> None:
        argv = [*_pip(venv), "wheel", "--progress-bar=off", f"--wheel-dir={into}", *layer.argv]
        # A build writes into its folder, which is the run's own and stays as it was delivered.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=into.parent) as scratch:
            copy = Path(scratch) / "folder"
            shutil.copytree(
                layer.folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git")
            )
            for tried in range(1, TRIES + 1):
                try:
                    self._run(argv, f"pip could not make the {layer.name}", cwd=copy)
                    return
                except EnvironmentUnreachable as error:
                    if tried == TRIES:
                        raise
                    self.say(f"environment: {str(error).splitlines()[0]}; trying again")
                    self.patience.clock.sleep(2.0**tried)

    def _keep(self, layer: Layer, scratch: Path, made: Path) -> None:
        """The first to come counts, so that all boots have the same."""
        packed = scratch / "made.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for wheel in sorted(made.glob("*.whl")):
                archive.write(wheel, wheel.name)
        name = self._name(layer)
        try:
            self.patience(lambda: self.store.put(name, packed, if_generation_match=0))
        except PreconditionFailed:
            shutil.rmtree(made)
            made.mkdir()
            self._fetch(layer, scratch, made)
        except StoreError as error:
            self.say(f"environment {name}: was not kept ({error}); the next boot makes it again")

    def _run(
        self, argv: list[str], what: str, *, cwd: Path | None = None, isolated: bool = False
    ) -> None:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTHON") and not (isolated and name.startswith("PIP_"))
        }
        try:
            done = errand.run(argv, pause=self.patience.clock.sleep, both=True, env=env, cwd=cwd)
        except OSError as error:
            raise EnvironmentUnreachable(f"{argv[0]}: cannot be started ({error})") from None
        except errand.Stuck as error:
            raise errand.Stuck(f"{what}: {error}") from None
        said = done.said.decode(errors="replace")
        with self.log.open("a") as log:
            log.write(said)
        if done.code == 0:
            return
        last = "\n".join(said.splitlines()[-LAST_LINES:])
        if _USERS.search(said) and not _NETWORK.search(said):
            raise EnvironmentRefused(f"{what}; mend outlast:requirements\n{last}")
        raise EnvironmentUnreachable(
            f"{what}; give the VM a way to the package index, and an image with python3-venv"
            f"\n{last}"
        )


def _pip(venv: Path) -> Iterator[str]:
    yield from (str(venv / "bin" / "python"), "-m", "pip", "--no-input")
    yield "--disable-pip-version-check"
