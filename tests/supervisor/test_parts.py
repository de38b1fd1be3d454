"""Named parts of a run on VMs: one program, trainings one after the other, lost machines."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import history
from outlast.bucket.layout import Heartbeat
from outlast.bucket.parts import parts_of
from outlast.bucket.records import read_record
from outlast.bucket.results import fetch_result
from outlast.bucket.rows import read_rows
from outlast.bucket.store import MemoryStore, Operation
from outlast.protocol import Ended, Error, Fetched, Hello, Results, Stop
from tests.supervisor.world import LAYOUT, Life, World, a_world, spec_with

ORDER = ("first", "second")
STEPS = 4


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def program(
    *, leave: str = "", code: int = 0, seen: dict[str, tuple[int, bool]] | None = None
) -> Callable[[Life], int]:
    """Trains all parts. It is stopped at ``leave``, ``PART PHASE``, or exits there with ``code``.
    ``seen``: where each part began, and whether it was done."""

    def script(life: Life) -> int:
        for name in ORDER:
            if name != life.part:
                life.next_part(name)
            welcome = life.welcome
            if seen is not None:
                seen[name] = welcome.step, welcome.done is not None
            if welcome.done is not None:
                assert life.restored == {"step": STEPS}
                assert not (Path(welcome.done) / "result").exists()
                life.channel.send(Results())
                result = life.hear(Fetched)
                assert isinstance(result, Fetched)
                assert (Path(result.path) / "model").read_text() == name
                continue
            if leave == f"{name} begin":
                return ends(life)
            while life.step < STEPS:
                life.advance(2)
                life.commit()
                if leave == f"{name} step":
                    return ends(life)
            life.end_part(model=name)
            if leave == f"{name} end":
                return ends(life)
        return code

    def ends(life: Life) -> int:
        if code:
            return code
        life.hear(Stop)
        return 75

    return script


def result_of(world: World, folder: Path) -> dict[str, str]:
    end = world.head.end
    assert end is not None and end.result is not None
    files = fetch_result(world.store, end.result, folder).files
    return {file.name: (folder / file.name).read_text() for file in files}


def check_done(world: World, folder: Path) -> None:
    head = world.head
    assert head.state is State.DONE
    assert head.end is not None and head.end.step == len(ORDER) * STEPS
    assert result_of(world, folder) == {f"{name}/model": name for name in ORDER}
    rows = read_rows(world.store, LAYOUT, head)
    made = [(name, step) for name in ORDER for step in range(1, STEPS + 1)]
    assert [(row["part"], row["step"]) for row in rows] == made


def test_a_run_of_parts_is_done_when_its_program_ends(world: World, tmp_path: Path) -> None:
    vm = world.boot(program(), part="first")
    assert vm.run() == 0
    check_done(world, tmp_path)
    assert [(part.name, part.step, part.done) for part in parts_of(world.head.chain)] == [
        (name, STEPS, True) for name in ORDER
    ]
    end = world.end_of(1)
    assert (end.reason, end.step) == (Reason.DONE, 2 * STEPS)
    assert end.message == "done with 2 parts, 8 steps in all"
    heartbeat = read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)
    assert heartbeat is not None and (heartbeat.part, heartbeat.before) == ("second", STEPS)
    assert all(row["step"] <= STEPS for row in heartbeat.rows)
    book = history.read(world.store, LAYOUT)
    assert book is not None and (book.part, book.step) == ("second", 8)
    assert {name: last.step for name, last in book.metrics.items()} == {
        "first/term": STEPS,
        "second/term": STEPS,
    }


@pytest.mark.parametrize("phase", ["begin", "step", "end"])
@pytest.mark.parametrize("part", ORDER)
def test_a_lost_machine_costs_its_part_only(
    world: World, tmp_path: Path, part: str, phase: str
) -> None:
    vm = world.boot(program(leave=f"{part} {phase}"), part="first").start()
    vm.terminate()
    vm.ended()
    assert world.head.state is State.OPEN
    assert world.end_of(1).reason is Reason.HOST_ERROR or world.end_of(1).state is State.OPEN
    seen: dict[str, tuple[int, bool]] = {}
    assert world.boot(program(seen=seen), part="first").run() == 0
    check_done(world, tmp_path)
    at = {"begin": (0, False), "step": (2, False), "end": (STEPS, True)}[phase]
    later = {"second": (0, False)} if part == "first" else {}
    earlier = {"first": (STEPS, True)} if part == "second" else {}
    assert seen == {**earlier, part: at, **later}


@pytest.mark.parametrize("part", ORDER)
def test_a_program_that_fails_is_started_again_on_the_same_machine(
    world: World, tmp_path: Path, part: str
) -> None:
    seen: dict[str, tuple[int, bool]] = {}
    vm = world.boot(
        program(leave=f"{part} step", code=3),
        program(code=3),  # all parts are done by then
        program(seen=seen),
        part="first",
        spec=spec_with(retries_failures=5),
    )
    assert vm.run() == 0
    check_done(world, tmp_path)
    assert seen == {name: (STEPS, True) for name in ORDER}
    assert world.head.failures == 2


def only(name: str) -> Callable[[Life], int]:
    def script(life: Life) -> int:
        life.advance(STEPS)
        life.commit()
        if name == "done":
            life.end_part(model=life.part)
        return 0

    return script


def test_exit_code_0_before_a_part_is_done_is_a_failure(world: World) -> None:
    vm = world.boot(only("begun"), part="first", spec=spec_with(retries_failures=0))
    vm.run()
    assert world.head.state is State.FAILED
    end = world.end_of(1)
    assert end.reason is Reason.USER_FAILED
    assert end.message == ("the program ended with exit code 0, and its part 'first' is not done")


def test_a_part_that_is_left_out_later_is_missing(world: World) -> None:
    vm = world.boot(program(leave="second end"), part="first").start()
    vm.terminate()
    vm.ended()

    def first_only(life: Life) -> int:
        assert life.welcome.done is not None
        return 0

    vm = world.boot(first_only, part="first", spec=spec_with(retries_failures=0))
    vm.run()
    assert world.head.state is State.FAILED
    assert "its part 'second' was done in an earlier start" in world.end_of(2).message


def test_only_requested_objects_of_done_parts_are_read(world: World, tmp_path: Path) -> None:
    vm = world.boot(program(leave="second begin"), part="first").start()
    vm.terminate()
    vm.ended()
    done = parts_of(world.head.chain)[0]
    assert done.state is not None
    asked: list[str] = []

    def note(operation: Operation, apply: Callable[[], Any]) -> Any:
        asked.append(operation.path)
        return apply()

    def unwanted(life: Life) -> int:
        assert life.welcome.restore is None and life.welcome.done is not None
        assert life.welcome.step == STEPS
        life.next_part("second")
        life.channel.send(Results())
        refusal = life.hear(Error)
        assert isinstance(refusal, Error) and refusal.message == "results: this part is not done"
        life.advance(STEPS)
        life.commit()
        life.end_part(model="second")
        return 0

    assert isinstance(world.store, MemoryStore)
    vm = world.boot(unwanted, part="first", store=world.store.view(note), restore_done=False)
    assert vm.run() == 0
    check_done(world, tmp_path)
    read = [path for path in asked if path.endswith("state.json")]
    assert not any(path.startswith(done.state.path) for path in read)


@pytest.mark.parametrize(
    ("begins", "then", "said"),
    [
        ("second", "", "part 'second': the run's parts are first, second, and 'first' comes next"),
        ("first", "First", "part 'First': the run's parts are first, second, and 'second' comes"),
        ("first", "third", "part 'third': the run's parts are first, second, and 'second' comes"),
        ("first", "", "without part=: the run has parts (first, second)"),
        ("first", "two words", "part 'two words': must be letters"),
    ],
)
def test_unknown_parts_are_refused_by_name(world: World, begins: str, then: str, said: str) -> None:
    vm = world.boot(program(leave="second step"), part="first").start()
    vm.terminate()
    vm.ended()
    chain = world.head.chain

    def greets(life: Life) -> int:
        life.channel.send(Hello(1, 0, part=then))
        answer = life.hear(Ended)
        assert isinstance(answer, Ended) and answer.exit == 64
        return 64

    again = world.boot(greets, part=begins)
    again.run()
    end = world.end_of(2)
    assert (end.reason, world.head.state) == (Reason.USAGE, State.FAILED)
    assert said in end.message
    assert world.head.chain == chain


def test_a_damaged_end_of_a_part_is_named(world: World) -> None:
    vm = world.boot(program(leave="second step"), part="first").start()
    vm.terminate()
    vm.ended()
    done = parts_of(world.head.chain)[0].newest
    found = next(item for item in world.store.list(done.path) if item.path.endswith("model"))
    world.store.delete(found.path, generation=found.generation)
    vm = world.boot(program(), part="first")
    vm.run()
    end = world.end_of(2)
    assert end.reason is Reason.RESTORE_ERROR
    assert "of part first: cannot be read" in end.message
