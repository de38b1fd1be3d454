"""Finds or makes what runs a stack on this machine: the Pulumi engine, its language hosts, and
image and wheels for the local cloud's VMs.

The standard library is enough: `tools/setup.py` uses this before there is a virtual environment.
Expensive results are in a cache, `${OUTLAST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/outlast}`; each
entry appears complete or not at all, and a lock keeps two processes from making the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.base.file_lock import try_lock
from outlast.base.folders import PACKAGE

ENGINE_MAJOR_LIMIT = 4
DRAFT = ".making-"
"""How the name of a folder begins in which something is being made."""
PROGRESS_SEC = 1.0
QUIET_SEC = 30.0
"""Seconds between two lines of progress without a terminal."""
LANGUAGE_HOST = "pulumi-language-python"
DYNAMIC_HOST = "pulumi-resource-pulumi-python"
INTERPRETER = "interpreter"
"""File beside the stand-ins that names the Python they run in."""
HOSTS = PACKAGE / "cli" / "hosts"
"""Stand-ins for the language hosts, which an engine built from source lacks."""
REQUIREMENTS = PACKAGE / "requirements"
Version = tuple[int, int, int]


class SetupError(Exception):
    """One sentence: what is missing and what to do."""


def installed() -> dict[str, Any]:
    """The parts for an installed package, by the names of `outlast.cli.engine.Parts`; makes image
    and wheels if they are missing. SetupError: there is no engine, or something cannot be made."""
    progress = Progress()
    engine, passed_over = engine_on_path()
    engine = engine or engine_in_cache()
    if engine is None:
        why = f"{passed_over} " if passed_over else ""
        raise SetupError(
            f"{why}pulumi: no engine is on PATH or in {cache_dir()}; install Pulumi"
            f" {format_version(sdk_version())} or newer: https://www.pulumi.com/docs/install/"
        )
    python = Path(sys.prefix) / "bin" / "python"
    hosts = hosts_for(engine)
    return {
        "engine": str(engine_beside(HOSTS, engine, python) if hosts else engine),
        "hosts": str(hosts) if hosts else None,
        "image": str(ensure_image(python, progress)),
        "wheels": str(ensure_wheels(python, progress)),
        "python": str(python),
    }


# -------------------------------------------------------------------------------- where things are


def cache_dir() -> Path:
    """The cache that all checkouts of this user share."""
    env = os.environ
    if env.get("OUTLAST_CACHE"):
        return Path(env["OUTLAST_CACHE"]).absolute()
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base).absolute() / "outlast"


def sdk_version() -> Version:
    """The version of the Pulumi SDK that requirements/runtime.in pins."""
    text = (REQUIREMENTS / "runtime.in").read_text()
    return parse_version(match(r"^pulumi==(\S+)$", text, "requirements/runtime.in", "pulumi"))


def match(pattern: str, text: str, file: str, name: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise SetupError(f"{file} pins no {name}: restore the file from git.")
    return found.group(1)


def wheels_dir() -> Path:
    return cache_dir() / "wheels" / _vm_digest()


def image_dir() -> Path:
    return cache_dir() / "images" / _vm_digest()


def image_python() -> Path:
    return image_dir() / "opt" / "outlast" / "venv" / "bin" / "python"


def _vm_digest() -> str:
    major, minor = sys.version_info[:2]
    salt = f"{platform.system()}-{platform.machine()}-{major}.{minor}-{Path(sys.base_prefix)}"
    return digest(REQUIREMENTS / "vm.txt", salt=salt)


def digest(*files: Path, salt: str = "") -> str:
    found = hashlib.sha256(salt.encode())
    for file in files:
        found.update(f"\0{file.name}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


def parse_version(text: str) -> Version:
    """`v3.274.1` or `3.274.1-dev` as numbers; ValueError for anything else."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?", text.strip())
    if not found:
        raise ValueError(f"version {text.strip()!r}: must look like 3.274.1.")
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


