"""A trainer's own user: what it is started as, what it is cut off from, and that what it plants in
its folders is never read or written through."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.base.exits import State
from outlast.base.plain_files import NotPlain, PlainFile, entries, plain_files
from outlast.base.scratch_space import give_back
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.errors import BadSnapshot, CommitError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.part_results import put_manifest
from outlast.bucket.store import MemoryStore
from outlast.protocol import Accepted, Complete, Failed, Snapshot
from outlast.supervisor import on_vm, trainer_user
from outlast.supervisor.jobs import Jobs
from outlast.supervisor.latest import Latest
from outlast.supervisor.logs import Logs
from outlast.supervisor.process import Exited, TrainerProcess
from outlast.supervisor.rooms import Rooms
from outlast.supervisor.trainer_log import TrainerLog
from outlast.supervisor.trainer_user import TrainerUser, TrainerUserRefused
from tests.another_user import needs_python
from tests.log_lines import log_lines
from tests.stores import FakeClock
from tests.supervisor.test_parts import check_done, program
from tests.supervisor.world import Life, Vm, World, a_world, spec_with

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
ME = os.geteuid()
SECRET = b'{"step": 1, "key": "of someone else"}\n'


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Someone else's folder, with a file that must be neither read nor changed."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    if ME == 0:
        os.chown(folder / "secret", 12345, 12345)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    (folder / "below").mkdir(parents=True)
    (folder / "below/file").write_bytes(b"mine")
    return folder


@pytest.fixture
def committer(memory: MemoryStore, layout: Layout, clock: FakeClock, claim: Claim) -> Committer:
    """Of a trainer that is this user."""
    head_file = HeadFile(memory, layout, clock)
    head_file.take_term(claim)
    return Committer(head_file, owner=ME)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(autouse=True)
def unharmed(outside: Path) -> Iterator[None]:
    yield
    assert (outside / "secret").read_bytes() == SECRET
    assert [path.name for path in outside.iterdir()] == ["secret"]


def plant(own: Path, outside: Path, how: str) -> Path:
    """Things that a trainer may plant instead of `below/file`; the file."""
    file = own / "below/file"
    file.unlink()
    if how == "link":
        file.symlink_to(outside / "secret")
    elif how == "hard link":
        os.link(outside / "secret", file)
    elif how == "folder":
        file.parent.rmdir()
        file.parent.symlink_to(outside)
        return own / "below/secret"
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "self":
        file.symlink_to("/proc/self/environ")
    return file


PLANTS = [
    "link",
    "folder",
    "pipe",
    "self",
    pytest.param("hard link", marks=as_root),
]


@pytest.mark.parametrize("how", PLANTS)
def test_planted_links_and_devices_are_neither_opened_nor_listed(
    own: Path, outside: Path, how: str
) -> None:
    name = plant(own, outside, how).relative_to(own).as_posix()
    file = PlainFile(own, name, ME)
    for mode in ("rb", "r+b"):
        with pytest.raises(NotPlain):
            file.open(mode)
    with pytest.raises(NotPlain):
        list(plain_files(own, ME))
    assert all(problem for _, problem in entries(own, ME))


def test_a_linked_folder_and_another_users_folder_are_not_read(own: Path, outside: Path) -> None:
    link = own.with_name("link")
    link.symlink_to(own)
    for folder, owner in ((link, ME), (own, ME + 1), (own / "below/file", ME), (own / "no", ME)):
        with pytest.raises(NotPlain):
            list(plain_files(folder, owner))
    with pytest.raises(NotPlain):
        PlainFile(link, "below/file", ME).open()
    for name in ("../outside/secret", "/etc/hostname", "below/../../outside/secret", "", "."):
        with pytest.raises(NotPlain):
            PlainFile(own, name, ME).open()
    with PlainFile(own, "below/file", ME).open() as file:
        assert file.read() == b"mine"


def test_a_file_is_recreated_in_the_place_of_a_link(own: Path, outside: Path) -> None:
    plant(own, outside, "link")
    PlainFile(own, "below/file", ME).replace(b"new")
    found = (own / "below/file").lstat()
    assert stat.S_ISREG(found.st_mode) and (own / "below/file").read_bytes() == b"new"
    plant(own, outside, "folder")
    with pytest.raises(NotPlain):
        PlainFile(own, "below/secret", ME).replace(b"new")


@pytest.mark.parametrize("how", PLANTS)
def test_a_planted_file_becomes_no_checkpoint_and_no_result(
    own: Path, outside: Path, how: str, committer: Committer
) -> None:
    plant(own, outside, how)
    with pytest.raises(BadSnapshot):
        committer.commit(own, step=1)
    (own / "result").mkdir()
    (own / "below").rename(own / "result/below")
    with pytest.raises(BadSnapshot):
        put_manifest(own, ME)
    assert not (own / "result/RESULT.json").exists()


def test_the_manifest_of_a_part_is_not_written_through_a_link(own: Path, outside: Path) -> None:
    (own / "result").mkdir()
    (own / "result/model").write_bytes(b"m")
    (own / "result/RESULT.json").symlink_to(outside / "secret")
    with pytest.raises(BadSnapshot):
        put_manifest(own, ME)
    (own / "result/RESULT.json").unlink()
    put_manifest(own, ME)
    assert b"model" in (own / "result/RESULT.json").read_bytes()


@pytest.mark.parametrize("how", PLANTS)
def test_planted_rows_are_not_read(
    own: Path, outside: Path, how: str, committer: Committer
) -> None:
    name = plant(own, outside, how).relative_to(own).as_posix()
    rows = PlainFile(own, name, ME)
    latest = Latest(rows)
    latest.read()
    assert not latest.rows and not latest.metrics
    with pytest.raises(NotPlain):
        give_back(rows, 10)
    jobs = Jobs.__new__(Jobs)
    jobs._rows_file, jobs._committer = rows, committer
    with pytest.raises(CommitError, match="rows"):
        jobs._rows_until(10)


@pytest.mark.parametrize("how", PLANTS)
def test_planted_logs_are_not_kept(own: Path, outside: Path, how: str) -> None:
    plant(own, outside, how)
    (own / "mine.log").write_bytes(b"mine")
    kept: dict[str, bytes] = {}
    said = log_lines()
    logs = Logs(own, kept.__setitem__, ME)
    logs.close(last_words=True)
    assert kept == {"mine.log": b"mine"}
    assert len(said) == 1 and "is a link, or not the trainer's file" in said[0]


def test_only_the_trainers_own_folders_are_taken(tmp_path: Path) -> None:
    scratch = tmp_path / "t000001"
    rooms = Rooms([scratch], [scratch], scratch, PlainFile(scratch, "rows", ME), tmp_path, None)
    assert rooms.place_of(f"{scratch}/s1") == scratch
    for path in (f"{scratch}/..", str(scratch), "/etc", "", f"{scratch}/a/b", f"{scratch}/a/../.."):
        assert rooms.place_of(path) is None, path


@as_root
def test_fetched_files_are_handed_over_without_following_links(
    tmp_path: Path, outside: Path
) -> None:
    user = TrainerUser(tmp_path / "home")
    given = tmp_path / "g000001"
    (given / "state/below").mkdir(parents=True)
    (given / "state/below/file").write_bytes(b"x")
    (given / "state/out").symlink_to(outside / "secret")
    user.hand_over(given / "state")
    owners = {path.lstat().st_uid for path in (given / "state").rglob("*")}
    assert owners == {user.uid} and given.stat().st_uid == 0
    assert (outside / "secret").stat().st_uid == 12345


@as_root
def test_a_folder_that_is_not_the_trainers_is_emptied(tmp_path: Path, outside: Path) -> None:
    user = TrainerUser(tmp_path / "home")
    folder = tmp_path / "command"
    folder.mkdir()
    (folder / "of root").write_bytes(b"x")
    user.make(folder)
    assert folder.stat().st_uid == user.uid and not list(folder.iterdir())
    (folder / "of the trainer").write_bytes(b"x")
    user.make(folder)
    assert [path.name for path in folder.iterdir()] == ["of the trainer"]
    link = tmp_path / "link"
    link.symlink_to(outside)
    user.make(link)
    assert not link.is_symlink() and link.stat().st_uid == user.uid


@as_root
def test_the_supervisor_reads_only_what_the_user_may_read(tmp_path: Path, outside: Path) -> None:
    user = TrainerUser(tmp_path / "home")
    (outside / "secret").chmod(0o600)
    tmp_path.chmod(0o755)
    groups = os.getgroups()
    os.setgroups([])
    try:
        seen: list[object] = []

        def look() -> None:
            with user.sight(), pytest.raises(PermissionError):
                (outside / "secret").read_bytes()
            seen.append((outside / "secret").read_bytes())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    finally:
        os.setgroups(groups)
    assert seen == [SECRET]


def ends_into(ends: list[Exited], gone: threading.Event) -> Callable[[Exited], None]:
    def post(end: Exited) -> None:
        ends.append(end)
        gone.set()

    return post


@as_root
def test_a_trainer_starts_as_its_user_and_gains_no_rights(open_folder: Path) -> None:
    needs_python()
    user = TrainerUser(open_folder / "home")
    user.make(user.home)
    user.make(open_folder / "cwd")
    log = TrainerLog(open_folder / "log")
    script = 'id; grep -E "NoNewPrivs|SigIgn" /proc/self/status; echo $HOME $USER; touch made; pwd'
    trainer = TrainerProcess(
        ["sh", "-c", script],
        folder=open_folder / "cwd",
        environment={**os.environ, **user.environment},
        log=log,
        user=user,
    )
    gone = threading.Event()
    ends: list[Exited] = []
    trainer.start(ends_into(ends, gone))
    assert gone.wait(60) and ends == [Exited(0)]
    said = (open_folder / "log").read_text()
    assert f"uid={user.uid} gid={user.uid} groups={user.uid}" in said
    assert "NoNewPrivs:\t1" in said
    ignored = int(said.partition("SigIgn:")[2].split()[0], 16)
    # Of 32 and 33, which the C library keeps for its threads, a program can change nothing.
    assert not [number for number in signal.valid_signals() if ignored >> (number - 1) & 1]
    assert f"{user.home} outlast-trainer" in said
    assert (open_folder / "cwd/made").stat().st_uid == user.uid


@as_root
def test_a_program_that_the_user_may_not_run_is_named(open_folder: Path) -> None:
    needs_python()
    user = TrainerUser(open_folder / "home")
    user.make(open_folder / "cwd")
    program = open_folder / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    log = TrainerLog(open_folder / "log")
    trainer = TrainerProcess(
        [str(program)], folder=open_folder / "cwd", environment=os.environ, log=log, user=user
    )
    gone = threading.Event()
    ends: list[Exited] = []
    trainer.start(ends_into(ends, gone))
    assert gone.wait(60) and ends == [Exited(126)]
    assert trainer.last_lines() == (
        f"{program}: user {user.uid} cannot run it (Permission denied)",
    )


# -- whole attempts, whose trainer's own user is this one -----------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path / "world") as world:
        yield world


def boot(world: World, *scripts: Callable[[Life], int], part: str = "") -> Vm:
    vm = world.boot(*scripts, part=part)
    user = TrainerUser(world.folder / "home", ME)
    vm.boot = replace(vm.boot, site=replace(vm.boot.site, trainer_user=user))
    return vm


def test_parts_of_a_trainer_with_its_own_user_end_and_resume(world: World, tmp_path: Path) -> None:
    vm = boot(world, program(leave="second step"), part="first").start()
    vm.terminate()
    vm.ended()
    assert world.head.state is State.OPEN
    seen: dict[str, tuple[int, bool]] = {}
    assert boot(world, program(seen=seen), part="first").run() == 0
    check_done(world, tmp_path)
    assert seen == {"first": (4, True), "second": (2, False)}


def test_the_trainers_inputs_are_apart_from_its_outputs(world: World) -> None:
    def save(life: Life) -> int:
        life.advance(1)
        life.commit()
        return life.obey()

    vm = boot(world, save).start()
    vm.terminate()
    vm.ended()

    def resume(life: Life) -> int:
        given = Path(life.welcome.restore or "")
        assert life.restored == {"step": 1}
        assert not given.is_relative_to(life.work) and given.parent.name == "g000002"
        return life.complete()

    assert boot(world, resume).run() == 0
    assert world.head.state is State.DONE


def test_a_snapshot_and_a_result_with_links_in_them_are_refused(
    world: World, outside: Path
) -> None:
    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        folder = life.work / "snap-x"
        folder.mkdir()
        (folder / "state.json").symlink_to(outside / "secret")
        size = Path(life.welcome.rows).stat().st_size
        life.channel.send(Snapshot("x", str(folder), 1, [], size))
        failed = life.hear(Failed)
        assert isinstance(failed, Failed) and "is neither a plain file" in failed.message
        for path in (f"{life.work}/..", str(life.work), str(outside)):
            life.channel.send(Snapshot("y", path, 1, [], size))
            failed = life.hear(Failed)
            assert isinstance(failed, Failed) and "must be a folder in" in failed.message
        result = life.work / "result"
        result.mkdir()
        (result / "model").symlink_to(outside / "secret")
        life.channel.send(Complete(1, str(result), size))
        life.hear(Accepted)
        return 0

    vm = boot(world, script)
    vm.run()
    head = world.head
    assert head.end is not None and head.end.result is None
    assert any("the result could not be kept" in one for one in vm.said), vm.said
    assert SECRET not in b"".join(world.store.get(found.path)[0] for found in world.store.list(""))


def test_rows_replaced_by_a_link_are_not_read(world: World, outside: Path) -> None:
    def script(life: Life) -> int:
        life.advance(1)
        rows = Path(life.welcome.rows)
        rows.unlink()
        rows.symlink_to(outside / "secret")
        assert isinstance(life.offer(), Accepted)
        failed = life.hear(Failed)
        assert isinstance(failed, Failed) and "rows" in failed.message
        return 64

    boot(world, script).run()
    assert world.head.chain == ()


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_root_the_check_is_reported_as_not_exercised(
    monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    said = log_lines()
    spec = spec_with(trainer_user="own")
    found = on_vm._trainer_user(spec)
    assert (found is None) is bool(uid)
    assert [one for one in said if "not exercised here" in one and "user 1000" in one] == said
    assert len(said) == bool(uid)
    assert on_vm._trainer_user(spec_with()) is None


# -- the metadata server ----------------------------------------------------------------------

SERVER = """
import http.server, socket, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
dns = socket.create_server(("169.254.169.254", 53))
server = http.server.HTTPServer(("169.254.169.254", 80), Handler)
six = socket.create_server(("fd20:ce::254", 80), family=socket.AF_INET6)
print("ready", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""

VM = """
import socket, subprocess, sys
from pathlib import Path
from outlast.supervisor.trainer_user import TrainerUser, TrainerUserRefused
user = TrainerUser(Path("/nonexistent"))
url = "http://169.254.169.254/computeMetadata/v1/instance/id"
try:
    user._try(url)
except TrainerUserRefused as error:
    print("before:", error)
user._cut_off()
user._cut_off()
user._try(url)
print("after: refused")
connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
four, six = "169.254.169.254", "fd20:ce::254"
def said(who, host, port, *before):
    argv = [*before, sys.executable, "-I", "-S", "-c", connect, host, str(port)]
    done = subprocess.run(argv, user=who, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1:] or "connects"
for port, who in ((53, user.uid), (80, user.uid), (80, 0), (80, user.uid + 1)):
    print(port, who, said(who, four, port))
print("six", said(user.uid, six, 80), said(0, six, 80))
print("in a namespace", said(user.uid, four, 80, "unshare", "--user", "--map-root-user"))
"""

WORLD = """
set -e
ip link set lo up
{ unshare --net sh -c 'echo $$ >pid; exec sleep 600' & }
while ! [ -s pid ]; do sleep 0.05; done
inside="nsenter --net=/proc/$(cat pid)/ns/net"
ip link add vm type veth peer name host netns "$(cat pid)"
ip addr add 10.0.0.2/32 dev vm
ip link set vm up
$inside ip link set lo up
$inside ip addr add 169.254.169.254/32 dev host
$inside ip link set host up
$inside ip route add 10.0.0.2/32 dev host
ip route add 169.254.169.254/32 dev vm src 10.0.0.2
ip -6 addr add fd20:ce::2/64 dev vm nodad
$inside ip -6 addr add fd20:ce::254/64 dev host nodad
mkfifo hold
{ $inside "$1" server.py <hold >ready & }
exec 3>hold
while ! grep -q ready ready; do sleep 0.05; done
"$1" vm.py || echo "failed with $?"
exec 3>&-
kill "$(cat pid)"
"""


@as_root
def test_the_users_packets_to_the_metadata_server_are_refused_and_dns_is_not(
    tmp_path: Path,
) -> None:
    needs_python()
    for name, text in (("server.py", SERVER), ("vm.py", VM), ("world.sh", WORLD)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "ready").touch()
    asked = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"no network namespaces: {asked.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "--net", "sh", "world.sh", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "before: trainer's user 61000: must get no answer from the metadata server, but got one"
        " (answered 200); set outlast:trainerUser to root to train anyway",
        "after: refused",
    ], done
    assert lines[2] == "53 61000 connects"
    assert lines[3].startswith("80 61000 ") and "Permission denied" in lines[3]
    assert lines[4:6] == ["80 0 connects", "80 61001 connects"]
    assert lines[6].startswith("six [") and "Permission denied" in lines[6]
    assert lines[6].endswith("] connects")
    assert lines[7].startswith("in a namespace [") and "connects" not in lines[7]


@as_root
def test_a_machine_that_cannot_isolate_the_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrainerUserRefused, match="cannot be cut off from the metadata server"):
        TrainerUser(tmp_path)._cut_off()


@as_root
def test_a_user_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainerUserRefused, match="user id 1: belongs to daemon on this image"):
        TrainerUser(tmp_path, uid=1)._make_known()


@as_root
def test_an_interpreter_that_the_user_may_not_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o700)
    monkeypatch.setattr(trainer_user.sys, "executable", str(python))
    with pytest.raises(TrainerUserRefused, match=f"cannot run {python}"):
        TrainerUser(tmp_path)._try("http://127.0.0.1:1/")
