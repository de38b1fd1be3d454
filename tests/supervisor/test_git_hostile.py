"""Repositories that someone else wrote: their trees, links, submodules and addresses write nothing
outside the folder of the commit, and start no program."""

import os
import stat
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from dulwich.objects import Blob, Commit, Tree
from dulwich.repo import MemoryRepo

from outlast.spec.delivery import DeliveryError, Git, Remote
from outlast.spec.git_host import GitRefused, GitUnreachable
from outlast.supervisor import git as fetching

LINK, FILE, FOLDER, MODULE = 0o120000, 0o100644, 0o040000, 0o160000
SUB = b"2" * 40


class Hostile:
    """A commit of any tree, and a world around the folder that it is checked out into."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.outside = folder / "home"
        self.outside.mkdir()
        (self.outside / "keep").write_text("precious")
        self.store = MemoryRepo().object_store
        self.commits: dict[str, Any] = {}
        monkeypatch.setattr(fetching, "fetch_objects", self._give)

    def _give(self, git: Git, secret: bytes | None, repo: Any, scratch: Path) -> None:
        for name in list(self.store):
            repo.object_store.add_object(self.store[name])

    def blob(self, content: bytes) -> bytes:
        made = Blob.from_string(content)
        self.store.add_object(made)
        return made.id

    def tree(self, *entries: tuple[bytes, int, bytes]) -> bytes:
        """Writes names unchecked, which git itself would refuse."""
        raw = b"".join(
            b"%o %s\0" % (mode, name) + bytes.fromhex(sha.decode()) for name, mode, sha in entries
        )
        made = Tree.from_string(raw)
        self.store.add_object(made)
        return made.id

    def check_out(self, tree: bytes) -> Path:
        commit = Commit()
        commit.tree = tree
        commit.author = commit.committer = b"a <a@b>"
        commit.author_time = commit.commit_time = 1
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"m"
        self.store.add_object(commit)
        git = Git(url="https://git.example/o/r.git", commit=commit.id.decode())
        files = self.folder / "work/files"
        files.parent.mkdir(exist_ok=True)
        fetching._check_out(git, None, self.folder / "work/objects", files)
        return files

    def check(self) -> None:
        """Nothing but the folder of work has changed."""
        assert (self.outside / "keep").read_text() == "precious"
        assert sorted(os.listdir(self.folder)) in (["home"], ["home", "work"])
        assert [path.name for path in self.outside.iterdir()] == ["keep"]
        work = self.folder / "work"
        assert sorted(os.listdir(work) if work.exists() else []) in (
            [],
            ["files", "objects"],
        )


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    return Hostile(tmp_path, monkeypatch)


def a_folder(name: bytes) -> Callable[[Hostile], bytes]:
    return lambda one: one.tree((name, FOLDER, one.tree((b"f", FILE, one.blob(b"evil")))))


TREES: dict[str, Callable[[Hostile], bytes]] = {
    "dotdot": a_folder(b".."),
    "git": a_folder(b".git"),
    "GIT": a_folder(b".GIT"),
    "slash": lambda one: one.tree((b"../../home/made", FILE, one.blob(b"evil"))),
    "absolute": lambda one: one.tree((os.fsencode(one.outside / "made"), FILE, one.blob(b"evil"))),
    "link and folder": lambda one: one.tree(
        (b"x", LINK, one.blob(os.fsencode(one.outside))),
        (b"x", FOLDER, one.tree((b"made", FILE, one.blob(b"evil")))),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_no_name_in_a_tree_leads_out_of_the_folder(hostile: Hostile, name: str) -> None:
    try:
        files = hostile.check_out(TREES[name](hostile))
    except Exception as error:
        assert "made" not in os.listdir(hostile.outside), error
    else:
        assert not list(files.glob(".[gG][iI][tT]"))
    hostile.check()


def test_modes_of_a_tree_make_no_device_and_no_setuid_program(hostile: Hostile) -> None:
    tree = hostile.tree(
        (b"dev", 0o060000, hostile.blob(b"")), (b"suid", 0o104755, hostile.blob(b"x"))
    )
    for path in hostile.check_out(tree).iterdir():
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) and not mode & (stat.S_ISUID | stat.S_ISGID)


def modules(hostile: Hostile, path: bytes, url: bytes = b"https://git.example/o/s") -> bytes:
    text = b'[submodule "s"]\n\tpath = %s\n\turl = %s\n' % (path, url)
    return hostile.blob(text)


@pytest.mark.parametrize(
    "path", [b"../../home/made", b"..", b"a/../../../home", b"/tmp/outlast-hostile", b".git/hooks"]
)
def test_a_submodules_path_leads_nowhere_else(hostile: Hostile, path: bytes) -> None:
    tree = hostile.tree((b".gitmodules", FILE, modules(hostile, path)), (path, MODULE, SUB))
    with pytest.raises(
        GitRefused, match=r"that is not allowed in a checkout \(.*; rename it|^subm"
    ):
        hostile.check_out(tree)
    hostile.check()


@pytest.mark.parametrize("path", [b"../x", b"/x", b"a//b", b"a/.GIT/x", b"\xff", b"keep", b"l/x"])
def test_a_submodules_path_is_also_checked_by_outlast(tmp_path: Path, path: bytes) -> None:
    (tmp_path / "keep").write_text("x")
    (tmp_path / "l").symlink_to("/tmp")
    with pytest.raises(GitRefused, match="submodule"):
        fetching._place_of_submodule(path, tmp_path)
    assert fetching._place_of_submodule(b"a/b", tmp_path) == "a/b"


def test_a_submodule_is_not_written_through_a_link(hostile: Hostile) -> None:
    link = hostile.blob(os.fsencode(hostile.outside))
    inner = hostile.tree((b"made", MODULE, SUB))
    tree = hostile.tree(
        (b".gitmodules", FILE, modules(hostile, b"x/made")),
        (b"x", LINK, link),
        (b"x", FOLDER, inner),
    )
    with pytest.raises(GitRefused, match="^submodule x/made|not allowed in a checkout"):
        hostile.check_out(tree)
    hostile.check()


def test_gitmodules_cannot_be_a_link(hostile: Hostile) -> None:
    link = hostile.blob(os.fsencode(hostile.outside / "keep"))
    with pytest.raises(GitRefused, match=".gitmodules"):
        hostile.check_out(hostile.tree((b".gitmodules", LINK, link), (b"s", MODULE, SUB)))
    hostile.check()


BAD = (
    *("ext::sh -c touch% /tmp/outlast-hostile", "file:///etc", "/etc", "fd::17", "-oX@host:path"),
    *("ssh://-oProxyCommand=touch$IFS/tmp/outlast-hostile@host/x", "git@-oX:x/y", "git://h/x"),
    *("ssh://u@-oProxyCommand=id/x", "https://h/x?a", "--upload-pack=touch /tmp/outlast-hostile"),
    *(
        "ssh://-oX@host/x",
        "a@h:-oX",
        "https://user:pw@h/x",
        "http://169.254.169.254/x",
        "ssh://git@h;id/x y",
        "https://-h/x",
    ),
)


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_is_a_command_an_option_or_a_file_is_refused(
    hostile: Hostile, url: str
) -> None:
    with pytest.raises(DeliveryError):
        Remote.parse(url)
    tree = hostile.tree(
        (b".gitmodules", FILE, modules(hostile, b"s", url.encode())), (b"s", MODULE, SUB)
    )
    with pytest.raises(GitRefused, match="submodule s"):
        hostile.check_out(tree)
    assert not Path("/tmp/outlast-hostile").exists()
    hostile.check()


def test_a_repositorys_hooks_and_filters_are_files_and_never_run(
    hostile: Hostile, tmp_path: Path
) -> None:
    script = hostile.blob(b"#!/bin/sh\ntouch %s/home/ran\n" % os.fsencode(tmp_path))
    config = hostile.blob(b'[core]\n\thooksPath = hooks\n[filter "x"]\n\tsmudge = hooks/x\n')
    tree = hostile.tree(
        (b".gitattributes", FILE, hostile.blob(b"* filter=x\n")),
        (b".gitconfig", FILE, config),
        (b"hooks", FOLDER, hostile.tree((b"post-checkout", 0o100755, script))),
    )
    files = hostile.check_out(tree)
    assert (files / "hooks/post-checkout").stat().st_mode & 0o111
    hostile.check()


class _Host(BaseHTTPRequestHandler):
    """Redirects to another host, or is that host; records the credentials of each request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host: Any = self.server
        host.seen.append((self.command, self.headers.get("Authorization")))
        self.send_response(302 if host.leads_to else 404)
        if host.leads_to:
            self.send_header("Location", f"{host.leads_to}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def test_a_redirect_to_another_host_gets_no_token(tmp_path: Path) -> None:
    hosts: list[Any] = [ThreadingHTTPServer(("127.0.0.1", 0), _Host) for _ in range(2)]
    good, evil = hosts
    good.seen, evil.seen = [], []
    good.leads_to, evil.leads_to = f"http://localhost:{evil.server_port}", ""
    for host in hosts:
        threading.Thread(target=host.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{good.server_port}/o/r.git"
        secret = "projects/p/secrets/s/versions/1"
        git = Git(url=url, commit="1" * 40, secret=secret)
        with pytest.raises((GitRefused, GitUnreachable)):
            fetching._check_out(git, b"ghp_SECRET_TOKEN", tmp_path / "o", tmp_path / "f")
    finally:
        for host in hosts:
            host.shutdown()
            host.server_close()
    assert good.seen and good.seen[0][1]  # the host that it is for
    assert evil.seen and all(shown is None for _, shown in evil.seen), evil.seen
