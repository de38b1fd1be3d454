"""The trainer's packages with the real pip: files in every form, a commit, an index with a token.

Wheels come from a folder or from a server on loopback, so that no test asks another machine.
"""

import base64
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from outlast.base.retry import Patience
from outlast.bucket.store import MemoryStore
from outlast.spec import requirement_line, requirements
from outlast.spec.delivery import Git
from outlast.supervisor import environment, subprocesses
from outlast.supervisor.environment import (
    Builder,
    EnvironmentRefused,
    EnvironmentUnreachable,
    layers,
)
from outlast.supervisor.trainer_user import TrainerUser
from tests.another_user import needs_python
from tests.git_host import commit, serving
from tests.log_lines import log_lines
from tests.stores import FakeClock

BACKEND = """
import os, zipfile

INFO = "Metadata-Version: 2.1\\nName: %s\\nVersion: 1\\n" % NAME
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def build_wheel(folder, settings=None, metadata=None):
    name = f"{NAME}-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.write(f"{NAME}.py")
        for file, text in {"METADATA": INFO, "WHEEL": WHEEL, "RECORD": ""}.items():
            archive.writestr(f"{NAME}-1.dist-info/{file}", text)
    return name
"""
"""Builds a wheel of one module without a package of the index."""

pytestmark = pytest.mark.timeout(300)


