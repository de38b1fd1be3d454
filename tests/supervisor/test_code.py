"""Code made ready before the trainer: what is kept, what ends the run, what another VM may try."""

import base64
import hashlib
import json
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import pytest

from outlast.base.retry import BUILD_TRIES, CODE_TRIES, Limits, Patience
from outlast.bucket.store import MemoryStore
from outlast.spec.delivery import Git
from outlast.supervisor import code as coding
from outlast.supervisor import environment, subprocesses
from outlast.supervisor.code import CodeRefused, CodeSetup, CodeUnavailable
from outlast.supervisor.environment import (
    Builder,
    EnvironmentRefused,
    EnvironmentUnreachable,
    layers,
)
from outlast.supervisor.metadata import Metadata
from outlast.supervisor.secrets import SecretReader, TrainerSecrets
from tests.log_lines import log_lines
from tests.stores import FakeClock

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
SECRET = "projects/p/secrets/deploy/versions/latest"
COMMIT = "0123456789" * 4
SHA = hashlib.sha256(b"wheel").hexdigest()
"""Of what the pip of these tests makes."""


class Answers:
    """A metadata server and Secret Manager: a token, and the answers to come."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.asked: list[tuple[str, str]] = []
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:  # noqa: N802
                answers.asked.append((self.path, self.headers.get("Authorization", "")))
                payload = {"data": base64.b64encode(b"the-secret").decode()}
                body = json.dumps({"access_token": "t", "expires_in": 3600, "payload": payload})
                is_secret = self.path.startswith("/v1/")
                status = answers.statuses.pop(0) if is_secret and answers.statuses else 200
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    found = Answers()
    monkeypatch.setenv("OUTLAST_SECRET_MANAGER_ENDPOINT", f"{found.url}/")
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def said() -> list[str]:
    return log_lines()


@pytest.fixture
def setup(answers: Answers, tmp_path: Path, said: list[str]) -> CodeSetup:
    clock = FakeClock()
    home = tmp_path / "home"
    store = MemoryStore()
    builder = Builder(home, store, "e/environments/", tmp_path / "pip.log", Patience(clock))
    metadata = Metadata(f"{answers.url}/computeMetadata/v1")
    limits = Limits(forbidden_sec=30, silent_tries=CODE_TRIES)
    patience = Patience(clock, limits=limits)
    reader = SecretReader(metadata, patience)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    secrets = TrainerSecrets(reader, {})
    return CodeSetup(bundle, home, secrets, builder, patience)


def test_a_secret_is_read_with_the_vms_own_token_once_permissions_have_spread(
    setup: CodeSetup, answers: Answers, said: list[str]
):
    answers.statuses = [403, 503, 403, 200]
    assert setup.secrets.reader.read("gitSecret", SECRET) == b"the-secret"
    secrets = [call for call in answers.asked if call[0].startswith("/v1/")]
    assert secrets == [(f"/v1/{SECRET}:access", "Bearer t")] * 4
    assert not any("the-secret" in line for line in said)


@pytest.mark.parametrize(
    ("statuses", "kind", "expected"),
    [
        ([404], CodeRefused, "does not exist, or has no version"),
        ([400], CodeRefused, "is disabled or destroyed"),
        ([403] * 40, CodeRefused, "may not be read by this VM; grant its service account"),
        ([503] * 40, CodeUnavailable, "status 503"),
    ],
)
def test_a_secret_that_cannot_be_read_ends_the_run_or_the_machine(
    setup: CodeSetup, answers: Answers, statuses: list[int], kind: type[Exception], expected: str
):
    answers.statuses = statuses
    with pytest.raises(kind, match=expected):
        setup.prepare(Git("https://git.invalid/code", COMMIT, secret=SECRET))


def test_an_unreachable_host_is_tried_again_and_then_left_to_another_vm(
    setup: CodeSetup, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    fetched = []

    def away(*_: object, **__: object) -> None:
        fetched.append(1)
        raise coding.fetching.GitUnreachable("git host x: timed out")

    monkeypatch.setattr(coding.fetching, "fetch", away)
    with pytest.raises(CodeUnavailable, match="timed out"):
        setup.prepare(Git("https://git.invalid/code", COMMIT))
    assert len(fetched) == CODE_TRIES
    assert said[0] == "code: git host x: timed out; trying again up to 5 times"


def test_a_fetched_commit_is_kept_and_its_folder_must_be_there(
    setup: CodeSetup, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    fetched = []

    def fetch(git: Git, secret: bytes | None, into: Path, *, pause: object) -> None:
        fetched.append(git.commit)
        (into / "train").mkdir(parents=True)

    monkeypatch.setattr(coding.fetching, "fetch", fetch)
    for _ in range(2):
        found = setup.prepare(Git("https://h/code", COMMIT, "train"))
        assert found.source == setup.home / "git" / COMMIT and found.folder == "train"
    assert fetched == [COMMIT]
    with pytest.raises(CodeRefused, match="gitPath eval: is not a folder of commit"):
        setup.prepare(Git("https://h/code", COMMIT, "eval"))
    with pytest.raises(CodeRefused, match="requirements needs.txt: is not in train at commit"):
        setup.prepare(Git("https://h/code", COMMIT, "train", "needs.txt"))


# -- environments


class Pip:
    """Stands for venv and pip: makes a wheel of each word, notes what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[str]] = []
        self.asked: list[str] = []
        """Contents of the files that it was given."""
        self.fails = ""
        monkeypatch.setattr(subprocesses, "run", self.run)

    def run(self, argv: list[str], *, cwd: Path | None = None, **_: object) -> subprocesses.Done:
        words = list(argv)
        if "venv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            return subprocesses.Done(0, b"")
        words = words[words.index("--disable-pip-version-check") + 1 :]
        words = [word for word in words if not word.startswith("--log=")]
        self.calls.append(words)
        if self.fails:
            return subprocesses.Done(1, self.fails.encode())
        if words[0] == "wheel":
            (into,) = [w.partition("=")[2] for w in words if w.startswith("--wheel-dir=")]
            assert cwd is not None and cwd.is_dir()
            self.asked += [(cwd / w).read_text() for w in words if w == environment.WRITTEN]
            Path(into, f"made{len(self.calls)}-1-py3-none-any.whl").write_bytes(b"wheel")
        return subprocesses.Done(0, b"")

    def made(self) -> list[str]:
        return [word for call in self.calls if call[0] == "wheel" for word in call[3:]]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    return Pip(monkeypatch)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A folder with only the requested requirements."""
    (tmp_path / "asked").mkdir()
    return tmp_path / "asked"


def other_machine(builder: Builder, home: Path) -> Builder:
    """Another VM's."""
    return Builder(home, builder.store, builder.kept, builder.log, builder.patience)


