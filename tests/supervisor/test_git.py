"""A commit is fetched from real hosts; what never works is distinguished from what may pass."""

import functools
import os
import shutil
import socket
import time
from pathlib import Path

import pytest

from outlast.spec import git_host
from outlast.spec.delivery import Git
from outlast.spec.git_host import GitRefused, GitUnreachable
from outlast.supervisor import git as fetching
from outlast.supervisor import subprocesses
from tests.git_host import commit, git, serving

fetch = functools.partial(fetching.fetch, pause=time.sleep)
TOKEN = "a-token-of-a-test-0123456789"
SECRET = "projects/p/secrets/deploy/versions/latest"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "hosted" / "code"
    commit(folder, {"train/main.py": "print(1)\n", "train/run.sh": "#!/bin/sh\n"})
    return folder


def test_an_older_commit_is_fetched_alone_with_its_modes(repository: Path, tmp_path: Path):
    first = git(repository, "rev-parse", "HEAD")
    second = commit(
        repository, {"train/main.py": "print(2)\n", "tool": "#!/bin/sh\n"}, programs=("tool",)
    )
    (repository / "train" / "link").symlink_to("main.py")
    third = commit(repository, {"train/late.py": "\n"})
    with serving(tmp_path / "hosted") as host:
        url = f"{host.url}/code"
        fetch(Git(url, first), None, tmp_path / "first")
        fetch(Git(url, third), None, tmp_path / "third")
        fetch(Git(f"{url}/", second), None, tmp_path / "second")
    assert sorted(p.name for p in (tmp_path / "first").rglob("*") if p.is_file()) == [
        "main.py",
        "run.sh",
    ]
    assert (tmp_path / "first/train/main.py").read_text() == "print(1)\n"
    assert (tmp_path / "third/train/link").readlink() == Path("main.py")
    assert os.access(tmp_path / "second/tool", os.X_OK)
    assert not os.access(tmp_path / "second/train/main.py", os.X_OK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "hosted", "second", "third"]


def test_a_private_repository_requires_its_token(repository: Path, tmp_path: Path):
    head = git(repository, "rev-parse", "HEAD")
    with serving(tmp_path / "hosted", TOKEN) as host:
        asked = Git(f"{host.url}/code", head, secret=SECRET)
        fetch(asked, TOKEN.encode() + b"\n", tmp_path / "files")
        named = Git(host.url.replace("//", "//bot@") + "/code", head, secret=SECRET)
        fetch(named, TOKEN.encode(), tmp_path / "again")
        assert set(host.users) == {"x-access-token", "bot"}
        for git_, secret in ((Git(asked.url, head), None), (asked, b"another")):
            with pytest.raises(GitRefused, match="may not be read with") as refused:
                fetch(git_, secret, tmp_path / "never")
            assert "another" not in str(refused.value)
        assert not any(TOKEN in line for line in host.requests)
    assert not (tmp_path / "never").exists()
    assert (tmp_path / "files/train/main.py").is_file()


def test_a_missing_commit_or_repository_is_named(repository: Path, tmp_path: Path):
    with serving(tmp_path / "hosted") as host:
        with pytest.raises(GitRefused, match="gitCommit 0123.*is not in"):
            fetch(Git(f"{host.url}/code", "0123456789" * 4), None, tmp_path / "files")
        with pytest.raises(GitRefused, match="is not a repository"):
            fetch(Git(f"{host.url}/nothing", "0123456789" * 4), None, tmp_path / "files")
        tree = git(repository, "rev-parse", "HEAD^{tree}")
        with pytest.raises(GitRefused, match="is not in"):
            fetch(Git(f"{host.url}/code", tree), None, tmp_path / "files")
    assert [p.name for p in tmp_path.iterdir()] == ["hosted"]