def project_of(name: str) -> dict[str, str]:
    """Files of a project that can be built offline."""
    system = "[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"
    return {
        "pyproject.toml": f"[project]\nname='{name}'\nversion='1'\n{system}",
        "backend.py": f"NAME = {name!r}\n{BACKEND}",
        f"{name}.py": f"MADE_OF = {name!r}\n",
    }


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def wheel(folder: Path, name: str, version: str, needs: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    asked = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def printed(programs: Path, code: str) -> str:
    """What the environment's own Python prints."""
    argv = [str(programs / "python"), "-I", "-c", code]
    done = run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip in it; a copy costs less than another one."""
    made = tmp_path_factory.mktemp("venv") / "venv"
    run([sys.executable, "-m", "venv", str(made)], check=True, timeout=120)
    return made


class Runs:
    """Runs what the builder runs; an environment is copied."""

    def __init__(self, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = os.environ["PATH"]
        """What pip has for its PATH."""
        self.scratch: set[str] = set()
        """What its temporary files lie in."""
        self._venv, self._real = venv, subprocesses.run
        monkeypatch.setattr(subprocesses, "run", self)

    def __call__(self, argv: list[str], **given: Any) -> subprocesses.Done:
        if argv[1:3] == ["-m", "venv"]:
            shutil.copytree(self._venv, argv[-1], symlinks=True)
            return subprocesses.Done(0, b"")
        if "pip" in argv:
            given["env"] = {**given["env"], "PATH": self.path}
            self.scratch.add(given["env"]["TMPDIR"])
        return self._real(argv, **given)


@pytest.fixture(autouse=True)
def runs(venv: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(venv, monkeypatch)


class QuickClock(FakeClock):
    """Waits a little, so that a process that is waited for has the machine."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(min(seconds, 0.02))


@pytest.fixture
def clock() -> FakeClock:
    return QuickClock()


@pytest.fixture
def said() -> list[str]:
    return log_lines()


@pytest.fixture
def builder(tmp_path: Path, clock: FakeClock, said: list[str]) -> Builder:
    log = tmp_path / "pip.log"
    return Builder(tmp_path / "home", MemoryStore(), "e/", log, Patience(clock))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with wheels beside it, from which pip takes everything."""
    for name, version in (("apple", "1"), ("apple", "2"), ("pear", "1"), ("plum", "1")):
        wheel(tmp_path / "wheels", name, version, "pear" if name == "plum" else "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "asked").mkdir()
    return tmp_path / "asked"


def test_includes_constraints_markers_and_windows_files_are_installed(
    builder: Builder, asked: Path
):
    write(asked, {"base.txt": "plum \\\n  >= 1 # with pear\n", "limits.txt": "apple<2\n"})
    text = "-r base.txt\r\n-c limits.txt\r\napple\r\nnothing ; sys_platform == 'win32'\r\n"
    (asked / "needs.txt").write_bytes(text.encode("utf-16"))
    programs = builder.ensure(asked / "needs.txt")
    assert printed(programs, "import apple, pear, plum; print(apple.VERSION)") == "1"


def test_a_file_deep_in_a_repository_can_include_files_above_it(builder: Builder, asked: Path):
    write(asked, {"base.txt": "pear\n", "train/req/gpu.txt": "-r ../../base.txt\napple\n"})
    programs = builder.ensure(asked / "train/req/gpu.txt", asked)
    assert printed(programs, "import apple, pear; print(apple.VERSION)") == "2"


def test_local_projects_are_built_beside_the_file_and_count_by_their_bytes(
    builder: Builder, asked: Path
):
    write(asked / "lib", project_of("mine"))
    wheel(asked / "vendored", "fig", "3")
    (asked / "requirements.txt").write_text("-e ./lib\nvendored/fig-3-py3-none-any.whl\n")
    programs = builder.ensure(asked)
    assert printed(programs, "import fig, mine; print(mine.MADE_OF, fig.VERSION)") == "mine 3"
    (before,) = layers(asked)
    (asked / "lib" / "mine.py").write_text("MADE_OF = 'other'\n")
    (after,) = layers(asked)
    assert before.key != after.key
    (asked / "lib" / "unrelated.txt").unlink(missing_ok=True)
    (asked / "notes.md").write_text("counts for nothing\n")
    assert layers(asked)[0].key == after.key


def test_a_commit_is_installed_on_a_machine_without_git(
    builder: Builder, asked: Path, tmp_path: Path, runs: Runs
):
    runs.path = "/nonexistent"
    files = {f"python/{name}": text for name, text in project_of("clip").items()}
    head = commit(tmp_path / "hosted" / "clip", files)
    with serving(tmp_path / "hosted") as host:
        line = f"clip @ git+{host.url}/clip@{head}#subdirectory=python\napple\n"
        (asked / "needs.txt").write_text(line)
        programs = builder.ensure(asked / "needs.txt")
        assert host.requests
    assert printed(programs, "import clip, apple; print(clip.MADE_OF)") == "clip"


def test_a_private_commit_is_read_with_the_secret_of_the_code_on_the_same_host_only(
    builder: Builder, asked: Path, tmp_path: Path
):
    head = commit(tmp_path / "hosted" / "clip", project_of("clip"))
    secret = "projects/p/secrets/deploy/versions/latest"
    names: list[str] = []

    def read(name: str) -> bytes:
        names.append(name)
        return b"the-token"

    builder = replace(builder, secret=read)
    with serving(tmp_path / "hosted", "the-token") as host:
        (asked / "needs.txt").write_text(f"clip @ git+{host.url}/clip@{head}\n")
        elsewhere = Git("https://git.example/o/n.git", head, secret=secret)
        with pytest.raises(EnvironmentRefused, match=r"may not be read without a secret; correct"):
            builder.ensure(asked / "needs.txt", None, elsewhere)
        assert not names and not host.users
        own = Git(f"{host.url}/own.git", head, secret=secret)
        programs = builder.ensure(asked / "needs.txt", None, own)
        assert set(names) == {secret} and host.users
    assert printed(programs, "import clip; print(clip.MADE_OF)") == "clip"
    kept = [builder.store.get(one.path)[0] for one in builder.store.list("e/")]
    assert (
        kept and b"the-token" not in b"".join(kept) and "the-token" not in builder.log.read_text()
    )


def test_an_unavailable_commit_is_named_with_its_line(
    builder: Builder, asked: Path, tmp_path: Path
):
    head = commit(tmp_path / "hosted" / "clip", project_of("clip"))
    other = "0" * 40
    with serving(tmp_path / "hosted") as host:
        for fragment, sha, why in (
            ("", other, "is not in"),
            ("#subdirectory=no", head, "no folder"),
        ):
            (asked / "needs.txt").write_text(f"apple\ngit+{host.url}/clip@{sha}{fragment}\n")
            with pytest.raises(EnvironmentRefused, match=r"needs\.txt line 2 'git\+http") as caught:
                builder.ensure(asked / "needs.txt")
            assert why in str(caught.value) and "outlast:gitCommit" not in str(caught.value)


def test_a_project_that_was_never_meant_to_be_built_trains_with_its_dependencies(
    builder: Builder, asked: Path
):
    pyproject = "[project]\nname='x'\nversion='0'\ndependencies=['apple<2']\n"
    write(asked, {"pyproject.toml": pyproject, "train.py": "", "prepare.py": ""})
    assert printed(builder.ensure(asked), "import apple; print(apple.VERSION)") == "1"
    (asked / "requirements.txt").write_text("pear\napple\n")
    assert printed(builder.ensure(asked), "import apple, pear; print(apple.VERSION)") == "2"


def test_a_missing_package_is_named_with_its_line(builder: Builder, asked: Path):
    write(asked, {"needs.txt": "apple\n-r base.txt\n", "base.txt": "no-such-thing>=1\n"})
    with pytest.raises(EnvironmentRefused, match=r"requirements: base\.txt line 1 no-such-thing; "):
        builder.ensure(asked / "needs.txt")


def test_requirements_without_a_package_for_this_machine_give_one_sentence(
    builder: Builder, asked: Path
):
    (asked / "needs.txt").write_text("apple ; sys_platform == 'win32'\n")
    with pytest.raises(EnvironmentRefused, match="no package is for this machine"):
        builder.ensure(asked / "needs.txt")


def test_pips_temporary_files_are_beside_the_environment(
    builder: Builder, asked: Path, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
):
    """The system's own folder for it may be a small part of the memory."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("TMPDIR", str(memory))
    write(asked / "lib", project_of("mine"))
    write(asked, {"requirements.txt": "./lib\n"})
    backend = asked / "lib" / "backend.py"
    notes = tmp_path / "tempdir"
    backend.write_text(
        f"import tempfile\nopen({str(notes)!r}, 'w').write(tempfile.gettempdir())\n"
        + backend.read_text()
    )
    builder.ensure(asked)
    assert runs.scratch == {str(builder.home / "tmp")}
    assert notes.read_text() == str(builder.home / "tmp")
    assert list(memory.iterdir()) == []


# -- an index of Google's


class Index:
    """A package index that accepts requests with the token."""

    def __init__(self, wheels: Path, refuses: Callable[[], bool]) -> None:
        self.passwords: list[str] = []
        self.is_away = False
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:  # noqa: N802
                header = self.headers.get("Authorization", "").removeprefix("Basic ")
                named = base64.b64decode(header).decode()
                index.passwords.append(named)
                if index.is_away:
                    return self.answer(503, b"")
                if named != "oauth2accesstoken:vm-token":
                    return self.answer(401, b"")
                if refuses():
                    return self.answer(403, b"")
                names = [path.name for path in wheels.iterdir()]
                asked = self.path.rstrip("/").rpartition("/")[2]
                if asked in names:
                    return self.answer(200, (wheels / asked).read_bytes())
                found = [name for name in names if name.startswith(f"{asked}-")]
                links = "".join(f'<a href="/files/{name}">{name}</a>' for name in found)
                return self.answer(200, f"<!DOCTYPE html><html>{links}</html>".encode())

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/acme/wheels/simple/"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def refusals() -> list[int]:
    """An entry for each answer 403 to come."""
    return []


@pytest.fixture
def index(tmp_path: Path, refusals: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index on loopback that stands for a host of Artifact Registry."""
    wheel(tmp_path / "private", "secretlib", "1")
    found = Index(tmp_path / "private", lambda: bool(refusals) and bool(refusals.pop() or True))
    known = re.compile(r"127\.0\.0\.(?P<location>1)")
    monkeypatch.setattr(requirements, "PKG_DEV", known)
    monkeypatch.setattr(requirement_line, "PKG_DEV", known)
    for name in [name for name in os.environ if name.startswith("PIP_") or "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")
    yield found
    found.server.shutdown()
    found.server.server_close()


def with_token(builder: Builder, forbidden_sec: float = 0.0) -> Builder:
    return Builder(
        *(builder.home, builder.store, builder.kept, builder.log, builder.patience),
        token=lambda: "vm-token",
        email=lambda: "outlast-dev@acme.iam.gserviceaccount.com",
        forbidden_sec=forbidden_sec,
    )


def test_a_google_index_is_read_with_the_vms_own_token(
    builder: Builder, index: Index, tmp_path: Path, refusals: list[int], said: list[str]
):
    folder = write(tmp_path / "asked", {"needs.txt": f"-i {index.url}\nsecretlib\n"})
    refusals.append(1)  # the binding is spreading
    programs = with_token(builder, 3600.0).ensure(folder / "needs.txt")
    assert printed(programs, "import secretlib; print(secretlib.VERSION)") == "1"
    assert "oauth2accesstoken:vm-token" in index.passwords
    assert any("answered 403" in line and "may still be spreading" in line for line in said)
    assert "vm-token" not in builder.log.read_text() and not any("vm-token" in s for s in said)
    assert not list(tmp_path.rglob("netrc"))


def test_an_index_that_always_refuses_is_named_with_the_role(
    builder: Builder, index: Index, tmp_path: Path, refusals: list[int]
):
    folder = write(tmp_path / "asked", {"needs.txt": f"-i {index.url}\nsecretlib\n"})
    refusals.extend(range(1000))
    with pytest.raises(EnvironmentRefused) as caught:
        with_token(builder).ensure(folder / "needs.txt")
    said = str(caught.value).splitlines()[0]
    assert "the index 127.0.0.1 answered 403; let this VM read it: gcloud artifacts" in said
    assert "add-iam-policy-binding wheels --project acme --location 1 --member" in said
    assert "serviceAccount:outlast-dev@acme.iam.gserviceaccount.com" in said


def test_another_private_index_is_named_with_its_answer(
    builder: Builder, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = write(tmp_path / "asked", {"needs.txt": f"-i {index.url}\nsecretlib\n"})
    monkeypatch.setattr(requirements, "PKG_DEV", re.compile("no host"))
    with pytest.raises(
        EnvironmentRefused, match=r"the index 127\.0\.0\.1 answered 401; use one that needs no"
    ):
        builder.ensure(folder / "needs.txt")
    assert set(index.passwords) == {""}


def test_an_unreachable_index_is_tried_again_later(builder: Builder, index: Index, tmp_path: Path):
    folder = write(tmp_path / "asked", {"needs.txt": f"-i {index.url}\nsecretlib\n"})
    index.is_away = True
    with pytest.raises(EnvironmentUnreachable, match="give the VM access to the package index"):
        builder.ensure(folder / "needs.txt")


# -- a trainer with its own user ----------------------------------------------------------------


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_the_trainers_own_user_builds_and_root_installs(builder: Builder, open_folder: Path):
    needs_python()
    user = TrainerUser(open_folder / "user")
    user.make(user.home)
    own = replace(builder, home=open_folder / "home", log=open_folder / "pip.log", user=user)
    (open_folder / "secret").write_text("of root")
    (open_folder / "secret").chmod(0o600)
    files = project_of("mine")
    code = f"UID, SECRET = {{os.getuid()}}, {{os.access({str(open_folder / 'secret')!r}, os.R_OK)}}"
    files["backend.py"] = files["backend.py"].replace(
        'archive.write(f"{NAME}.py")', f'archive.writestr(f"{{NAME}}.py", f"{code}")'
    )
    write(open_folder / "code", files)
    programs = own.ensure(open_folder / "code")
    said = printed(programs, "import mine; print(mine.UID, mine.SECRET)")
    assert said == f"{user.uid} False"
    others = [path for path in (open_folder / "home").rglob("*") if path.lstat().st_uid]
    assert others == []
    # The next boot takes what is kept.
    shutil.rmtree(open_folder / "home")
    again = own.ensure(open_folder / "code")
    assert printed(again, "import mine; print(mine.UID)") == str(user.uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_a_build_of_the_trainers_own_user_that_fails_is_named(builder: Builder, open_folder: Path):
    needs_python()
    user = TrainerUser(open_folder / "user")
    user.make(user.home)
    own = replace(builder, home=open_folder / "home", log=open_folder / "pip.log", user=user)
    files = project_of("mine") | {"backend.py": "raise SystemExit('no such compiler')\n"}
    write(open_folder / "code", files)
    with pytest.raises(EnvironmentRefused, match="its build failed; correct pyproject.toml"):
        own.ensure(open_folder / "code")


def test_the_token_of_the_vm_reaches_no_build_of_the_trainers_own_user(
    builder: Builder, asked: Path
):
    index = "--index-url https://europe-python.pkg.dev/p/r/simple/"
    (asked / "requirements.txt").write_text(f"{index}\napple\n")
    own = replace(builder, token=lambda: "a-token", user=TrainerUser(asked / "user", os.geteuid()))
    with pytest.raises(EnvironmentRefused, match="which builds do not get with"):
        own.ensure(asked)


def test_only_plain_files_of_a_build_are_taken_over(tmp_path: Path):
    made, into = tmp_path / "made", tmp_path / "into"
    for folder in (made, into):
        folder.mkdir()
    wheel(made, "fig", "1")
    (made / "notes.txt").write_text("none")
    environment._take_over(made, os.geteuid(), into)
    assert [path.name for path in into.iterdir()] == ["fig-1-py3-none-any.whl"]
    (made / "plum-1-py3-none-any.whl").symlink_to("/etc/hostname")
    with pytest.raises(EnvironmentRefused, match="a build left a file that is not a wheel"):
        environment._take_over(made, os.geteuid(), into)