def test_wheels_are_made_once_and_installed_offline_by_every_later_vm(
    setup: CodeSetup, pip: Pip, tmp_path: Path, asked: Path
):
    (asked / "needs.txt").write_text(f"keras==3.15.0 --hash=sha256:{SHA}\n")
    builder = setup.builder
    programs = builder.ensure(asked / "needs.txt")
    assert pip.made() == ["--require-hashes", "--requirement", "outlast-requirements.txt"]
    assert pip.asked == [f"keras==3.15.0 \\\n    --hash=sha256:{SHA}\n"]
    assert "--no-index" in pip.calls[-1] and "--no-deps" in pip.calls[-1]
    calls = len(pip.calls)
    assert builder.ensure(asked / "needs.txt") == programs
    assert len(pip.calls) == calls  # the same boot, another term
    other_machine(builder, tmp_path / "other").ensure(asked / "needs.txt")
    assert [call[0] for call in pip.calls[calls:]] == ["install"]
    assert "--no-index" in pip.calls[-1] and str(tmp_path / "other") in pip.calls[-1][-1]
    (asked / "needs.txt").write_text("keras==3.15.1\n")
    other_machine(builder, tmp_path / "third").ensure(asked / "needs.txt")
    assert len(list(builder.store.list("e/environments/"))) == 2