def test_a_host_is_asked_for_a_commit_without_fetching_it(repository: Path, tmp_path: Path):
    ask = functools.partial(git_host.ask, answer_sec=30)
    old = git(repository, "rev-parse", "HEAD")
    head = commit(repository, {"train/main.py": "print(2)\n", "large": "x" * 2**20})
    with serving(tmp_path / "hosted") as host:
        for there in (old, head):
            ask(Git(f"{host.url}/code", there))
        with pytest.raises(GitRefused, match="gitCommit 0123.*is not in .*; push it, or set"):
            ask(Git(f"{host.url}/code", "0123456789" * 4))
        with pytest.raises(
            GitRefused, match="is not a repository, or none that may be read without"
        ):
            ask(Git(f"{host.url}/nothing", head))
    with (
        serving(tmp_path / "hosted", TOKEN) as host,
        pytest.raises(GitRefused, match="may not be read without a secret; give outlast:gitSecret"),
    ):
        ask(Git(f"{host.url}/code", head))
    with pytest.raises(GitUnreachable, match=r"git host 127\.0\.0\.1: [^(]*Connection refused$"):
        ask(Git(f"{host.url}/code", head))
    # By the older protocol a host gives out tips alone, and of other commits it says nothing.
    with serving(tmp_path / "hosted") as host:
        host.speaks_newer = False
        for maybe in (old, head, "0123456789" * 4):
            ask(Git(f"{host.url}/code", maybe))


def submodules(folder: Path, modules: dict[str, tuple[str, str]]) -> str:
    """The name of a commit that has these submodules: address and commit by path."""
    texts = [
        f'[submodule "{path}"]\n\tpath = {path}\n\turl = {address}\n'
        for path, (address, _) in modules.items()
    ]
    (folder / ".gitmodules").write_text("".join(texts))
    for path, (_, sha) in modules.items():
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{sha},{path}")
    git(folder, "add", ".gitmodules")
    git(folder, "commit", "--quiet", "--message", "submodules")
    return git(folder, "rev-parse", "HEAD")


