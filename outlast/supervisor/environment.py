"""The trainer's packages: wheels are built once, kept in the bucket, and later installed offline.

The input is a requirements file, or a folder with a `requirements.txt`, a `pyproject.toml`, or both
(`outlast.spec.project`). On the first VM, pip builds wheels of everything, which are kept under the
experiment as one zip, `environments/<key>.zip`. The key is a digest of the requirements and the
interpreter. Later boots install those files, without a resolver and without a network. A project's
own wheel has its own key, so that a changed line of code fetches no dependency.

Commits that are named as git+https://… are fetched here, because an image may have no git. An index
in Artifact Registry is read with the VM's own token. pip's temporary files are on the boot disk.

    EnvironmentRefused     the same try fails again: no such package, bad hashes; one sentence
    EnvironmentUnreachable the index did not answer
"""

import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.base.plain_files import NotPlain, PlainFile, plain_files
from outlast.base.retry import BUILD_TRIES, Limits, Patience, spreading
from outlast.bucket.store import (
    NotFound,
    Object,
    PreconditionFailed,
    Store,
    StoreError,
)
from outlast.spec import identity, project, requirements
from outlast.spec.delivery import Git
from outlast.spec.git_host import GitRefused, GitUnreachable
from outlast.spec.requirements import Requirements
from outlast.supervisor import git as fetching
from outlast.supervisor import kept_wheels, subprocesses
from outlast.supervisor.kept_wheels import NotRecorded, Recorded
from outlast.supervisor.pip_failures import (
    Denied,
    EnvironmentRefused,
    EnvironmentUnreachable,
    meaning,
)
from outlast.supervisor.trainer_user import TrainerUser

_log = logging.getLogger(__name__)


MARK = ".complete"
"""File in a complete environment: the keys of its layers, or the digest of the locked file in an
image."""
WRITTEN = "outlast-requirements.txt"
"""The requirements file that pip gets."""
INSTALLED = "outlast-wheels.txt"
"""File beside the wheels: the wheels that pip installs, each with its hash."""
LAST_LINES = 20
BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of reading a file that is not a zip, or a zip that is encrypted or damaged."""

_NOT_FETCHED = "Could not fetch URL"
"""Marks lines of pip's log that pip does not print: the answers of an index."""


@dataclass(frozen=True)
class Layer:
    """Wheels that are built, kept and fetched together."""

    name: str
    key: str
    root: Path | None
    """The folder that a build needs; None if nothing is built from files."""
    at: str = "."
    """The folder below `root` where pip runs."""
    asked: Requirements | None = None
    """The requirements; None for the project itself."""
    argv: tuple[str, ...] = ()
    """pip's arguments for the project itself."""


def layers(need: Path, root: Path | None = None) -> list[Layer]:
    """The layers of a requirements file, or of a project's folder. `root` holds it and all that it
    may include. Raises EnvironmentRefused if the requirements cannot be read or met."""
    root = root or (need.parent if need.is_file() else need)
    name = need.relative_to(root).as_posix()
    try:
        found = project.read(name, requirements.Folder(root))
    except requirements.RequirementsError as error:
        raise EnvironmentRefused(f"requirements {error}") from None
    at = name if need.is_dir() else need.relative_to(root).parent.as_posix()
    made = []
    if found.requirements is not None and found.requirements.wanted:
        made.append(_requirements(found.name, root, at, found.requirements))
    if found.is_project:
        argv = (".",) if found.with_dependencies else ("--no-deps", ".")
        digest = identity.files_digest(_files(need))
        key = _key({"project": digest, "locked": str(found.name == "requirements")})
        made.append(Layer("project", key, need, argv=argv))
    return made


def _requirements(name: str, root: Path, at: str, asked: Requirements) -> Layer:
    """The layer of the requirements. Its key covers the bytes of local files that are built."""
    beside = {
        f"{local}/{file}": data
        for local in asked.locals
        for file, data in _files(root / at / local).items()
    }
    others = identity.files_digest(beside) if beside else ""
    key = _key({name: asked.text, "constraints": asked.constraints_text, "others": others})
    return Layer(name, key, root if beside else None, at, asked)


def _files(place: Path) -> dict[str, bytes]:
    """A folder's files by relative path, without caches and .git; a single file under an empty
    name."""
    if place.is_file():
        return {"": place.read_bytes()}
    left_out = {"__pycache__", ".git"}
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not left_out.intersection(path.relative_to(place).parts)
    }


