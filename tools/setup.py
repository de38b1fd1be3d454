"""Makes a checkout ready: checks, `.venv`, the Pulumi engine, and the image of the rehearsal.

    python3 tools/setup.py           what `make setup` runs
    python3 tools/setup.py --print   JSON: the paths of engine, hosts, image, wheels, python

Standard library only, since it runs before the virtual environment exists. What is expensive lies
in a cache outside the checkout, `${OUTLAST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/outlast}`, so that
other checkouts reuse it; each entry appears whole or not at all, and a lock keeps two from
making one twice.

The engine is the first of: `pulumi` on PATH, at least the version of the pinned SDK and below 4;
one already in the cache; the one that the SDK's installer fetches; a build, through the Go module
proxy, of the version that `tools/engine/go.mod` pins.
"""

from __future__ import annotations  # so that an old Python gets as far as the sentence about it

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ((3, 11), (3, 13))
ENGINE_MAJOR_LIMIT = 4
GO_MINIMUM = (1, 21)
"""From 1.21 on, `go` fetches the newer toolchain that go.mod asks for by itself."""
INSTALLER = "https://get.pulumi.com/install.sh"
REACH_TIMEOUT_SEC = 6
INSTALL_TIMEOUT_SEC = 600
PROGRESS_SEC = 1.0
QUIET_SEC = 30.0
"""Between two lines of progress where there is no terminal."""
LANGUAGE_HOST = "pulumi-language-python"
DYNAMIC_HOST = "pulumi-resource-pulumi-python"
ENGINE_PACKAGE = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
ENGINE_VERSION_VARIABLE = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"

if TYPE_CHECKING:  # no older Python could evaluate it
    Version = tuple[int, int, int]


class SetupError(Exception):
    """One sentence: what is missing and what to do."""


# -------------------------------------------------------------------------------- where things are


def cache_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The cache that all checkouts of this user share."""
    if env.get("OUTLAST_CACHE"):
        return Path(env["OUTLAST_CACHE"]).absolute()
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache"
    return Path(base).absolute() / "outlast"


def venv_python() -> Path:
    return ROOT / ".venv" / "bin" / "python"


def hosts_dir() -> Path:
    return ROOT / "tools" / "hosts"


def sdk_version() -> Version:
    """The version of the Pulumi SDK that requirements/runtime.in pins."""
    text = (ROOT / "requirements" / "runtime.in").read_text()
    return parse_version(_match(r"^pulumi==(\S+)$", text, "requirements/runtime.in", "pulumi"))


def engine_version() -> str:
    """The version of the engine that tools/engine/go.mod pins, as `v3.1.2`."""
    text = (ROOT / "tools" / "engine" / "go.mod").read_text()
    pattern = r"^require github\.com/pulumi/pulumi/pkg/v3 (v\S+)$"
    return _match(pattern, text, "tools/engine/go.mod", "github.com/pulumi/pulumi/pkg/v3")


def _match(pattern: str, text: str, file: str, name: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise SetupError(f"{file} pins no {name}: restore the file from git.")
    return found.group(1)


def built_engine_dir() -> Path:
    """The cache folder of the engine built from tools/engine, by the module's content."""
    module = ROOT / "tools" / "engine"
    system = f"{platform.system()}-{platform.machine()}"
    digest = _digest(*(module / name for name in ("go.mod", "go.sum", "tools.go")), salt=system)
    return cache_dir() / "engine" / f"{engine_version()}-{digest}"


def installed_engine_dir() -> Path:
    """The cache folder of the engine that the SDK's installer fetches."""
    return cache_dir() / "engine" / f"v{format_version(sdk_version())}-installer"


def wheels_dir() -> Path:
    return cache_dir() / "wheels" / _vm_digest()


def image_dir() -> Path:
    return cache_dir() / "images" / _vm_digest()


def image_python() -> Path:
    return image_dir() / "opt" / "outlast" / "venv" / "bin" / "python"


def _vm_digest() -> str:
    major, minor = sys.version_info[:2]
    salt = f"{platform.system()}-{platform.machine()}-{major}.{minor}-{Path(sys.base_prefix)}"
    return _digest(ROOT / "requirements" / "vm.txt", salt=salt)