def test_each_submodule_is_fetched_at_its_commit(repository: Path, tmp_path: Path):
    deep = commit(tmp_path / "hosted/deep", {"deep.py": "3\n"})
    lib = tmp_path / "hosted/lib"
    old = commit(lib, {"lib.py": "1\n"})
    old = submodules(lib, {"below/deep": ("./../deep", deep)})
    commit(lib, {"lib.py": "2\n"})
    head = submodules(repository, {"train/lib": ("../lib", old)})
    with serving(tmp_path / "hosted", TOKEN) as host:
        asked = Git(f"{host.url}/code", head, "train", secret=SECRET)
        fetch(asked, TOKEN.encode(), tmp_path / "files")
    assert (tmp_path / "files/train/lib/lib.py").read_text() == "1\n"
    assert (tmp_path / "files/train/lib/below/deep/deep.py").read_text() == "3\n"
    assert (tmp_path / "files/train/main.py").is_file()
    assert not any(TOKEN.encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_an_unavailable_submodule_is_named(repository: Path, tmp_path: Path):
    lib = commit(tmp_path / "others/lib", {"lib.py": "1\n"})

    def refused(address: str, sha: str = lib) -> str:
        shutil.rmtree(tmp_path / "hosted/code")
        commit(repository, {"train/main.py": "1\n"})
        head = submodules(repository, {"libs/x": (address, sha)})
        with pytest.raises(GitRefused) as caught:
            wanted = Git(f"{host.url}/code", head, secret=SECRET)
            fetch(wanted, TOKEN.encode(), tmp_path / "files")
        assert not (tmp_path / "files").exists()
        return str(caught.value)

    with serving(tmp_path / "hosted", TOKEN) as host, serving(tmp_path / "others", TOKEN) as other:
        # Another host is given no secret that was meant for the first.
        said = refused(f"{other.url}/lib")
        assert said.startswith("submodule libs/x: gitUrl") and "without a secret" in said
        assert other.users == []
        assert "submodule libs/x: gitUrl" in refused("../nothing")
        assert "its address must be an https or ssh address" in refused("file:///etc")
        assert "its address must be an https or ssh address" in refused("https://me:pw@h/x")
        assert "write its https address into .gitmodules" in refused("git@elsewhere:lib")
        git(repository, "rm", "--quiet", ".gitmodules")
        git(repository, "commit", "--quiet", "--message", "no addresses")
        head = git(repository, "rev-parse", "HEAD")
        with pytest.raises(GitRefused, match="has no address in .gitmodules"):
            fetch(Git(f"{host.url}/code", head, secret=SECRET), TOKEN.encode(), tmp_path / "files")


def test_a_submodule_of_the_same_host_by_ssh_is_read_by_https():
    main = Git("https://git.example/team/code.git", "0" * 40, secret=SECRET)
    found = fetching._submodule(main, "lib", "git@git.example:team/lib.git", "1" * 40)
    assert (found.url, found.commit) == ("https://git.example/team/lib.git", "1" * 40)
    assert (found.secret, found.path) == (SECRET, "")
    near = fetching._submodule(main, "lib", "../../other/lib", "1" * 40)
    assert near.url == "https://git.example/other/lib"


@pytest.mark.parametrize(
    ("address", "url", "secret"),
    [
        ("ssh://git@git.example:2222/o/lib", "https://git.example:8443/o/lib", True),
        ("git@git.example:o/lib.git", "https://git.example:8443/o/lib.git", True),
        ("https://GIT.example:8443/o/lib", "https://GIT.example:8443/o/lib", True),
        ("https://git.example/o/lib", "https://git.example/o/lib", False),
        ("https://git.example:9999/o/lib", "https://git.example:9999/o/lib", False),
        ("https://elsewhere.example:8443/o/lib", "https://elsewhere.example:8443/o/lib", False),
    ],
)
def test_the_secret_goes_to_no_other_host_or_port(address: str, url: str, secret: bool):
    main = Git("https://git.example:8443/team/code.git", "0" * 40, secret=SECRET)
    found = fetching._submodule(main, "lib", address, "1" * 40)
    assert (found.url, bool(found.secret)) == (url, secret)


def test_a_git_lfs_file_is_named_where_it_would_be_read(repository: Path, tmp_path: Path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    head = commit(repository, {"data/a.bin": pointer, "data/b.bin": pointer})
    with serving(tmp_path / "hosted") as host:
        with pytest.raises(GitRefused, match=r"data/a.bin \(and 1 more\) is kept by Git LFS"):
            fetch(Git(f"{host.url}/code", head), None, tmp_path / "files")
        fetch(Git(f"{host.url}/code", head, "train"), None, tmp_path / "files")
    assert (tmp_path / "files/train/main.py").is_file()


def test_all_refs_are_fetched_from_a_host_that_refuses_unnamed_commits(
    repository: Path, tmp_path: Path, notes: Path
):
    """Hosts of protocol 0 may refuse commits other than a branch's newest."""
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, {"more.py": "\n"})
    url = f"ssh://git@git.example{repository}"
    fetch(Git(url, first, secret=SECRET, host_keys=(HOST_KEY,)), KEY, tmp_path / "files")
    assert not (tmp_path / "files/more.py").exists()
    assert (tmp_path / "files/train/main.py").is_file()
    assert (notes / "calls").read_text() == "call\ncall\n"


def test_a_silent_host_is_not_the_users_fault(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/code"
        asked = time.monotonic()

        def impatient(seconds: float) -> None:
            time.sleep(seconds)
            if time.monotonic() - asked > 1:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            fetching.fetch(Git(url, "0123456789" * 4), None, tmp_path / "files", pause=impatient)
    with pytest.raises(GitUnreachable, match="git host 127.0.0.1.*refused"):
        fetch(Git(url, "0123456789" * 4), None, tmp_path / "files")
    assert list(tmp_path.iterdir()) == []


SSH = """#!/bin/bash
# Stands for ssh: notes how it was called, and serves what the last word asks for.
printf '%s\\n' "$@" >"$NOTES/argv"
for word in "$@"; do
  case "$word" in
  IdentityFile=*) cat "${word#*=}" >"$NOTES/key"; stat -c %a "${word#*=}" >"$NOTES/mode" ;;
  UserKnownHostsFile=*) cat "${word#*=}" >"$NOTES/hosts" ;;
  esac
done
echo call >>"$NOTES/calls"
if [[ -e $NOTES/says ]]; then cat "$NOTES/says" >&2; exit 255; fi
exec sh -c "${*: -1}"
"""
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nof-a-test\n-----END OPENSSH PRIVATE KEY-----\n"
HOST_KEY = "git.example ssh-ed25519 AAAAC3Nz"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for ssh is first on the PATH; its arguments lie in this folder."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(folder))
    return folder


def test_ssh_gets_the_deploy_key_and_the_known_host_and_nothing_else(
    repository: Path, tmp_path: Path, notes: Path
):
    head = git(repository, "rev-parse", "HEAD")
    url = f"ssh://git@git.example:2222{repository}"
    wanted = Git(url, head, secret=SECRET, host_keys=(HOST_KEY,))
    fetch(wanted, KEY.strip(), tmp_path / "files")
    assert (tmp_path / "files/train/main.py").is_file()
    argv = (notes / "argv").read_text().split("\n")
    for word in ("StrictHostKeyChecking=yes", "BatchMode=yes", "IdentitiesOnly=yes"):
        assert word in argv
    assert "git@git.example" in argv and "2222" in argv
    assert (notes / "key").read_bytes() == KEY and (notes / "mode").read_text() == "600\n"
    assert (notes / "hosts").read_text() == f"{HOST_KEY}\n"
    assert not any(b"BEGIN" in p.read_bytes() for p in tmp_path.glob("files/**/*") if p.is_file())


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        ("Host key verification failed.", GitRefused, "gitHostKeys of"),
        ("git@x: Permission denied (publickey).", GitRefused, "may not be read with the secret"),
        ("ERROR: Repository not found.", GitRefused, "cannot be read with"),
        ("ssh: Could not resolve hostname git.example", GitUnreachable, "resolve hostname"),
        ("ssh: connect to host x port 22: Connection timed out", GitUnreachable, "timed out"),
        ("something else", GitUnreachable, "something else"),
    ],
)
def test_ssh_errors_are_the_users_or_the_networks(
    repository: Path, tmp_path: Path, notes: Path, said: str, kind: type[Exception], expected: str
):
    (notes / "says").write_text(f"{said}\n")
    wanted = Git("git@git.example:code", "0123456789" * 4, secret=SECRET, host_keys=(HOST_KEY,))
    with pytest.raises(kind, match=expected):
        fetch(wanted, KEY, tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_an_image_without_ssh_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("ssh") is None
    wanted = Git("git@git.example:code", "0123456789" * 4, secret=SECRET, host_keys=(HOST_KEY,))
    with pytest.raises(GitRefused, match="the image has no ssh"):
        fetch(wanted, KEY, tmp_path / "files")


def test_a_stuck_fetch_is_killed_and_named(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subprocesses, "STUCK_SEC", 0.5)
    monkeypatch.setattr(subprocesses, "LOOK_SEC", 0.1)
    stopped = tmp_path / "bin" / "ssh"
    stopped.parent.mkdir()
    stopped.write_text("#!/bin/sh\nexec sleep 600\n")
    stopped.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stopped.parent}:{os.environ['PATH']}")
    git = Git("ssh://git@git.example/code", "0123456789" * 4, secret=SECRET, host_keys=(HOST_KEY,))
    with pytest.raises(subprocesses.Stuck, match=r"git host git\.example: python.* neither wrote"):
        fetch(git, KEY, tmp_path / "files")
    assert not (tmp_path / "files").exists()