def _key(asked: dict[str, str]) -> str:
    """The key of a layer; it includes the interpreter, the machine and the libc that wheels depend
    on."""
    place = {
        "python": sys.implementation.cache_tag,
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }
    return hashlib.sha256(identity.canonical_json({**asked, **place}).encode()).hexdigest()


@dataclass(frozen=True)
class Builder:
    """Builds the environment of this machine, and is the only user of its folders."""

    home: Path
    store: Store
    kept: str
    """Prefix of the kept wheels in the bucket, with a slash at the end."""
    log: Path
    patience: Patience
    pip: Path | None = None
    """The bundle's wheel of pip; None: that of Python's ensurepip, which stock Debian lacks."""
    baked: Path | None = None
    """The environment that the image may have; its mark holds the SHA-256 of the file that it was
    built from."""
    token: Callable[[], str] | None = None
    """Returns the VM's own token, for indexes of Google."""
    email: Callable[[], str] | None = None
    """Returns the address of the VM's service account, for messages."""
    secret: Callable[[str], bytes] | None = None
    """Reads `outlast:gitSecret`; raises the errors of `SecretReader`."""
    forbidden_sec: float = 0.0
    """Seconds in which a refusal by such an index may mean that new permissions are still
    spreading."""
    recorded: Recorded = NotRecorded()
    """The digests of the wheels that this run started with."""
    user: TrainerUser | None = None
    """User that builds packages: a build runs the packages' code. None: this process's own user."""

    def ensure(self, need: Path, root: Path | None = None, code: Git | None = None) -> Path:
        """The folder of the environment's programs; builds it if it is missing or incomplete.
        `root` as in `layers`; `code` is the commit that the code comes from, whose secret opens
        other repositories of the same host.

        Raises EnvironmentRefused, EnvironmentUnreachable, subprocesses.Stuck, and what
        `clock.sleep` raises.
        """
        wanted = layers(need, root)
        if self.baked is not None and self._is_baked(wanted, self.baked):
            _log.info("environment: the image has it already")
            return self.baked / "bin"
        venv, mark = self.home / "user-venv", self.home / "user-venv" / MARK
        keys = " ".join(layer.key for layer in wanted)
        if mark.is_file() and mark.read_text() == keys:
            return venv / "bin"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        shutil.rmtree(venv, ignore_errors=True)
        self._make_venv(venv)
        wheels: list[Path] = []
        for layer in wanted:
            wheels += self._wheels(layer, venv, code)
        if not wheels:
            raise EnvironmentRefused(
                "requirements: no package is for this machine, by the conditions after the"
                " semicolons; correct them, or leave out outlast:requirements"
            )
        _log.info(f"environment: installing {len(wheels)} wheels offline")
        install = ["install", "--isolated", "--no-index", "--no-deps", "--no-compile"]
        hashed = self.home / "wheels" / INSTALLED
        hashed.write_text(kept_wheels.as_requirements(dict.fromkeys(wheels)))
        install += ["--require-hashes", "--requirement", str(hashed)]
        self._run([*_pip(venv), *install], "pip install", isolated=True)
        mark.with_suffix(".tmp").write_text(keys)
        mark.with_suffix(".tmp").replace(mark)
        return venv / "bin"

    def _make_venv(self, venv: Path) -> None:
        """Creates an environment with pip."""
        argv, wheel = [sys.executable, "-m", "venv"], self.pip
        if wheel is None:
            self._run([*argv, str(venv)], "python -m venv")
            return
        self._run([*argv, "--without-pip", str(venv)], "python -m venv")
        pip = [str(venv / "bin" / "python"), f"{wheel}/pip", "--no-input", "install", "--isolated"]
        self._run([*pip, "--no-index", "--no-deps", str(wheel)], "pip install")

    def _is_baked(self, wanted: list[Layer], baked: Path) -> bool:
        """Whether only a locked file is wanted, and the image's environment was built from it."""
        mark, (first, *others) = baked / MARK, wanted
        asked = first.asked
        if others or asked is None or not asked.is_hashed or not asked.data or not mark.is_file():
            return False
        return mark.read_text().strip() == hashlib.sha256(asked.data).hexdigest()

    def _wheels(self, layer: Layer, venv: Path, code: Git | None) -> list[Path]:
        """The layer's wheels that the run may install: from this disk, from the bucket, or built
        and then kept there."""
        folder = self.home / "wheels" / layer.key
        if folder.is_dir():
            if self._is_allowed(layer, _wheels_in(folder)):
                return _wheels_in(folder)
            _log.info(f"environment: the {layer.name} on this machine's disk differ; deleted")
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as scratch:
            made = Path(scratch) / "wheels"
            made.mkdir()
            if not self._fetch_allowed(layer, Path(scratch), made):
                _log.info(f"environment: building wheels of the {layer.name}")
                self._make(layer, made, venv, code)
                if not _is_hashed(layer) and not self._is_allowed(layer, _wheels_in(made)):
                    self._refuse(layer, "the index")
                self._keep(layer, Path(scratch), made)
            made.rename(folder)
        return _wheels_in(folder)

    def _fetch_allowed(self, layer: Layer, scratch: Path, into: Path) -> bool:
        """Fetches the layer from the bucket if the run may install it; records its digest. False if
        it must be built."""
        if not self._fetch(layer, scratch, into):
            return False
        if self._is_allowed(layer, _wheels_in(into)):
            self._record(layer, into)
            return True
        if not _is_hashed(layer):
            self._refuse(layer, "the bucket")
        _log.info(
            f"environment {self._name(layer)}: holds wheels whose hashes are not in the"
            " requirements; they are not used"
        )
        shutil.rmtree(into)
        into.mkdir()
        return False

    def _is_allowed(self, layer: Layer, wheels: list[Path]) -> bool:
        """Whether the run may install the wheels: the requirements name their hashes, or HEAD has
        their digest. Without hashes, the first wheels are allowed."""
        if kept_wheels.are_named(layer.asked, wheels):
            return True
        known = self.recorded.digest(layer.key)
        if known is None:
            return not _is_hashed(layer)
        return known == kept_wheels.digest_of(wheels)

    def _record(self, layer: Layer, folder: Path) -> None:
        """Records the digest of wheels that are in the bucket, so that the next attempt installs
        the same."""
        self.recorded.keep(layer.key, kept_wheels.digest_of(_wheels_in(folder)))

    def _refuse(self, layer: Layer, where: str) -> None:
        known = self.recorded.digest(layer.key) or "none"
        raise EnvironmentRefused(
            f"environment {self._name(layer)}: {where} has other wheels of the {layer.name} than "
            f"this run started with (recorded in HEAD: {known[:16]}); put the object back, or "
            "start another run with outlast:rerun"
        )

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
        _log.info(f"environment: the {layer.name} are in the bucket already")
        return True

    def _unpack(self, layer: Layer, packed: Path, into: Path) -> None:
        with zipfile.ZipFile(packed) as archive:
            for name in archive.namelist():
                if not kept_wheels.NAME.fullmatch(name):
                    raise EnvironmentRefused(
                        f"environment {self._name(layer)}: holds {name!r}, and may hold wheels"
                        " only; delete the object, and the next boot builds it again"
                    )
            # Wheels are stored uncompressed: a zip that unpacks to more bytes would fill the disk.
            size = sum(member.file_size for member in archive.infolist())
            if size > packed.stat().st_size:
                raise EnvironmentRefused(
                    f"environment {self._name(layer)}: has {packed.stat().st_size} bytes, but"
                    f" {size} when unpacked, and wheels must be stored uncompressed; delete the"
                    " object, and the next boot builds it again"
                )
            archive.extractall(into)

    def _drop_bad(self, layer: Layer, kept: Object, error: Exception) -> None:
        """Deletes a kept file that is not a zip, so that a good one can be put there: every boot
        would read it."""
        name = self._name(layer)
        _log.info(f"environment {name}: is not a complete zip file ({error}); building it again")
        try:
            self.patience(lambda: self.store.delete(name, generation=kept.generation))
        except (NotFound, PreconditionFailed):
            pass  # another machine was first
        except StoreError as refused:
            raise EnvironmentRefused(
                f"environment {name}: is not a complete zip file and could not be deleted"
                f" ({refused}); delete the object, and the next boot builds it again"
            ) from None

    def _make(self, layer: Layer, into: Path, venv: Path, code: Git | None) -> None:
        def once() -> None:
            # A build writes into its folder, and the run's own folder must stay as delivered. Each
            # try gets a fresh copy: a build may leave links in places where root is about to write.
            with tempfile.TemporaryDirectory(prefix=".build-", dir=into.parent) as scratch:
                self._build(layer, into, venv, code, Path(scratch))

        limits = Limits(silent_tries=BUILD_TRIES)
        Patience(self.patience.clock, limits=limits)(once, "environment")

    def _build(self, layer: Layer, into: Path, venv: Path, code: Git | None, scratch: Path) -> None:
        """Builds a layer once, and again while a permission may still be spreading."""
        copy = scratch / "folder"
        if layer.root is not None:
            ignore = shutil.ignore_patterns(".git")
            shutil.copytree(layer.root, copy, symlinks=True, ignore=ignore)
        cwd = copy / layer.at
        cwd.mkdir(parents=True, exist_ok=True)
        words = self._asked(layer.asked, cwd, code) if layer.asked else layer.argv
        if not words:
            return
        made = into if self.user is None else self._hand_over(copy, into, scratch)
        argv = [*_pip(venv), "wheel", "--progress-bar=off", f"--wheel-dir={made}", *words]
        try:
            spreading(self.patience.clock, self.forbidden_sec)(
                lambda: self._pip_wheel(layer, argv, cwd, scratch), "environment"
            )
        except Denied as error:
            raise EnvironmentRefused(str(error)) from None
        if self.user is not None:
            _take_over(made, self.user.uid, into)

    def _hand_over(self, copy: Path, into: Path, scratch: Path) -> Path:
        """Lets the user build in ``copy``; returns the folder in which it leaves the wheels."""
        assert self.user is not None
        for folder in (into.parent, scratch):
            folder.chmod(0o711)
        self.user.hand_over(copy)
        made = scratch / "wheels"
        self.user.make(made)
        return made

    def _asked(self, asked: Requirements, cwd: Path, code: Git | None) -> list[str]:
        """Writes the requirements file for pip and the commits that it names; returns pip's
        arguments, none if nothing is for this machine."""
        lines = []
        for number, one in enumerate(asked.wanted):
            path = ""
            if not one.applies():
                continue
            if (git := one.source.git) is not None:
                place = cwd / f"outlast-git-{number}"
                if not place.is_dir():
                    self._commit(one, place, code)
                path = f"./{place.name}/{git.path}".rstrip("/")
            lines.append(one.line(path))
        if not lines:
            return []
        (cwd / WRITTEN).write_text(asked.render(lines))
        (cwd / requirements.CONSTRAINTS).write_text(asked.constraints_text)
        return [*(["--require-hashes"] if asked.is_hashed else []), "--requirement", WRITTEN]

    def _commit(self, one: requirements.Requirement, into: Path, code: Git | None) -> None:
        asked = one.source.git
        assert asked is not None
        git = asked if code is None else code.lend(asked)
        secret = self.secret(git.secret) if git.secret and self.secret is not None else None
        _log.info(f"environment: fetching commit {git.commit} of {git.url}")
        try:
            fetching.fetch(git, secret, into, pause=self.patience.clock.sleep)
        except GitUnreachable as error:
            raise EnvironmentUnreachable(str(error)) from None
        except GitRefused as error:
            why = str(error).partition(";")[0].removeprefix("gitCommit ").removeprefix("gitUrl ")
            raise EnvironmentRefused(
                f"requirements {one.place} {requirements.shown(one.text)}: {why}; correct the line,"
                " or put a wheel beside the file (a private repository is read with"
                " outlast:gitSecret, and only on the host of outlast:gitUrl)"
            ) from None
        if not (into / git.path).is_dir():
            raise EnvironmentRefused(
                f"requirements {one.place} {requirements.shown(one.text)}: the commit has no folder"
                f" {git.path}; correct subdirectory"
            )

    def _pip_wheel(self, layer: Layer, argv: list[str], cwd: Path, scratch: Path) -> None:
        hosts = requirements.hosts_of_google(layer.asked.indexes) if layer.asked else []
        env = {}
        if hosts and self.user is not None:
            raise EnvironmentRefused(
                f"requirements: the index {hosts[0]} needs the VM's own token, which builds do not"
                " get with outlast:trainerUser own; bake the packages into an image, or set"
                " outlast:trainerUser to root"
            )
        if hosts and self.token is not None:
            # The token is in a file of root's, never in a command line.
            netrc = scratch / "netrc"
            netrc.touch(0o600)
            token = self.token()
            netrc.write_text(
                "".join(f"machine {h} login oauth2accesstoken password {token}\n" for h in hosts)
            )
            env = {"NETRC": str(netrc)}
        details = PlainFile(self.log.parent, "pip-details.log")
        if self.user is not None:
            env = self.user.environment
            details = PlainFile(scratch, "pip-details.log", self.user.uid)
        details.replace(b"")
        argv = [*argv, f"--log={details}"]
        what = f"pip could not build the {layer.name}"
        self._run(argv, what, cwd=cwd, env=env, layer=layer, details=details)

    def _keep(self, layer: Layer, scratch: Path, made: Path) -> None:
        """Keeps the wheels in the bucket. If another machine was first, its wheels are used, so
        that all boots have the same; but wheels that pip has checked by hashes stay."""
        packed = scratch / "made.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for wheel in sorted(made.glob("*.whl")):
                archive.write(wheel, wheel.name)
        name = self._name(layer)
        try:
            self.patience(lambda: self.store.put(name, packed, if_generation_match=0))
            self._record(layer, made)
        except PreconditionFailed:
            if _is_hashed(layer):
                return  # pip has just checked these, so the bucket's do not matter
            shutil.rmtree(made)
            made.mkdir()
            self._fetch_allowed(layer, scratch, made)
        except StoreError as error:
            _log.info(f"environment {name}: was not kept ({error}); the next boot builds it again")

    def _run(
        self,
        argv: list[str],
        what: str,
        *,
        cwd: Path | None = None,
        isolated: bool = False,
        env: Mapping[str, str] | None = None,
        layer: Layer | None = None,
        details: PlainFile | None = None,
    ) -> None:
        """Runs pip; a build of a ``layer`` runs as `user`, with ``details`` as its log."""
        scratch = self.home / "tmp"  # /tmp may be memory
        scratch.mkdir(parents=True, exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTHON") and not (isolated and name.startswith("PIP_"))
        }
        env = {**kept, "TMPDIR": str(scratch), **(env or {})}
        user = None if layer is None else self.user
        sleep = self.patience.clock.sleep
        try:
            done = subprocesses.run(argv, pause=sleep, both=True, env=env, cwd=cwd, user=user)
        except OSError as error:
            raise EnvironmentUnreachable(f"{argv[0]}: cannot be started ({error})") from None
        except subprocesses.Stuck as error:
            raise subprocesses.Stuck(f"{what}: {error}") from None
        said = done.said.decode(errors="replace")
        with self.log.open("a") as log:
            log.write(said)
        if done.code:
            last = "\n".join(said.splitlines()[-LAST_LINES:])
            more = _read(details) if details is not None else ""
            unseen = [line for line in more.splitlines() if _NOT_FETCHED in line]
            email = self.email() if self.email is not None else "EMAIL"
            asked = layer.asked if layer else None
            whole = "\n".join([said, *unseen])
            failure, sentence = meaning(what, whole, asked, email, builds=layer is not None)
            raise failure(f"{sentence}\n{last}")


def _take_over(made: Path, owner: int, into: Path) -> None:
    """Copies the wheels that a build has left, and no other file."""
    try:
        for wheel in plain_files(made, owner):
            if kept_wheels.NAME.fullmatch(wheel.name):
                with wheel.open() as built, (into / wheel.name).open("wb") as copy:
                    shutil.copyfileobj(built, copy)
    except NotPlain as error:
        raise EnvironmentRefused(
            f"requirements: a build left a file that is not a wheel: {error}"
        ) from None


def _read(details: PlainFile) -> str:
    try:
        with details.open() as file:
            return file.read().decode(errors="replace")
    except (NotPlain, OSError):
        return ""


def _wheels_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def _is_hashed(layer: Layer) -> bool:
    """Whether pip checks every hash when the layer is made."""
    return layer.asked is not None and layer.asked.is_hashed


def _pip(venv: Path) -> Iterator[str]:
    yield from (str(venv / "bin" / "python"), "-m", "pip", "--no-input")
    yield "--disable-pip-version-check"
