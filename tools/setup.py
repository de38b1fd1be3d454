"""Makes a checkout ready: checks, `.venv`, the Pulumi engine, and the image of the rehearsal.

    python3 tools/setup.py           what `make setup` runs
    python3 tools/setup.py --print   JSON: the paths of engine, hosts, image, wheels, python

Standard library only, because it runs before the virtual environment exists. Expensive results are
in a cache outside the checkout, `${OUTLAST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/outlast}`, so that
other checkouts reuse it; each entry appears complete or not at all, and a lock keeps two processes
from making the same one.

The engine is the first of: `pulumi` on PATH, at least the version of the pinned SDK and below 4;
one already in the cache; the one that the SDK's installer fetches; a build, through the Go module
proxy, of the version that `tools/engine/go.mod` pins.
"""

from __future__ import annotations  # So that an old Python reaches the sentence about it.

import argparse
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ((3, 11), (3, 13))
GO_MINIMUM = (1, 21)
"""From 1.21 on, `go` fetches the newer toolchain that go.mod asks for by itself."""
INSTALLER = "https://get.pulumi.com/install.sh"
REACH_TIMEOUT_SEC = 6
INSTALL_TIMEOUT_SEC = 600
ENGINE_PACKAGE = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
ENGINE_VERSION_VARIABLE = "github.com/pulumi/pulumi/sdk/v3/go/common/version.Version"

if sys.version_info[:2] >= PYTHONS[0]:  # An older one cannot read the module.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from outlast.cli.parts import (
        HOSTS,
        Progress,
        SetupError,  # type: ignore[assignment]
        cache_dir,
        clock,
        digest,
        engine_beside,
        engine_on_path,
        engine_version_text,
        ensure_image,
        ensure_wheels,
        foreign_engine,
        format_version,
        hosts_for,
        image_python,
        lock,
        made_whole,
        match,
        run,
        sdk_version,
        unfit_reason,
    )
else:

    class SetupError(Exception):  # type: ignore[no-redef]
        """One sentence: what is missing and what to do."""


# -------------------------------------------------------------------------------- where things are


def venv_python() -> Path:
    return ROOT / ".venv" / "bin" / "python"


def engine_version() -> str:
    """The version of the engine that tools/engine/go.mod pins, as `v3.1.2`."""
    text = (ROOT / "tools" / "engine" / "go.mod").read_text()
    pattern = r"^require github\.com/pulumi/pulumi/pkg/v3 (v\S+)$"
    return match(pattern, text, "tools/engine/go.mod", "github.com/pulumi/pulumi/pkg/v3")


def built_engine_dir() -> Path:
    """The cache folder of the engine built from tools/engine, by the module's content."""
    module = ROOT / "tools" / "engine"
    system = f"{platform.system()}-{platform.machine()}"
    found = digest(*(module / name for name in ("go.mod", "go.sum", "tools.go")), salt=system)
    return cache_dir() / "engine" / f"{engine_version()}-{found}"


# --------------------------------------------------------------------------------- what is missing


