"""`make setup`: what it finds missing, which engine it takes, and what it makes."""

import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from outlast.cli import parts
from tests.tools.conftest import SETUP

ROOT = SETUP.parents[1]
REFUSING = "http://127.0.0.1:9"
"""A proxy that refuses every connection: a network without a way out."""


def fake_engine(folder: Path, prints: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    engine = folder / "pulumi"
    engine.write_text(f"#!/bin/sh\necho '{prints}'\n")
    engine.chmod(0o755)
    return engine


def closed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, REFUSING)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7)])
def test_other_pythons_are_refused_in_one_sentence(setup: ModuleType, version):
    with pytest.raises(setup.SetupError) as caught:
        setup.check_python(version)
    text = str(caught.value)
    assert text.startswith(f"Python {version[0]}.{version[1]}: Outlast runs on Python 3.11 to 3.13")
    assert "\n" not in text


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_supported_pythons_pass(setup: ModuleType, version):
    setup.check_python(version)


@pytest.mark.parametrize("text", ["v3.272.0", "3.272.0", "v3.999.1-alpha.7", "v3.274.1+dirty"])
def test_engines_from_the_sdks_version_on_fit(setup: ModuleType, text):
    assert setup.unfit_reason(text) is None


@pytest.mark.parametrize("text", ["v3.271.9", "v2.25.2", "v4.0.0", "", "garbage"])
def test_other_engines_do_not_fit_and_the_rule_is_said(setup: ModuleType, text):
    reason = setup.unfit_reason(text)
    assert reason and "at least 3.272.0" in reason and "below 4" in reason


def test_the_built_engine_fits_the_sdk(setup: ModuleType):
    assert setup.unfit_reason(setup.engine_version()) is None


def test_an_engine_on_path_is_taken_if_it_fits(setup: ModuleType, monkeypatch, tmp_path):
    engine = fake_engine(tmp_path / "bin", "v3.300.0")
    monkeypatch.setenv("PATH", str(engine.parent))
    assert setup.ensure_engine(setup.Progress()) == engine


def test_an_engine_on_path_that_does_not_fit_is_named_and_passed_over(
    setup: ModuleType, monkeypatch, tmp_path, capsys
):
    unfit = fake_engine(tmp_path / "bin", "v3.100.0")
    cached = fake_engine(setup.built_engine_dir() / "bin", setup.engine_version())
    monkeypatch.setenv("PATH", str(unfit.parent))
    assert setup.ensure_engine(setup.Progress()) == cached
    said = capsys.readouterr().err
    assert f"{unfit} is not used: its version is 3.100.0" in said


def test_an_engine_that_does_not_run_is_passed_over(setup: ModuleType, monkeypatch, tmp_path):
    broken = fake_engine(tmp_path / "bin", "v3.300.0")
    broken.write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("PATH", str(broken.parent))
    assert setup.engine_on_path()[0] is None


def test_the_caches_own_engine_on_path_changes_nothing(setup: ModuleType, monkeypatch):
    before = setup._state()
    cached = fake_engine(setup.built_engine_dir() / "bin", setup.engine_version())
    monkeypatch.setenv("PATH", f"{cached.parent}:{os.environ['PATH']}")
    assert setup._state() == before