def format_version(version: Version) -> str:
    return ".".join(str(part) for part in version)


def unfit_reason(version_text: str) -> str | None:
    """Why an engine of this version cannot be used; None if it can."""
    least = sdk_version()
    rule = f"it must be at least {format_version(least)} (the SDK's) and below {ENGINE_MAJOR_LIMIT}"
    try:
        version = parse_version(version_text)
    except ValueError:
        return f"its version reads {version_text.strip()!r}; {rule}"
    if least <= version < (ENGINE_MAJOR_LIMIT, 0, 0):
        return None
    return f"its version is {format_version(version)}; {rule}"


def engine_version_text(engine: Path) -> str:
    """What `pulumi version` prints; the error's text if it does not run."""
    env = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1"}
    try:
        done = subprocess.run(
            [engine, "version"], env=env, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout if done.returncode == 0 else (done.stderr or f"exit {done.returncode}")


def engine_on_path() -> tuple[Path | None, str | None]:
    """The engine on PATH if it can be used; otherwise, if there is one, the reason."""
    engine = foreign_engine()
    if not engine:
        return None, None
    reason = unfit_reason(engine_version_text(engine))
    if reason is None:
        return engine, None
    return None, f"{engine} is not used: {reason}."


def foreign_engine() -> Path | None:
    """`pulumi` on PATH, unless it is the cache's own."""
    found = shutil.which("pulumi")
    if not found:
        return None
    engine = Path(found).absolute()
    if engine.parent == HOSTS or engine.is_relative_to(cache_dir()):
        return None
    return None if any(engine.samefile(own) for own in _engines_in_cache()) else engine


def engine_in_cache() -> Path | None:
    """The newest usable engine of the cache."""
    found = {}
    for engine in _engines_in_cache():
        text = engine.parents[1].name.partition("-")[0]
        if unfit_reason(text) is None:
            found[parse_version(text)] = engine
    return found[max(found)] if found else None


def _engines_in_cache() -> list[Path]:
    engines = (cache_dir() / "engine").glob("v*/bin/pulumi")
    return [engine for engine in engines if os.access(engine, os.X_OK)]


def hosts_for(engine: Path) -> Path | None:
    """The stand-ins' folder, unless the official hosts lie beside the engine or on PATH."""
    ours = HOSTS.resolve()
    folders = [engine.resolve().parent, engine.parent]
    folders += [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    official = [folder for folder in folders if folder.resolve() != ours]

    def found(name: str) -> bool:
        return any(os.access(folder / name, os.X_OK) for folder in official)

    return None if found(LANGUAGE_HOST) and found(DYNAMIC_HOST) else ours


def engine_beside(hosts: Path, engine: Path, python: Path) -> Path:
    """Makes the stand-ins ready for `python`, a virtual environment's interpreter.

    Gives the cache's engine a second name among the stand-ins, its hosts: it expects them beside
    itself, and warns at every command where only PATH has them. Any other engine, and one that
    can have no second name here (another file system), stays where it is.
    """
    link = hosts / "pulumi"
    draft = hosts / f"pulumi.{os.getpid()}"
    try:
        (hosts / INTERPRETER).write_text(f"{python}\n")
        if not engine.is_relative_to(cache_dir()):
            link.unlink(missing_ok=True)
            return engine
        if not link.exists() or not link.samefile(engine):
            os.link(engine, draft)
            draft.replace(link)
    except OSError:
        link.unlink(missing_ok=True)  # An older one would come first on PATH.
        return engine
    return link


def ensure_wheels(python: Path, progress: Progress) -> Path:
    """The folder of the wheels that requirements/vm.txt locks: what a VM installs from, offline."""
    target = wheels_dir()
    if target.is_dir():
        return target
    with lock("wheels", progress):
        if not target.is_dir():
            with made_whole(target) as draft:
                locked = ["--require-hashes", "-r", str(REQUIREMENTS / "vm.txt")]
                pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
                run(
                    [*pip, "download", "--only-binary=:all:", *locked, "--dest", str(draft)],
                    progress,
                    "image: fetching what requirements/vm.txt locks",
                )
    return target


def ensure_image(python: Path, progress: Progress) -> Path:
    """The rehearsal's image: /opt/outlast/venv in a folder, installed from the wheels, offline."""
    target = image_dir()
    if os.access(image_python(), os.X_OK):
        return target
    wheels = ensure_wheels(python, progress)
    with lock("image", progress):
        if not os.access(image_python(), os.X_OK):
            with made_whole(target) as draft:
                _install_image(python, draft / "opt" / "outlast" / "venv", wheels, progress)
    return target


def _install_image(python: Path, venv: Path, wheels: Path, progress: Progress) -> None:
    venv.parent.mkdir(parents=True)
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)], progress, "image: making")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    into = ["--python", str(venv / "bin" / "python"), "install"]
    source = ["--no-index", "--find-links", str(wheels), "--require-hashes"]
    locked = ["-r", str(REQUIREMENTS / "vm.txt")]
    run([*pip, *into, *source, *locked], progress, "image: installing")


