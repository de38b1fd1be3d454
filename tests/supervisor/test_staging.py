"""Data in an attempt's life: asked for, kept to, waited for; and another run's state to begin with.

The supervisor is real, in this process; its trainers follow scripts.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from outlast.base.exits import Reason, State
from outlast.bucket import data as data_module
from outlast.bucket import fetch as fetch_module
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Heartbeat, Layout
from outlast.bucket.records import read_record
from outlast.bucket.store import (
    MemoryStore,
    Operation,
    Store,
    Unavailable,
)
from outlast.protocol import Channel, Error, Fetch, Fetched, Message, Stop
from outlast.spec.pin import Pin
from outlast.supervisor import initial
from tests.stores import FakeClock
from tests.supervisor.world import (
    LAYOUT,
    SPEC,
    Life,
    Script,
    Vm,
    World,
    a_world,
    spec_with,
    wait_until,
)

URL = "gs://data/digits"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        world.data.put("digits", b"first digits")
        yield world


def ask(vm: Vm, url: str = URL) -> Message:
    """On a separate connection, as a trainer does before it knows its steps."""
    with Channel.connect(vm.boot.site.listener.socket_path) as channel:
        channel.send(Fetch(url))
        answer = channel.receive(20)
        assert answer is not None
        return answer


class Asking:
    """A script that asks for data first; exits 64 where it is refused."""

    def __init__(self, then: Script, *urls: str) -> None:
        self.vm: Vm
        self.then = then
        self.urls = urls or (URL,)
        self.answers: list[Message] = []

    def __call__(self, life: Life) -> int:
        self.answers = [ask(self.vm, url) for url in self.urls]
        if any(isinstance(answer, Error) for answer in self.answers):
            return 64
        return self.then(life)

    def boot(self, world: World, **options: Any) -> Vm:
        self.vm = world.boot(self, **options)
        return self.vm


def finish(life: Life) -> int:
    life.advance(10 - life.step)
    life.commit()
    return life.complete()


def stopped(life: Life) -> int:
    life.advance(2)
    return life.obey()


def stop(asking: Asking, world: World) -> None:
    """A first attempt that asked, committed two steps and was stopped."""
    vm = asking.boot(world).start()
    wait_until(lambda: asking.answers, "an answer")
    vm.terminate()
    assert vm.ended() == 75


def test_the_first_attempt_sets_the_fingerprint(world: World) -> None:
    asking = Asking(finish)
    assert asking.boot(world).run() == 0
    (answer,) = asking.answers
    assert isinstance(answer, Fetched) and Path(answer.path).read_bytes() == b"first digits"
    (found,) = list(world.head.data or ())
    there = world.data.stat("digits")
    assert (found.name, found.generation) == (URL, there.generation)
    assert (found.size, found.crc32c) == (there.size, there.crc32c)


def test_data_that_changed_between_attempts_ends_the_run(world: World) -> None:
    stop(Asking(stopped), world)
    (before,) = list(world.head.data or ())
    world.data.put("digits", b"other digits")
    asking = Asking(finish)
    assert asking.boot(world).run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.DATA_CHANGED and head.step == 2
    (answer,) = asking.answers
    assert isinstance(answer, Error) and answer.kind == "data-changed"
    now = world.data.stat("digits")
    for crc32c in (before.crc32c, now.crc32c):
        assert crc32c in answer.message and crc32c in world.end_of(2).message
    assert head.data == (before,)


def test_a_run_continues_after_equal_bytes_were_uploaded_again(world: World) -> None:
    stop(Asking(stopped), world)
    before = world.head.data
    world.data.put("digits", b"first digits")
    assert Asking(finish).boot(world).run() == 0
    assert world.head.state is State.DONE and world.head.data == before


def test_each_path_has_its_own_fingerprint(world: World) -> None:
    world.data.put("faces/a", b"a")
    world.data.put("faces/b", b"b")
    stop(Asking(stopped, URL, "gs://data/faces"), world)
    assert [entry.name for entry in world.head.data or ()] == [URL, "gs://data/faces"]
    world.data.put("faces/b", b"c")
    # An attempt that does not ask for it does not mind; one that does, ends.
    stop(Asking(stopped), world)
    assert Asking(finish, "gs://data/faces").boot(world).run() == 0
    assert world.head.end is not None and world.head.end.reason is Reason.DATA_CHANGED


def test_missing_data_ends_the_run_as_the_users_error(world: World) -> None:
    asking = Asking(finish, "gs://data/none")
    assert asking.boot(world).run() == 0
    assert world.head.end is not None and world.head.end.reason is Reason.USAGE
    assert "no such object" in world.end_of(1).message and world.head.data is None


def test_missing_optional_data_is_not_blamed_for_a_later_failure(world: World) -> None:
    def went_on(life: Life) -> int:
        life.advance(2)
        life.commit()
        return 3

    class Optional(Asking):
        def __call__(self, life: Life) -> int:
            super().__call__(life)
            return self.then(life)

    asking = Optional(went_on, "gs://data/none")
    assert asking.boot(world).run() == 0
    assert isinstance(asking.answers[0], Error)
    end = world.end_of(1)
    assert (end.reason, end.exit) == (Reason.USER_FAILED, 3) and "no such" not in end.message


def test_a_data_store_that_does_not_answer_ends_only_the_attempt(world: World) -> None:
    def around(operation: Operation, perform: Any) -> Any:
        raise Unavailable("gone")

    assert isinstance(world.data, MemoryStore)
    world.data, world.patience_sec = world.data.view(around), 0.0
    assert Asking(finish).boot(world).run() == 75
    assert world.end_of(1).reason is Reason.HOST_ERROR and world.head.state is State.OPEN


def test_a_long_download_does_not_count_as_a_stall(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "SIGN_SEC", 0.05)
    proceed, stall = threading.Event(), 3.0

    def slow(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range":
            assert proceed.wait(60)
        return perform()

    assert isinstance(world.data, MemoryStore)
    world.data = world.data.view(slow)
    began = time.monotonic()
    vm = Asking(finish).boot(world, spec=spec_with(stall=stall)).start()

    def says_staging() -> bool:
        heartbeat = read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)
        return heartbeat is not None and heartbeat.phase == "staging"

    wait_until(says_staging, "a heartbeat that says staging")
    wait_until(lambda: time.monotonic() - began > 1.5 * stall, "a time in which others are stuck")
    proceed.set()
    assert vm.ended() == 0
    assert world.head.state is State.DONE
    assert world.end_of(1).staged_sec > stall


def test_all_ranks_share_one_fetch_and_one_path(world: World) -> None:
    """Each has a separate connection; a waiting rank's message is not the training's."""
    reads, ranks = [], 4
    together = threading.Barrier(ranks)

    def counting(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range":
            reads.append(operation.path)
        return perform()

    assert isinstance(world.data, MemoryStore)
    world.data = world.data.view(counting)
    answers: list[Message] = []

    def rank(vm: Vm) -> None:
        together.wait(60)
        answers.append(ask(vm))

    def train(life: Life) -> int:
        threads = [threading.Thread(target=rank, args=(vm,)) for _ in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return finish(life)

    vm = world.boot(train)
    assert vm.run() == 0
    assert len(answers) == ranks and len(set(answers)) == 1 and isinstance(answers[0], Fetched)
    assert reads == ["digits"]
    assert [entry.name for entry in world.head.data or ()] == [URL]


# -- another run's state ---------------------------------------------------------------------------

OTHER = Layout("experiments/other", "aaaaaaaaaa")


def other_run(store: Store, folder: Path) -> Pin:
    """Another run with one checkpoint, of step 7."""
    head_file = HeadFile(store, OTHER, FakeClock())
    head_file.take_term(Claim("organization/outlast/other", 0, 0, SPEC.deadline))
    committer = Committer(head_file)
    committer.restore(folder / "none")
    (folder / "snap").mkdir(parents=True)
    (folder / "snap" / "state.json").write_text('{"step": 7}')
    checkpoint = committer.commit(folder / "snap", step=7)
    return Pin(
        f"gs://runs/{OTHER.root}", checkpoint.path.removeprefix(OTHER.root), checkpoint.blake3
    )


@pytest.fixture
def pin(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    monkeypatch.setattr(initial, "open_store", lambda url, *, payer: world.store)
    return other_run(world.store, tmp_path / "other")


def taking_over(seen: list[Any], then: Callable[[Life], int]) -> Script:
    def script(life: Life) -> int:
        seen.append((life.welcome.init, life.welcome.step, life.restored))
        return then(life)

    return script


def test_a_run_begins_with_another_runs_state(world: World, pin: Pin) -> None:
    spec = spec_with(init=str(pin))
    seen: list[Any] = []
    vm = world.boot(taking_over(seen, stopped), spec=spec).start()
    vm.terminate()
    assert vm.ended() == 75
    assert seen == [(True, 0, {"step": 7})]
    first = world.head.chain[0]
    assert (first.step, first.tags) == (0, ("init",)) and first.path.startswith(LAYOUT.root)
    # The other run may go; what was begun resumes from its own checkpoint.
    for found in list(world.store.list(OTHER.root)):
        world.store.delete(found.path, generation=found.generation)
    assert world.boot(taking_over(seen, finish), spec=spec).run() == 0
    assert seen[1] == (False, 2, {"step": 2}) and world.head.state is State.DONE


def test_an_attempt_killed_before_its_first_commit_begins_with_the_same_state(
    world: World, pin: Pin
) -> None:
    spec = spec_with(init=str(pin))
    seen: list[Any] = []
    vm = world.boot(taking_over(seen, lambda life: 75 if life.hear(Stop) else 1), spec=spec).start()
    wait_until(lambda: seen, "a trainer")
    vm.terminate()
    assert vm.ended() == 75
    for found in list(world.store.list(OTHER.root)):
        world.store.delete(found.path, generation=found.generation)
    assert world.boot(taking_over(seen, finish), spec=spec).run() == 0
    assert seen == [(True, 0, {"step": 7})] * 2


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda pin: Pin(pin.root, pin.folder, "0" * 64), "the pinned one is 0000"),
        (
            lambda pin: Pin(pin.root, f"t000009/s{0:012d}-00/", pin.digest),
            "is no longer a checkpoint",
        ),
    ],
)
def test_an_unusable_initial_checkpoint_ends_the_run(
    world: World, pin: Pin, spoil: Callable[[Pin], Pin], says: str
) -> None:
    vm = world.boot(spec=spec_with(init=str(spoil(pin))))
    assert vm.run() == 0 and vm.trainers == []
    assert world.head.end is not None and world.head.end.reason is Reason.USAGE
    assert says in world.end_of(1).message and str(pin.path[:30]) in world.end_of(1).message


def test_a_checkpoint_of_another_version_of_outlast_ends_the_run(world: World, pin: Pin) -> None:
    path = f"{OTHER.root}{pin.folder}MANIFEST.json"
    data = world.store.get(path)[0].replace(b'"format":1', b'"format":2')
    world.store.put(path, data)
    newer = Pin(pin.root, pin.folder, blake3(data).hexdigest())
    vm = world.boot(spec=spec_with(init=str(newer)))
    assert vm.run() == 0 and vm.trainers == []
    assert world.head.end is not None and world.head.end.reason is Reason.USAGE
    assert "has format 2, this version of Outlast reads format 1" in world.end_of(1).message


def test_a_damaged_initial_checkpoint_is_found_before_it_is_read(world: World, pin: Pin) -> None:
    path = f"{OTHER.root}{pin.folder}state.json"
    world.store.delete(path, generation=world.store.stat(path).generation)
    vm = world.boot(spec=spec_with(init=str(pin)))
    assert vm.run() == 0 and vm.trainers == []
    assert world.head.end is not None and world.head.end.reason is Reason.USAGE


# -- where to copy the result -----------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_result_is_copied_if_the_target_is_empty(world: World, tmp_path: Path) -> None:
    out = tmp_path / "models" / "first"
    assert world.boot(finish, spec=spec_with(model_output_path=str(out))).run() == 0
    first = files_of(out)
    assert first["metrics.json"] == b"{}" and set(first) == {"metrics.json", "RESULT.json"}
    # A boot that finds the run done brings what is missing.
    (out / "RESULT.json").unlink()
    vm = world.boot(spec=spec_with(model_output_path=str(out)))
    assert vm.run() == 0 and files_of(out) == first


def test_existing_files_are_left_alone(world: World, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "metrics.json").write_text("mine")
    vm = world.boot(finish, spec=spec_with(model_output_path=str(out)))
    assert vm.run() == 0 and world.head.state is State.DONE
    assert files_of(out) == {"metrics.json": b"mine"}
    assert any("holds other bytes in metrics.json" in line for line in vm.said)


def test_a_copy_into_a_bucket_is_created_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "open_store", lambda url: world.data)
    spec = spec_with(model_output_path="gs://data/models/first")
    assert world.boot(finish, spec=spec).run() == 0
    written = list(world.data.list("models/"))
    assert [found.path for found in written] == [
        "models/first/RESULT.json",
        "models/first/metrics.json",
    ]
    assert world.boot(spec=spec).run() == 0
    assert list(world.data.list("models/")) == written


def test_a_failed_copy_does_not_change_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def around(operation: Operation, perform: Any) -> Any:
        if operation.writes:
            raise data_module.Forbidden("not there")
        return perform()

    assert isinstance(world.data, MemoryStore)
    view = world.data.view(around)
    monkeypatch.setattr(fetch_module, "open_store", lambda url: view)
    vm = world.boot(finish, spec=spec_with(model_output_path="gs://data/models"))
    assert vm.run() == 0 and world.head.state is State.DONE
    assert any("models: may not be written" in line for line in vm.said)