def _digest(*files: Path, salt: str = "") -> str:
    digest = hashlib.sha256(salt.encode())
    for file in files:
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


# --------------------------------------------------------------------------------- what is missing


def check_machine() -> None:
    """Raises SetupError with one sentence for each thing that is missing; takes no second."""
    missing = list(_missing_tools())
    if not _engine_at_hand() and not _go() and not _reachable(INSTALLER):
        missing.append(
            "no Pulumi engine: no fitting `pulumi` is on PATH, its installer's site cannot be "
            "reached and Go is not installed; install Pulumi or Go 1.26, or go online."
        )
    if missing:
        raise SetupError("\n".join(missing))


def check_python(version: tuple[int, int] | None = None) -> None:
    """Raises SetupError unless this is a Python that Outlast runs on."""
    found = version or sys.version_info[:2]
    if not PYTHONS[0] <= found <= PYTHONS[1]:
        low, high = (f"{major}.{minor}" for major, minor in PYTHONS)
        raise SetupError(
            f"Python {found[0]}.{found[1]}: Outlast runs on Python {low} to {high}; "
            "call `make setup PYTHON=python3.12` with one of them."
        )


def _missing_tools() -> Iterator[str]:
    for tool in ("git", "make"):
        if not shutil.which(tool):
            yield f"{tool} is not on PATH: install it with your system's package manager."
    if not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
        major, minor = sys.version_info[:2]
        yield (
            "This Python has no venv module with pip: install it "
            f"(Debian: python{major}.{minor}-venv), "
            "or call `make setup PYTHON=…` with a Python that has it."
        )


def _engine_at_hand() -> bool:
    return bool(_engine_on_path()[0] or _engine_in_cache())


def _reachable(url: str) -> bool:
    """Whether a first byte comes from url in a few seconds, however slow its name resolves."""
    answer: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=REACH_TIMEOUT_SEC) as response:
                answer.append(bool(response.read(1)))
        except (OSError, ValueError):
            pass  # no answer is the answer

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(REACH_TIMEOUT_SEC)
    return answer == [True]


# -------------------------------------------------------------------------------------- the engine


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
    """Why an engine of this version does not fit; None where it does."""
    least = sdk_version()
    rule = f"it must be at least {format_version(least)} (the SDK's) and below {ENGINE_MAJOR_LIMIT}"
    try:
        version = parse_version(version_text)
    except ValueError:
        return f"its version reads {version_text.strip()!r}; {rule}"
    if least <= version < (ENGINE_MAJOR_LIMIT, 0, 0):
        return None
    return f"its version is {format_version(version)}; {rule}"


