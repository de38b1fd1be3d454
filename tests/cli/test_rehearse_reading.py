"""What a rehearsal judges is read once its VM has left, whatever was seen of the run before."""

from types import SimpleNamespace
from typing import Any, cast

from outlast.base.exits import Reason, State
from outlast.bucket import history
from outlast.bucket.head import End
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.store import MemoryStore
from outlast.cli.rehearsal.rehearsal import Rehearsal, StackRun
from tests.cli.records import start_record
from tests.cli.test_resume import LAYOUT, OPEN, START


def test_an_end_recorded_after_the_last_look_is_judged() -> None:
    store = MemoryStore(clock=lambda: START)
    head = store.put(LAYOUT.head, OPEN.to_json())
    store.put(LAYOUT.attempt_start(3), start_record(3, 0, START).to_json())
    stack_run = cast(Any, object.__new__(StackRun))
    stack_run.name, stack_run.heads, stack_run.history = "dev", [], None
    stack_run.outputs = {"prefix": LAYOUT.prefix, "run": LAYOUT.run, "resume": "0"}
    seen = history.read(store, LAYOUT)
    assert seen is not None and seen.attempts[0].reason is None
    stack_run.note(seen)
    end = AttemptEnd(
        term=3,
        reason=Reason.DONE,
        state=State.DONE,
        exit=0,
        step=9,
        committed=9,
        message="done at step 9",
        stderr=(),
        staged_sec=0.0,
        time=START,
    )
    store.put(LAYOUT.attempt_end(3), end.to_json())
    ended = OPEN.ended(State.DONE, End(Reason.DONE, 0, 9, None))
    store.put(LAYOUT.head, ended.to_json(), if_generation_match=head.generation)
    run = Rehearsal._run(cast(Any, SimpleNamespace(store=store)), stack_run)
    assert run.ends == {3: end}
    assert run.history is not None and run.history.head.state is State.DONE
    assert run.history.attempts[0].reason is Reason.DONE