class Progress:
    """Prints lines for people, and a status that is updated while a long command runs."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said_at = 0.0

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._said_at = time.monotonic()

    def tick(self, text: str, *, last: bool = False) -> None:
        """Rewrites one line on a terminal; elsewhere prints a line from time to time."""
        if self._live:
            print(f"\r\033[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or time.monotonic() - self._said_at > QUIET_SEC:
            self.line(text)


def run(
    argv: Sequence[str],
    progress: Progress,
    what: str,
    *,
    count: str | None = None,
    unit: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_sec: float | None = None,
) -> str:
    """Runs a command, shows elapsed time and how many lines matched `count`; returns its output."""
    started = time.monotonic()
    matched = 0
    errors: list[str] = []
    process = subprocess.Popen(
        argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    output: list[str] = []
    pattern = re.compile(count) if count else None

    def read_errors() -> None:
        nonlocal matched
        assert process.stderr
        for line in process.stderr:
            errors.append(line)
            matched += bool(pattern and pattern.match(line.rstrip("\n")))

    readers = [
        threading.Thread(target=read_errors, daemon=True),
        threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()

    def status() -> str:
        counted = f", {matched} {unit}" if pattern else ""
        return f"{what} ({clock(time.monotonic() - started)}{counted})"

    try:
        while True:
            try:
                process.wait(timeout=PROGRESS_SEC)
                break
            except subprocess.TimeoutExpired:
                progress.tick(status())
                if timeout_sec and time.monotonic() - started > timeout_sec:
                    raise SetupError(f"{what}: did not finish in {timeout_sec:.0f} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    progress.tick(status(), last=True)
    if process.returncode:
        tail = "".join(errors[-15:]).strip()
        raise SetupError(f"{what}: {argv[0]} ended with exit {process.returncode}:\n{tail}")
    return "".join(output)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` at once if the block succeeds, and is deleted if
    not.

    A virtual environment made in it can be moved so: `bin/python` finds it by its own place, and
    only the scripts beside it, which are not used, hold the draft's path.
    """
    with draft_beside(target) as holder:
        draft = holder / target.name
        draft.mkdir()
        yield draft
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)


@contextlib.contextmanager
def draft_beside(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, deleted at the end. One that a killed process has left
    is deleted first: it may be gigabytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{DRAFT}*"):
        with contextlib.suppress(OSError), _opened(left) as folder:
            if try_lock(folder):
                shutil.rmtree(left, ignore_errors=True)
    holder = Path(tempfile.mkdtemp(prefix=DRAFT, dir=target.parent))
    with _opened(holder) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            yield holder
        finally:
            shutil.rmtree(holder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder's descriptor, by which it can be locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock(name: str, progress: Progress) -> Iterator[None]:
    """Lets only one checkout at a time make an entry of this cache."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        if not try_lock(file):
            progress.line(f"{name}: another checkout is making it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