def check_machine() -> None:
    """Raises SetupError with one sentence for each missing requirement; takes less than a
    second.
    """
    missing = list(_missing_tools())
    if not _engine_at_hand() and not _go() and not _reachable(INSTALLER):
        missing.append(
            "no Pulumi engine: no suitable `pulumi` is on PATH, its installer's site cannot be "
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
    return bool(engine_on_path()[0] or _engine_in_cache())


def _reachable(url: str) -> bool:
    """Whether url answers within a few seconds, however slowly its name resolves."""
    answer: list[bool] = []

    def ask() -> None:
        try:
            # Not `urlopen`, which keeps the proxies of its first call.
            with urllib.request.build_opener().open(url, timeout=REACH_TIMEOUT_SEC) as response:
                answer.append(bool(response.read(1)))
        except (OSError, ValueError):
            pass  # No answer means that it cannot be reached.

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(REACH_TIMEOUT_SEC)
    return answer == [True]


# -------------------------------------------------------------------------------------- the engine


def installed_engine_dir() -> Path:
    """The cache folder of the engine that the SDK's installer fetches."""
    return cache_dir() / "engine" / f"v{format_version(sdk_version())}-installer"


def _engine_in_cache() -> Path | None:
    for folder in (installed_engine_dir(), built_engine_dir()):
        engine = folder / "bin" / "pulumi"
        if os.access(engine, os.X_OK):
            return engine
    return None


def ensure_engine(progress: Progress) -> Path:
    """The engine, fetched or built if none is at hand."""
    on_path, passed_over = engine_on_path()
    if passed_over:
        progress.line(passed_over)
    at_hand = on_path or _engine_in_cache()
    if at_hand:
        return at_hand
    with lock("engine", progress):
        return _engine_in_cache() or _install_engine(progress) or _build_engine(progress)


def _install_engine(progress: Progress) -> Path | None:
    """Fetches the engine by the SDK's installer; None, and a sentence, if that fails."""
    if not _reachable(INSTALLER):
        progress.line("engine: the installer's site cannot be reached; building instead")
        return None
    target = installed_engine_dir()
    install = "import sys; from pulumi.automation import PulumiCommand as P; P.install(sys.argv[1])"
    try:
        with made_whole(target) as draft:
            argv = [str(venv_python()), "-c", install, str(draft)]
            run(argv, progress, "engine: installing", timeout_sec=INSTALL_TIMEOUT_SEC)
    except SetupError as error:
        progress.line(f"engine: the SDK's installer failed; building instead. {error}")
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


def _build_engine(progress: Progress) -> Path:
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
    progress.line(f"engine: building {version} with Go (about ten minutes the first time)")
    listing = [go, "list", "-mod=readonly", "-deps", "-f", "{{.ImportPath}}", ENGINE_PACKAGE]
    packages = run(
        listing,
        progress,
        "engine: fetching modules",
        count=r"^go: downloading ",
        unit="modules",
        cwd=module,
        env=env,
    )
    total = len(packages.split())
    target = built_engine_dir()
    with made_whole(target) as draft:
        engine = draft / "bin" / "pulumi"
        stamp = f"-s -w -X {ENGINE_VERSION_VARIABLE}={version}"
        build = [go, "build", "-mod=readonly", "-trimpath", "-v", "-ldflags", stamp]
        run(
            [*build, "-o", str(engine), ENGINE_PACKAGE],
            progress,
            "engine: building",
            count=r"^[\w.\-/]+$",
            unit=f"packages, of at most {total}",
            cwd=module,
            env=env,
        )
        reason = unfit_reason(engine_version_text(engine))
        if reason:
            raise SetupError(f"the built engine is not suitable: {reason}.")
    return target / "bin" / "pulumi"


# ------------------------------------------------------------------------------------------ Python


COMPILED = ("outlast", "components", "trainers")
"""Folders of the project that processes import from."""


def ensure_venv(progress: Progress) -> None:
    """`.venv` with what requirements/dev.txt locks and the project itself, editable."""
    venv = ROOT / ".venv"
    stamp = venv / "outlast-requirements"
    wanted = digest(
        ROOT / "requirements" / "dev.txt",
        ROOT / "pyproject.toml",
        salt=f"{sys.version_info[:2]}{sys.base_prefix}",
    )
    if stamp.is_file() and stamp.read_text() == wanted and os.access(venv_python(), os.X_OK):
        return
    if not _same_python(venv_python()):
        run([sys.executable, "-m", "venv", "--clear", str(venv)], progress, ".venv: making")
    pip = [str(venv_python()), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    lock = ROOT / "requirements" / "dev.txt"
    locked = ["--require-hashes", "-r", str(lock)]
    what = ".venv: installing what requirements/dev.txt locks"
    try:
        uv = _installed_uv(pip, lock, progress)
        run(
            [*uv, "install", "--compile-bytecode", *locked],
            progress,
            what,
            env=_uv_environment(pip),
        )
    except SetupError as error:  # The index may be a mirror or proxy that only pip can use.
        progress.line(f".venv: uv cannot install; pip does it, which takes longer. {error}")
        run([*pip, "install", *locked], progress, what)
    editable = ["install", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(ROOT)]
    run([*pip, *editable], progress, ".venv: installing the project")
    compile_bytecode()
    stamp.write_text(wanted)


def _installed_uv(pip: Sequence[str], lock: Path, progress: Progress) -> list[str]:
    """`uv pip`, which is ten times as fast as pip. pip installs it, checked by the lock's
    hashes.
    """
    block = match(r"(^uv==.*(?:\n    .*)*)", lock.read_text(), "requirements/dev.txt", "uv")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as only:
        only.write(f"{block}\n")
        only.flush()
        run(
            [*pip, "install", "--require-hashes", "-r", only.name], progress, ".venv: installing uv"
        )
    return [str(venv_python().with_name("uv")), "pip"]


def _uv_environment(pip: Sequence[str]) -> dict[str, str]:
    """The environment variables that give uv the package index of pip."""
    found = dict(os.environ)
    found["VIRTUAL_ENV"] = str(ROOT / ".venv")
    names = {"UV_DEFAULT_INDEX": "index-url", "UV_INDEX": "extra-index-url"}
    for name, key in {**names, "UV_FIND_LINKS": "find-links"}.items():
        value = os.environ.get(f"PIP_{key.upper().replace('-', '_')}")
        asked = [*pip, "config", "get", f"global.{key}"]
        if not value:
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            value = done.stdout.strip() if done.returncode == 0 else ""
        if value:
            found.setdefault(name, value)
    return found


def compile_bytecode() -> None:
    """Compiles the project's bytecode, as pip does for packages. If Python may not write it
    (PYTHONDONTWRITEBYTECODE, which many containers set), each process would compile it again, which
    takes as long as all its imports. Files that change later are compiled at import.
    """
    command = [str(venv_python()), "-m", "compileall", "-q", *COMPILED]
    subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False
    )  # A checkout may be read-only.


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


# ------------------------------------------------------------------------------------------- stamp


def stamp_path() -> Path:
    return ROOT / ".venv" / "outlast-setup.json"


def _state() -> dict[str, object]:
    """What a finished setup depends on; it equals the stamp if there is nothing to do."""
    files = [ROOT / "requirements" / name for name in ("dev.txt", "vm.txt", "runtime.in")]
    files += [ROOT / "tools" / "engine" / name for name in ("go.mod", "go.sum", "tools.go")]
    files += [
        ROOT / "pyproject.toml",
        ROOT / "outlast" / "cli" / "parts.py",
        Path(__file__).resolve(),
    ]
    on_path = foreign_engine()
    return {
        "files": digest(*files),
        "python": f"{sys.version_info[:2]} {sys.base_prefix}",
        "cache": str(cache_dir()),
        "engine_on_path": [str(on_path), on_path.stat().st_mtime_ns] if on_path else None,
    }


def finished() -> dict[str, Any] | None:
    """The parts of an earlier setup that is still valid; None if there is something to do."""
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
    """Where the parts are, by the names of `outlast.cli.engine.Parts`. Raises SetupError if
    `make setup` has something to do."""
    found = finished()
    if not found:
        raise SetupError("The setup is not finished here: run `make setup`.")
    return found


def make(progress: Progress) -> dict[str, Any]:
    """Runs the setup; skips what is done."""
    check_python()
    done = finished()
    if done:
        return done
    check_machine()
    ensure_venv(progress)
    engine = ensure_engine(progress)
    image = ensure_image(venv_python(), progress)
    hosts = hosts_for(engine)
    engine = engine_beside(HOSTS, engine, venv_python()) if hosts else engine
    made = {
        "engine": str(engine),
        "hosts": str(hosts) if hosts else None,
        "image": str(image),
        "wheels": str(ensure_wheels(venv_python(), progress)),
        "python": str(venv_python()),
    }
    _write(stamp_path(), json.dumps({"state": _state(), "parts": made}, indent=2))
    return made


# --------------------------------------------------------------------------------------- mechanics


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
        took = clock(time.monotonic() - started)
        print(f"ready in {took}: engine {made['engine']}, image {made['image']}", flush=True)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