def _engine_version_text(engine: Path) -> str:
    """What `pulumi version` prints; the error's text where it does not run."""
    env = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1"}
    try:
        done = subprocess.run(
            [engine, "version"], env=env, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout if done.returncode == 0 else (done.stderr or f"exit {done.returncode}")


def _engine_on_path() -> tuple[Path | None, str | None]:
    """The engine on PATH if it fits; otherwise, if there is one, why it is passed over."""
    engine = _foreign_engine()
    if not engine:
        return None, None
    reason = unfit_reason(_engine_version_text(engine))
    if reason is None:
        return engine, None
    return None, f"{engine} is passed over: {reason}."


def _foreign_engine() -> Path | None:
    """`pulumi` on PATH, unless that is the cache's own, put there for a shell."""
    found = shutil.which("pulumi")
    if not found:
        return None
    engine, own = Path(found).absolute(), _engine_in_cache()
    if engine.parent == hosts_dir() or engine.is_relative_to(cache_dir()):
        return None
    return None if own and engine.samefile(own) else engine


def _engine_in_cache() -> Path | None:
    for folder in (installed_engine_dir(), built_engine_dir()):
        engine = folder / "bin" / "pulumi"
        if os.access(engine, os.X_OK):
            return engine
    return None


def ensure_engine(say: Progress) -> Path:
    """The engine, fetched or built where none is at hand."""
    on_path, passed_over = _engine_on_path()
    if passed_over:
        say.line(passed_over)
    at_hand = on_path or _engine_in_cache()
    if at_hand:
        return at_hand
    with _lock("engine", say):
        return _engine_in_cache() or _install_engine(say) or _build_engine(say)


def _install_engine(say: Progress) -> Path | None:
    """Fetches the engine by the SDK's installer; None, and a sentence, where that fails."""
    if not _reachable(INSTALLER):
        say.line("engine: the installer's site cannot be reached; building instead")
        return None
    target = installed_engine_dir()
    install = "import sys; from pulumi.automation import PulumiCommand as P; P.install(sys.argv[1])"
    try:
        with _made_whole(target) as draft:
            argv = [str(venv_python()), "-c", install, str(draft)]
            _run(argv, say, "engine: installing", timeout_sec=INSTALL_TIMEOUT_SEC)
    except SetupError as error:
        say.line(f"engine: the SDK's installer failed; building instead. {error}")
        return None
    return target / "bin" / "pulumi"


def _go() -> str | None:
    """The `go` command, if it is new enough."""
    found = shutil.which("go")
    if not found:
        return None
    try:
        text = subprocess.run(
            [found, "env", "GOVERSION"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"go(\d+)\.(\d+)", text)
    new_enough = version and (int(version[1]), int(version[2])) >= GO_MINIMUM
    return found if new_enough else None


def _build_engine(say: Progress) -> Path:
    """Builds the pinned engine with Go, through the module proxy that `go env` names."""
    go = _go()
    if not go:
        raise SetupError(
            "no Pulumi engine: its installer's site cannot be reached and there is no Go to build "
            "it with; install Pulumi, or Go 1.26, or connect to the internet."
        )
    version = engine_version()
    module = ROOT / "tools" / "engine"
    env = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    say.line(f"engine: building {version} with Go (about ten minutes the first time)")
    listing = [go, "list", "-mod=readonly", "-deps", "-f", "{{.ImportPath}}", ENGINE_PACKAGE]
    packages = _run(
        listing,
        say,
        "engine: fetching modules",
        count=r"^go: downloading ",
        unit="modules",
        cwd=module,
        env=env,
    )
    total = len(packages.split())
    target = built_engine_dir()
    with _made_whole(target) as draft:
        engine = draft / "bin" / "pulumi"
        stamp = f"-s -w -X {ENGINE_VERSION_VARIABLE}={version}"
        build = [go, "build", "-mod=readonly", "-trimpath", "-v", "-ldflags", stamp]
        _run(
            [*build, "-o", str(engine), ENGINE_PACKAGE],
            say,
            "engine: building",
            count=r"^[\w.\-/]+$",
            unit=f"packages, of at most {total}",
            cwd=module,
            env=env,
        )
        reason = unfit_reason(_engine_version_text(engine))
        if reason:
            raise SetupError(f"the engine that was built does not fit: {reason}.")
    return target / "bin" / "pulumi"


def hosts_for(engine: Path) -> Path | None:
    """The stand-ins' folder, unless the official hosts lie beside the engine or on PATH."""
    ours = hosts_dir().resolve()
    folders = [engine.resolve().parent, engine.parent]
    folders += [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    official = [folder for folder in folders if folder.resolve() != ours]

    def found(name: str) -> bool:
        return any(os.access(folder / name, os.X_OK) for folder in official)

    return None if found(LANGUAGE_HOST) and found(DYNAMIC_HOST) else ours


def engine_beside(hosts: Path, engine: Path) -> Path:
    """The cache's engine as a second name among the stand-ins, its hosts: it expects them beside
    itself, and warns at every command where only PATH has them. Any other engine, and one that
    can have no second name here (another file system), stays where it is.
    """
    link = hosts / "pulumi"
    draft = hosts / f"pulumi.{os.getpid()}"
    try:
        if not engine.is_relative_to(cache_dir()):
            link.unlink(missing_ok=True)
            return engine
        if not link.exists() or not link.samefile(engine):
            os.link(engine, draft)
            draft.replace(link)
    except OSError:
        link.unlink(missing_ok=True)  # an older one would come first on PATH
        return engine
    return link


# ------------------------------------------------------------------------------------------ Python


COMPILED = ("outlast", "components", "trainers")
"""Folders of the project that processes import from."""


def ensure_venv(say: Progress) -> None:
    """`.venv` with what requirements/dev.txt locks and the project itself, editable."""
    venv = ROOT / ".venv"
    stamp = venv / "outlast-requirements"
    wanted = _digest(
        ROOT / "requirements" / "dev.txt",
        ROOT / "pyproject.toml",
        salt=f"{sys.version_info[:2]}{sys.base_prefix}",
    )
    if stamp.is_file() and stamp.read_text() == wanted and os.access(venv_python(), os.X_OK):
        return
    if not _same_python(venv_python()):
        _run([sys.executable, "-m", "venv", "--clear", str(venv)], say, ".venv: making")
    pip = [str(venv_python()), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    lock = ["--require-hashes", "-r", str(ROOT / "requirements" / "dev.txt")]
    _run([*pip, "install", *lock], say, ".venv: installing what requirements/dev.txt locks")
    editable = ["install", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(ROOT)]
    _run([*pip, *editable], say, ".venv: installing the project")
    compile_bytecode()
    stamp.write_text(wanted)


def compile_bytecode() -> None:
    """The project's own bytecode, as pip makes that of the packages: where Python may write none
    (PYTHONDONTWRITEBYTECODE, which many containers set), each process would compile it again,
    which takes as long as all its imports. What changes later is compiled as it is imported."""
    command = [str(venv_python()), "-m", "compileall", "-q", *COMPILED]
    subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False
    )  # a checkout may be read-only


def _same_python(python: Path) -> bool:
    """Whether a virtual environment's interpreter runs and is of this Python's version."""
    program = "import sys; print(sys.version_info[:2], sys.base_prefix)"
    try:
        done = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == f"{sys.version_info[:2]} {sys.base_prefix}"


def ensure_wheels(say: Progress) -> Path:
    """The folder of the wheels that requirements/vm.txt locks: what a VM installs from, offline."""
    target = wheels_dir()
    if target.is_dir():
        return target
    with _lock("wheels", say):
        if not target.is_dir():
            with _made_whole(target) as draft:
                lock = ["--require-hashes", "-r", str(ROOT / "requirements" / "vm.txt")]
                pip = [str(venv_python()), "-m", "pip", "--quiet", "--disable-pip-version-check"]
                _run(
                    [*pip, "download", "--only-binary=:all:", *lock, "--dest", str(draft)],
                    say,
                    "image: fetching what requirements/vm.txt locks",
                )
    return target


def ensure_image(say: Progress) -> Path:
    """The rehearsal's image: /opt/outlast/venv in a folder, installed from the wheels, offline."""
    target = image_dir()
    if os.access(image_python(), os.X_OK):
        return target
    wheels = ensure_wheels(say)
    with _lock("image", say):
        if not os.access(image_python(), os.X_OK):
            with _made_whole(target) as draft:
                _install_image(draft / "opt" / "outlast" / "venv", wheels, say)
    return target


def _install_image(venv: Path, wheels: Path, say: Progress) -> None:
    venv.parent.mkdir(parents=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(venv)], say, "image: making")
    pip = [str(venv_python()), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    into = ["--python", str(venv / "bin" / "python"), "install"]
    source = ["--no-index", "--find-links", str(wheels), "--require-hashes"]
    lock = ["-r", str(ROOT / "requirements" / "vm.txt")]
    _run([*pip, *into, *source, *lock], say, "image: installing")


# ------------------------------------------------------------------------------------------- stamp


def stamp_path() -> Path:
    return ROOT / ".venv" / "outlast-setup.json"


def _state() -> dict[str, object]:
    """What a finished setup depends on; equal to the stamp's as long as nothing is to be done."""
    files = [ROOT / "requirements" / name for name in ("dev.txt", "vm.txt", "runtime.in")]
    files += [ROOT / "tools" / "engine" / name for name in ("go.mod", "go.sum", "tools.go")]
    files += [ROOT / "pyproject.toml", Path(__file__).resolve()]
    on_path = _foreign_engine()
    return {
        "files": _digest(*files),
        "python": f"{sys.version_info[:2]} {sys.base_prefix}",
        "cache": str(cache_dir()),
        "engine_on_path": [str(on_path), on_path.stat().st_mtime_ns] if on_path else None,
    }


def finished() -> dict[str, Any] | None:
    """The parts of an earlier setup that still holds; None where something is to be done."""
    try:
        stamp = json.loads(stamp_path().read_text())
        state, made = stamp["state"], stamp["parts"]
        needed = [made["engine"], made["python"], str(image_python())]
        whole = all(os.access(file, os.X_OK) for file in needed) and Path(made["wheels"]).is_dir()
        hosts = hosts_for(Path(made["engine"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {**made, "hosts": str(hosts) if hosts else None} if whole and state == _state() else None


def parts() -> dict[str, Any]:
    """Where the parts are, by the names of `outlast.cli.engine.Parts`. Raises SetupError where
    `make setup` has something to do."""
    found = finished()
    if not found:
        raise SetupError("The setup is not finished here: run `make setup`.")
    return found


def make(say: Progress) -> dict[str, Any]:
    """The whole setup; does only what is not done."""
    check_python()
    done = finished()
    if done:
        return done
    check_machine()
    ensure_venv(say)
    engine = ensure_engine(say)
    image = ensure_image(say)
    hosts = hosts_for(engine)
    engine = engine_beside(hosts_dir(), engine) if hosts else engine
    made = {
        "engine": str(engine),
        "hosts": str(hosts) if hosts else None,
        "image": str(image),
        "wheels": str(ensure_wheels(say)),
        "python": str(venv_python()),
    }
    _write(stamp_path(), json.dumps({"state": _state(), "parts": made}, indent=2))
    return made


# --------------------------------------------------------------------------------------- mechanics


class Progress:
    """Lines for a person, and a status that is renewed while a long command runs."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said_at = 0.0

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._said_at = time.monotonic()

    def tick(self, text: str, *, last: bool = False) -> None:
        """Rewrites one line on a terminal; elsewhere says a line from time to time."""
        if self._live:
            print(f"\r\033[K{text}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last or time.monotonic() - self._said_at > QUIET_SEC:
            self.line(text)


def _run(
    argv: Sequence[str],
    say: Progress,
    what: str,
    *,
    count: str | None = None,
    unit: str = "",
    cwd: Path = ROOT,
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
        return f"{what} ({_clock(time.monotonic() - started)}{counted})"

    try:
        while True:
            try:
                process.wait(timeout=PROGRESS_SEC)
                break
            except subprocess.TimeoutExpired:
                say.tick(status())
                if timeout_sec and time.monotonic() - started > timeout_sec:
                    raise SetupError(f"{what}: not done after {timeout_sec:.0f} s") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    say.tick(status(), last=True)
    if process.returncode:
        tail = "".join(errors[-15:]).strip()
        raise SetupError(f"{what}: {argv[0]} ended with exit {process.returncode}:\n{tail}")
    return "".join(output)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def _made_whole(target: Path) -> Iterator[Path]:
    """A draft folder that becomes `target` at once if the block succeeds; nothing is left if not.

    A virtual environment made in it can be moved so: `bin/python` finds it by its own place, and
    only the scripts beside it, which nobody runs, hold the draft's path.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    draft = holder / target.name
    draft.mkdir()
    try:
        yield draft
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


@contextlib.contextmanager
def _lock(name: str, say: Progress) -> Iterator[None]:
    """One maker at a time among all checkouts of this cache."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say.line(f"{name}: another checkout is making it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="setup.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print where the parts are, as JSON")
    options = parser.parse_args(argv)
    try:
        check_python()
        if options.print:
            print(json.dumps(parts()))
            return 0
        started = time.monotonic()
        made = make(Progress())
        took = _clock(time.monotonic() - started)
        print(f"ready in {took}: engine {made['engine']}, image {made['image']}", flush=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
