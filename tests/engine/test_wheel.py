"""The built wheel, in its own environment and far from the checkout."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from outlast.base.folders import PACKAGE
from outlast.cli import parts
from outlast.spec import bundle

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = PACKAGE.parent
UV = Path(sys.prefix) / "bin" / "uv"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what requirements/runtime.txt locks."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "checkout"
    parts_of_it = ("outlast", "components", "policy", "requirements", "startup", "trainers")
    ignored = shutil.ignore_patterns("__pycache__", "pulumi", "interpreter")
    for name in parts_of_it:
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/build_backend.py"):
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, sources / name)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run([sys.executable, "-m", "pip", *build], cwd=sources, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    make = [str(UV), "venv", "--quiet", "--seed", "--python", sys.executable, str(venv)]
    subprocess.run(make, check=True, timeout=300)
    install = [str(UV), "pip", "install", "--quiet", "--python", str(venv / "bin/python")]
    lock = ["--require-hashes", "-r", str(ROOT / "requirements" / "runtime.txt")]
    subprocess.run([*install, *lock], check=True, timeout=600)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, timeout=300)
    return venv


def called(
    environment: Path, *words: str, cwd: Path, path: str = "/usr/bin:/bin", **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {"PATH": path, "HOME": os.environ.get("HOME", "/"), **variables}
    if "OUTLAST_CACHE" in os.environ:
        env.setdefault("OUTLAST_CACHE", os.environ["OUTLAST_CACHE"])
    return subprocess.run(
        [str(environment / "bin" / words[0]), *words[1:]],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_wheel_makes_the_same_bundle_as_the_checkout(environment: Path, tmp_path: Path) -> None:
    code = (
        "import hashlib\n"
        "from outlast.base.folders import PACKAGE\n"
        "from outlast.spec import bundle\n"
        "print(PACKAGE, hashlib.sha256(bundle.pack(PACKAGE.parent)).hexdigest())\n"
    )
    done = called(environment, "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    package, digest = done.stdout.split()
    assert Path(package).is_relative_to(environment)
    assert digest == hashlib.sha256(bundle.pack(ROOT)).hexdigest()


def test_the_wheel_contains_the_packages_tracked_files(environment: Path) -> None:
    """Files other than Python that a run needs are included; programs are executable."""
    (package,) = environment.glob("lib/python*/site-packages/outlast")
    listed = subprocess.run(
        ["git", "ls-files", "outlast", "components", "policy", "startup", "trainers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        source = ROOT / name
        if source.is_symlink() or source.name == ".gitignore":
            continue
        found = package / name.removeprefix("outlast/")
        assert found.is_file(), f"{name}: is not in the wheel"
        assert os.access(found, os.X_OK) == os.access(source, os.X_OK), name


def test_without_an_engine_one_sentence_says_how_to_get_it(
    environment: Path, tmp_path: Path
) -> None:
    made = called(environment, "outlast", "init", "demo", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    done = called(
        environment, "outlast", "rehearse", cwd=tmp_path / "demo", OUTLAST_CACHE=str(tmp_path / "c")
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "pulumi: no engine is on PATH or in" in line and "install Pulumi 3." in line


def test_outside_a_project_one_sentence_says_what_to_do(environment: Path, tmp_path: Path) -> None:
    done = called(environment, "outlast", "rehearse", cwd=tmp_path)
    assert done.returncode == 1
    assert "has a Pulumi.yaml; go to your project, or create one with outlast init" in done.stderr


def test_a_new_project_is_rehearsed_and_reviewed_and_comes_up(
    environment: Path, tmp_path: Path
) -> None:
    """And its stack is the same one for the checkout, which changes it for the wheel."""
    made = called(environment, "outlast", "init", "demo", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    demo = tmp_path / "demo"
    # Without faults: what a busy machine makes of a short notice is not the wheel's business.
    baseline = ["--scenario", "baseline", "--json"]
    done = called(environment, "outlast", "rehearse", *baseline, cwd=demo)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["held"] is True and report["run"]

    state = str(tmp_path / "state")
    started = called(environment, "outlast", "cloud", "start", "--state", state, cwd=demo)
    assert started.returncode == 0, started.stderr
    try:
        script = f"""{started.stdout}
            set -e
            pulumi preview --non-interactive
            outlast preview dev
            pulumi up --yes --non-interactive
            cp Pulumi.yaml of-wheel.yaml
            sed -i 's|virtualenv: .*|virtualenv: {sys.prefix}|' Pulumi.yaml
            pulumi preview --non-interactive --expect-no-changes
            pulumi config set --path outlast:labels.team blue
            pulumi up --yes --non-interactive
            mv of-wheel.yaml Pulumi.yaml
            pulumi preview --non-interactive --expect-no-changes
            outlast status dev
            pulumi destroy --yes --non-interactive
        """
        env = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
        shell = subprocess.run(
            ["bash", "-c", script], cwd=demo, env=env, capture_output=True, text=True, timeout=600
        )
        assert shell.returncode == 0, shell.stdout + shell.stderr
        assert "Experiment" in shell.stdout and "starts from scratch" in shell.stdout
    finally:
        stopped = called(environment, "outlast", "cloud", "stop", "--state", state, cwd=demo)
    assert stopped.returncode == 0, stopped.stderr


def test_a_wheel_knows_the_commit_that_it_is_built_from(environment: Path, tmp_path: Path) -> None:
    sources = environment.parent / "checkout"
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "All"]):
        subprocess.run(["git", *words], cwd=sources, check=True, timeout=60)
    head = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, cwd=sources, capture_output=True, text=True, check=True).stdout
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    subprocess.run([sys.executable, "-m", "pip", *build], cwd=sources, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("outlast/cli/commit.txt").decode() == commit.strip()
    assert not (sources / "outlast/cli/commit.txt").exists()
    done = called(environment, "outlast", "--version", cwd=tmp_path)
    assert done.stdout == "outlast 0.1.0\n"  # that one was built without a repository


def test_the_engine_of_the_cache_fits(environment: Path) -> None:
    assert parts.engine_in_cache() or parts.engine_on_path()[0]