def test_no_engine_to_be_had_is_said_within_seconds(setup: ModuleType, monkeypatch, tmp_path):
    for tool in ("git", "make"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    closed_network(monkeypatch)
    started = time.monotonic()
    with pytest.raises(setup.SetupError, match="no Pulumi engine: .* install Pulumi or Go 1.26"):
        setup.check_machine()
    assert time.monotonic() - started < setup.REACH_TIMEOUT_SEC + 1


def test_missing_tools_are_each_named(setup: ModuleType, monkeypatch, tmp_path):
    fake_engine(tmp_path, "v3.300.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.SetupError) as caught:
        setup.check_machine()
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["git", "make"]


def test_an_old_go_counts_as_missing(setup: ModuleType, monkeypatch, tmp_path):
    go = tmp_path / "go"
    monkeypatch.setenv("PATH", str(tmp_path))
    for version, fits in (("go1.20.3", False), ("go1.21", True), ("go1.26.8", True)):
        go.write_text(f"#!/bin/sh\necho {version}\n")
        go.chmod(0o755)
        assert bool(setup._go()) is fits


def test_a_failing_build_leaves_nothing(setup: ModuleType, monkeypatch, tmp_path, capsys):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "  env) echo go1.26.8 ;;\n"
        "  list) echo 'go: downloading example.com/m v1' >&2; printf 'a\\nb\\n' ;;\n"
        "  *) echo 'no such module' >&2; exit 1 ;;\n"
        "esac\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    closed_network(monkeypatch)
    with pytest.raises(setup.SetupError, match="no such module"):
        setup.ensure_engine(setup.Progress())
    said = capsys.readouterr().err
    assert "1 modules" in said
    assert "installer's site cannot be reached" in said
    kept = [path.name for path in setup.cache_dir().rglob("*") if not path.name.endswith(".lock")]
    assert kept == ["engine"]


def test_what_a_killed_build_left_goes_with_the_next_and_a_running_builds_stays(tmp_path):
    building = (
        "import sys; from pathlib import Path; from outlast.cli.parts import made_whole\n"
        "with made_whole(Path(sys.argv[1])): print('begun', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", building, str(tmp_path / "other")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"begun\n"
        (running,) = tmp_path.iterdir()
        with parts.made_whole(tmp_path / "one"):
            assert running.is_dir()
        other.kill()
    assert {path.name for path in tmp_path.iterdir()} == {running.name, "one"}
    with parts.made_whole(tmp_path / "two"):
        assert not running.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_a_build_is_stamped_counted_and_reused(setup: ModuleType, monkeypatch, tmp_path, capsys):
    log = tmp_path / "calls"
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {log}\n'
        'case "$1" in\n'
        "  env) echo go1.26.8 ;;\n"
        "  list) printf 'a\\nb\\n' ;;\n"
        '  build) while [ "$1" != -o ]; do shift; done; mkdir -p "$(dirname "$2")"\n'
        f"    printf '#!/bin/sh\\necho {setup.engine_version()}\\n' > \"$2\"\n"
        '    chmod +x "$2"; echo internal/a >&2; echo example.com/b >&2 ;;\n'
        "esac\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    closed_network(monkeypatch)
    engine = setup.ensure_engine(setup.Progress())
    assert engine == setup.built_engine_dir() / "bin" / "pulumi"
    assert "2 packages, of at most 2" in capsys.readouterr().err
    build = next(line for line in log.read_text().splitlines() if line.startswith("build"))
    assert f"{setup.ENGINE_VERSION_VARIABLE}={setup.engine_version()}" in build
    assert "-trimpath" in build
    calls = log.read_text()
    assert setup.ensure_engine(setup.Progress()) == engine
    assert log.read_text() == calls


def test_stand_ins_are_used_only_where_official_hosts_lack(
    setup: ModuleType, monkeypatch, tmp_path
):
    engine = fake_engine(tmp_path / "engine", "v3.300.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.hosts_for(engine) == setup.HOSTS
    for name in (parts.LANGUAGE_HOST, parts.DYNAMIC_HOST):
        (engine.parent / name).symlink_to("/bin/true")
    assert setup.hosts_for(engine) is None
    (engine.parent / parts.DYNAMIC_HOST).rename(tmp_path / parts.DYNAMIC_HOST)
    assert setup.hosts_for(engine) is None


def test_the_caches_engine_gets_a_second_name_among_the_stand_ins(
    setup: ModuleType, monkeypatch, tmp_path
):
    hosts = tmp_path / "hosts"
    engine = fake_engine(setup.built_engine_dir() / "bin", setup.engine_version())
    fake_engine(hosts, "v3.272.0")  # an older setup's
    for _ in range(2):
        assert setup.engine_beside(hosts, engine, Path(sys.executable)) == hosts / "pulumi"
        assert (hosts / "pulumi").samefile(engine)
        assert sorted(path.name for path in hosts.iterdir()) == ["interpreter", "pulumi"]
        assert (hosts / "interpreter").read_text() == f"{sys.executable}\n"
    # On the PATH of a shell it is still the cache's own, this checkout's or another's.
    monkeypatch.setenv("PATH", str(hosts))
    assert setup.foreign_engine() is None


def test_an_engine_that_can_have_no_second_name_stays_where_it_is(
    setup: ModuleType, monkeypatch, tmp_path
):
    def other_file_system(*paths):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    hosts = tmp_path / "hosts"
    cached = fake_engine(setup.built_engine_dir() / "bin", setup.engine_version())
    on_path = fake_engine(tmp_path / "bin", "v3.300.0")
    monkeypatch.setattr(os, "link", other_file_system)
    for engine in (cached, on_path):
        fake_engine(hosts, "v3.272.0")  # an older setup's would come first on PATH
        assert setup.engine_beside(hosts, engine, Path(sys.executable)) == engine
        assert [path.name for path in hosts.iterdir()] == ["interpreter"]


@pytest.mark.parametrize("name", ["pulumi-language-python", "pulumi-resource-pulumi-python"])
def test_a_stand_in_on_path_steps_aside(name, tmp_path):
    official = tmp_path / name
    official.write_text('#!/bin/sh\necho official "$@"\n')
    official.chmod(0o755)
    hosts = parts.HOSTS
    done = subprocess.run(
        [hosts / name, "engine:1", "a b"],
        env={"PATH": f"{hosts}:{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "official engine:1 a b\n")


@pytest.mark.parametrize("name", ["pulumi-language-python", "pulumi-resource-pulumi-python"])
def test_a_stand_in_prints_its_port_and_ends_with_the_engine(name):
    hosts = parts.HOSTS
    process = subprocess.Popen(
        [hosts / name, "127.0.0.1:1"],
        env={"PATH": f"{hosts}:/usr/bin:/bin", "OUTLAST_STAND_IN": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin and process.stdout and process.stderr
        try:
            assert int(process.stdout.readline()) > 0
            process.stdin.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["runtime", "dev", "vm", "frameworks"])
def test_locks_have_a_hash_for_each_version_and_name_no_address(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text and "--index-url" not in text
    blocks = [block for block in text.split("\n") if "==" in block and not block.startswith(" ")]
    assert blocks and all(block.endswith("\\") for block in blocks)
    assert text.count("--hash=sha256:") >= len(blocks)


def test_a_vm_has_the_versions_that_the_checkout_has():
    def pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        return {line.rstrip(" \\") for line in lines if "==" in line and not line.startswith(" ")}

    assert pins("vm") <= pins("runtime") <= pins("dev")


def test_the_projects_bytecode_is_made_where_python_writes_none(setup, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    python = setup.venv_python()
    monkeypatch.setattr(setup, "venv_python", lambda: python)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    for folder in setup.COMPILED:
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep/module.py").write_text("x = 1\n")
    setup.compile_bytecode()
    assert len(list(tmp_path.glob("*/deep/__pycache__/module.*.pyc"))) == len(setup.COMPILED)


def test_print_names_parts_that_are_there():
    done = subprocess.run(
        [sys.executable, SETUP, "--print"], capture_output=True, text=True, timeout=60, check=True
    )
    parts = json.loads(done.stdout)
    assert set(parts) == {"engine", "hosts", "image", "wheels", "python"}
    assert os.access(parts["engine"], os.X_OK) and os.access(parts["python"], os.X_OK)
    assert list(Path(parts["wheels"]).glob("numpy-*.whl"))


def test_a_second_setup_takes_less_than_two_seconds():
    """Of processor time, which does not grow while others work beside it."""

    def used_sec():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = used_sec()
    done = subprocess.run(
        [sys.executable, SETUP], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("ready in 0:")
    assert used_sec() - before < 2


def test_the_image_works_from_another_root_and_holds_no_project(tmp_path):
    parts = json.loads(subprocess.check_output([sys.executable, SETUP, "--print"], timeout=60))
    (tmp_path / "opt").symlink_to(Path(parts["image"]) / "opt")
    python = tmp_path / "opt" / "outlast" / "venv" / "bin" / "python"
    program = (
        "import sys, importlib.util as u, blake3, numpy, google.cloud.storage; print(sys.prefix);"
        "print([name for name in ('outlast', 'pulumi') if u.find_spec(name)])"
    )
    done = subprocess.run(
        [python, "-P", "-c", program],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    prefix, project = done.stdout.splitlines()
    assert Path(prefix) == tmp_path / "opt" / "outlast" / "venv"
    assert project == "[]"


def test_the_editable_install_has_one_package_only(tmp_path):
    program = (
        "import importlib.util as u; print([n for n in ('outlast', 'trainers', "
        "'components', 'settings', 'tools') if u.find_spec(n)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "['outlast']\n"


def test_the_stand_ins_pass_the_shell_checks():
    hosts = parts.HOSTS
    scripts = [*sorted(hosts.glob("pulumi-*")), hosts / "step_aside.sh"]
    assert len(scripts) == 3
    tools = Path(sys.executable).parent
    for check in (["shellcheck", "--external-sources"], ["shfmt", "-d", "-i", "2"]):
        done = subprocess.run(
            [tools / check[0], *check[1:], *scripts],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_make_alone_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    # Not as a make below the one that runs the tests, which would say where it is.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == phony