def test_an_environment_has_the_bundles_pip(
    setup: CodeSetup, asked: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stock Debian's Python has no ensurepip."""
    (pip,) = REQUIREMENTS.glob("pip-*.whl")
    needs = asked / "needs.txt"
    needs.write_text(f"pip=={pip.name.split('-')[1]}\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(pip.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    programs = replace(setup.builder, pip=pip).ensure(needs)
    version = subprocess.run([programs / "pip", "--version"], capture_output=True)
    assert version.stdout.startswith(b"pip " + pip.name.split("-")[1].encode())


def test_an_images_environment_is_used_only_for_its_own_file(
    setup: CodeSetup, pip: Pip, tmp_path: Path, asked: Path
):
    file, baked = asked / "needs.txt", tmp_path / "image/user-venv"
    file.write_text(f"keras==3.15.0 --hash=sha256:{SHA}\n")
    builder = replace(setup.builder, baked=baked)
    assert builder.ensure(file) != baked / "bin"  # an image without one

    baked.mkdir(parents=True)
    (baked / ".complete").write_text(hashlib.sha256(file.read_bytes()).hexdigest() + "\n")
    calls = len(pip.calls)
    assert builder.ensure(file) == baked / "bin"
    assert len(pip.calls) == calls
    (asked / "requirements.txt").write_bytes(file.read_bytes())
    assert builder.ensure(asked) == baked / "bin"

    # Another file, one that names another, and a project beside it.
    file.write_text(f"keras==3.15.1 --hash=sha256:{SHA}\n")
    assert builder.ensure(file) != baked / "bin"
    (asked / "base.txt").write_text(f"keras==3.15.2 --hash=sha256:{SHA}\n")
    file.write_text("-r base.txt\n")
    (baked / ".complete").write_text(hashlib.sha256(file.read_bytes()).hexdigest())
    assert builder.ensure(file) != baked / "bin"
    (baked / ".complete").write_text(
        hashlib.sha256((asked / "requirements.txt").read_bytes()).hexdigest()
    )
    assert builder.ensure(asked) == baked / "bin"
    (asked / "pyproject.toml").write_text("[project]\nname='x'\n")
    assert builder.ensure(asked) != baked / "bin"


def test_a_changed_line_of_a_project_fetches_no_dependency_again(
    setup: CodeSetup, pip: Pip, tmp_path: Path
):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname='x'\ndependencies=['numpy>=2', 'a']\n")
    (folder / "x.py").write_text("1\n")
    setup.builder.ensure(folder)
    assert pip.asked == ["a\nnumpy>=2\n"]
    assert pip.made() == ["--requirement", "outlast-requirements.txt", "--no-deps", "."]
    (folder / "x.py").write_text("2\n")
    other_machine(setup.builder, tmp_path / "other").ensure(folder)
    assert pip.asked == ["a\nnumpy>=2\n"] and pip.made()[-4:] == ["--no-deps", "."] * 2


def test_a_projects_layers_follow_from_its_files(tmp_path: Path):
    project, file = tmp_path / "pyproject.toml", tmp_path / "requirements.txt"

    def argvs() -> list[tuple[str, ...]]:
        return [(layer.name, *layer.argv) for layer in layers(tmp_path)]

    with pytest.raises(EnvironmentRefused, match="holds neither"):
        argvs()
    project.write_text("[tool.ruff]\n")
    with pytest.raises(EnvironmentRefused, match=r"has no \[project\]"):
        argvs()
    file.write_text("numpy\n")
    assert argvs() == [("requirements",)]
    project.write_text("[project]\nname='x'\ndependencies=['numpy']\n")
    assert argvs() == [("requirements",), ("project", "--no-deps", ".")]
    file.unlink()
    project.write_text("[project]\nname='x'\ndynamic=['dependencies']\n")
    assert argvs() == [("project", ".")]
    project.write_text("[project\n")
    with pytest.raises(EnvironmentRefused, match="is not valid TOML"):
        argvs()


def test_an_included_file_changes_the_layers_key(tmp_path: Path, asked: Path):
    (asked / "needs.txt").write_text("-r base.txt\n")
    (asked / "base.txt").write_text("numpy\n")
    before = layers(asked / "needs.txt")[0].key
    (asked / "base.txt").write_text("scipy\n")
    assert layers(asked / "needs.txt")[0].key != before


@pytest.mark.parametrize(
    ("said_by_pip", "kind"),
    [
        ("ERROR: No matching distribution found for no-such-package", EnvironmentRefused),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", EnvironmentRefused),
        (
            "WARNING: Retrying after connection broken by NewConnectionError\n"
            "ERROR: No matching distribution found for numpy",
            EnvironmentUnreachable,
        ),
        ("OSError: [Errno 28] No space left on device", EnvironmentRefused),
        ("ERROR: Cannot find command 'git' - do you have it installed?", EnvironmentRefused),
        (
            "WARNING: 401 Error, Credentials not correct for https://h/simple/x/\n"
            "ERROR: No matching distribution found for x",
            EnvironmentRefused,
        ),
        ("ERROR: HTTP error 403 while getting https://h/x-1.whl", EnvironmentRefused),
        ("ERROR: HTTP error 503 while getting https://h/x-1.whl", EnvironmentUnreachable),
        ("Segmentation fault", EnvironmentUnreachable),
    ],
)
def test_pip_errors_are_the_users_or_the_networks(
    setup: CodeSetup,
    pip: Pip,
    tmp_path: Path,
    asked: Path,
    said_by_pip: str,
    kind: type[Exception],
):
    (asked / "needs.txt").write_text("numpy\n")
    pip.fails = said_by_pip
    with pytest.raises(kind) as caught:
        setup.builder.ensure(asked / "needs.txt")
    assert said_by_pip.splitlines()[-1] in str(caught.value)
    wanted = 1 if kind is EnvironmentRefused else BUILD_TRIES
    assert len(pip.calls) == wanted
    assert list(setup.builder.store.list("")) == []


def test_the_kept_layer_holds_only_wheels(setup: CodeSetup, pip: Pip, tmp_path: Path, asked: Path):
    (asked / "needs.txt").write_text("numpy\n")
    setup.builder.ensure(asked / "needs.txt")
    (kept,) = setup.builder.store.list("e/environments/")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../evil.whl", b"")
    setup.builder.store.put(kept.path, tmp_path / "bad.zip")
    with pytest.raises(EnvironmentRefused, match="may hold wheels only"):
        other_machine(setup.builder, tmp_path / "other").ensure(asked / "needs.txt")
    assert not list(tmp_path.rglob("evil.whl"))


def _truncated(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def _damaged_inside(whole: bytes) -> bytes:
    at = whole.index(b"wheel", whole.index(b".whl"))
    return whole[:at] + b"wHeel" + whole[at + 5 :]


def _encrypted(whole: bytes) -> bytes:
    """Only its flags say so: the bit is in the entry's header and in the directory's."""
    flagged = bytearray(whole)
    flagged[6] |= 1
    flagged[whole.index(b"PK\x01\x02") + 8] |= 1
    return bytes(flagged)


@pytest.mark.parametrize(
    "damage",
    [lambda whole: b"", lambda whole: b"no zip", _truncated, _damaged_inside, _encrypted],
    ids=["empty", "no-zip", "truncated", "damaged-inside", "encrypted"],
)
def test_a_damaged_kept_zip_is_rebuilt_once(
    setup: CodeSetup,
    pip: Pip,
    tmp_path: Path,
    asked: Path,
    said: list[str],
    damage: Callable[[bytes], bytes],
):
    (asked / "needs.txt").write_text("numpy\n")
    builder = setup.builder
    builder.ensure(asked / "needs.txt")
    (kept,) = builder.store.list("e/environments/")
    whole, _ = builder.store.get(kept.path)
    broken = tmp_path / "broken.zip"
    broken.write_bytes(damage(whole))
    builder.store.put(kept.path, broken)
    other_machine(builder, tmp_path / "second").ensure(asked / "needs.txt")
    assert sum("is not a complete zip file" in line for line in said) == 1
    made = len(pip.made())
    with zipfile.ZipFile(BytesIO(builder.store.get(kept.path)[0])) as archive:
        assert archive.testzip() is None
        assert [name.partition("-")[2] for name in archive.namelist()] == ["1-py3-none-any.whl"]
    other_machine(builder, tmp_path / "third").ensure(asked / "needs.txt")
    assert len(pip.made()) == made


def test_a_stuck_install_is_left_to_another_vm_after_one_wait(
    setup: CodeSetup, pip: Pip, monkeypatch: pytest.MonkeyPatch, said: list[str]
):
    calls = []

    def stuck(argv: list[str], **_: object) -> subprocesses.Done:
        calls.append(argv)
        raise subprocesses.Stuck("python neither wrote nor computed for 1800 s")

    monkeypatch.setattr(subprocesses, "run", stuck)
    with pytest.raises(CodeUnavailable, match=r"git host git\.invalid: python neither wrote"):
        setup.prepare(Git("https://git.invalid/code", COMMIT))
    (setup.bundle / "requirements").mkdir()
    (setup.bundle / "requirements" / "user.txt").write_text("numpy\n")
    with pytest.raises(CodeUnavailable, match=r"python -m venv: python neither wrote"):
        setup.prepare(None)
    assert len(calls) == 2
