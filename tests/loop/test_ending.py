"""What ends a training: every way to leave the loop or the ``with`` block, under a supervisor."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

import outlast
from outlast import protocol
from outlast.loop import LeftEarly, LoopError, NotHere, Training
from outlast.protocol import Complete, Stop
from tests.loop.fake_supervisor import FakeSupervisor

TOTAL = 12


def training(total: int | None = TOTAL) -> Training:
    return outlast.train(state={"n": {"value": 0}}, total=total)


def ends(supervisor: FakeSupervisor) -> list[tuple[int, str]]:
    """The steps and reasons of the completions that the supervisor got."""
    assert supervisor.gone.wait(60)
    return [(message.step, message.why) for message in supervisor.of(Complete)]


def said(supervisor: FakeSupervisor) -> list[str]:
    return [message.message for message in supervisor.of(protocol.Error)]


# With a total and without.


@pytest.mark.parametrize("logs", [True, False])
def test_with_a_total_leaving_the_loop_early_does_not_end_the_run(
    supervisor: FakeSupervisor, logs: bool
) -> None:
    left = rf"after step {5 if logs else 4} of 12"
    with pytest.raises(LeftEarly, match=left) as caught, training() as run:
        for step in run.steps():
            if logs:
                run.log(x=step)
            if step == 5:
                break
    assert "call run.finish('why')" in str(caught.value)
    assert ends(supervisor) == []
    assert said(supervisor) == [str(caught.value)]


def test_finish_says_that_leaving_early_is_the_end(supervisor: FakeSupervisor) -> None:
    with training() as run:
        for step in run.steps():
            if step == 5:
                run.finish("early stopping: no improvement\n in 3 evals")
                break
        run.result("model.txt").write_text("good")
    assert ends(supervisor) == [(5, "early stopping: no improvement in 3 evals")]


def test_a_loop_that_continues_after_finish_ends_before_its_next_step(
    supervisor: FakeSupervisor,
) -> None:
    steps = []
    with training() as run:
        for step in run.steps():
            steps.append(step)
            assert run._side.session.wait_committed(30)
            if step == 5:
                run.finish("enough")
    assert steps == [1, 2, 3, 4, 5]
    assert ends(supervisor) == [(5, "enough")]
    assert supervisor.committed[-1][0].step == 5, "the last step is saved as always"


def test_a_best_at_the_last_step_is_saved_when_the_loop_ends_there(
    supervisor: FakeSupervisor,
) -> None:
    supervisor.every = "1000"
    with training(None) as run:
        for step in run.steps():
            run.eval(score=float(step), best="max")
            if step == 3:
                break
    assert ends(supervisor) == [(3, "")]
    assert (3, ["best"]) in [(offer.step, offer.tags) for offer, _ in supervisor.committed]


def test_without_a_total_leaving_the_loop_is_the_end(supervisor: FakeSupervisor) -> None:
    with training(None) as run:
        assert run.total is None
        for step in run.steps():
            run.log(x=step)
            if step == 30:
                break
    assert ends(supervisor) == [(30, "")]


@pytest.mark.parametrize("why", ["", "  ", None, 3])
def test_finish_requires_a_reason(supervisor: FakeSupervisor, why: object) -> None:
    with pytest.raises(LoopError, match="must say why"), training() as run:
        for _ in run.steps():
            run.finish(why)  # type: ignore[arg-type]


# Steps whose body never ran.


def test_a_step_that_zip_drew_and_never_used_does_not_count(supervisor: FakeSupervisor) -> None:
    with training(None) as run:
        for step, _ in zip(run.steps(), "abc", strict=False):
            run.log(x=step)
        assert run.step == 3
    assert ends(supervisor) == [(3, "")]


def test_a_step_without_a_sign_of_its_body_does_not_count(supervisor: FakeSupervisor) -> None:
    with training(None) as run:
        for _ in run.steps():
            break
        assert run.step == 0
    assert ends(supervisor) == [(0, "")]


def test_a_step_whose_body_raised_does_not_count(supervisor: FakeSupervisor) -> None:
    with training(None) as run:
        with contextlib.suppress(ZeroDivisionError):
            for step in run.steps():
                if step == 3:
                    raise ZeroDivisionError
                run.log(x=step)
        assert run.step == 2
    assert ends(supervisor) == [(2, "")]


def test_leaving_a_loop_with_a_kept_iterator_is_noticed(supervisor: FakeSupervisor) -> None:
    with training(None) as run:
        steps = run.steps()
        for step in steps:
            run.log(x=step)
            if step == 4:
                break
    assert ends(supervisor) == [(4, "")]


# A stop that the program swallows.


def bare(run: Training, each: Callable[[int], None]) -> None:
    try:
        for step in run.steps():
            each(step)
    except:  # noqa: E722
        pass


def finally_return(run: Training, each: Callable[[int], None]) -> int:
    try:
        for step in run.steps():
            each(step)
    finally:
        return run.step  # noqa: B012


def system_exit(run: Training, each: Callable[[int], None]) -> None:
    try:
        for step in run.steps():
            each(step)
    except SystemExit:
        pass


def suppressing(run: Training, each: Callable[[int], None]) -> None:
    with contextlib.suppress(BaseException):
        for step in run.steps():
            each(step)


def other_code(run: Training, each: Callable[[int], None]) -> None:
    try:
        for step in run.steps():
            each(step)
    except SystemExit:
        raise SystemExit(0) from None


def other_error(run: Training, each: Callable[[int], None]) -> None:
    try:
        for step in run.steps():
            each(step)
    except BaseException as error:
        raise RuntimeError("training failed") from error


def generator(run: Training, each: Callable[[int], None]) -> None:
    def batches() -> Iterator[int]:
        try:
            yield from run.steps()
        except SystemExit:
            return

    for step in batches():
        each(step)


SWALLOWING = [bare, finally_return, system_exit, suppressing, other_code, other_error, generator]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("total", [TOTAL, None])
@pytest.mark.parametrize("loop", SWALLOWING)
def test_a_swallowed_stop_still_ends_as_interrupted(
    supervisor: FakeSupervisor, loop: Callable[..., object], total: int | None
) -> None:
    supervisor.every = "1000"

    def each(step: int) -> None:
        if step == 5:
            supervisor.push(Stop(20))

    with pytest.raises(SystemExit) as caught, training(total) as run:
        loop(run, each)
    assert caught.value.code == 75
    assert ends(supervisor) == [] and said(supervisor) == []
    assert [offer.step for offer, _ in supervisor.committed][-1] == 5


@pytest.mark.parametrize("total", [TOTAL, None])
def test_the_programs_own_signal_handler_stops_but_does_not_end_the_run(
    supervisor: FakeSupervisor, total: int | None
) -> None:
    """The supervisor's word may come after the program has left its loop by itself."""
    before = signal.getsignal(signal.SIGTERM)
    asked = []
    with pytest.raises(SystemExit) as caught, training(total) as run:
        own = lambda number, frame: asked.append(number)  # noqa: E731
        signal.signal(signal.SIGTERM, own)
        for step in run.steps():
            run.log(x=step)
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            if asked:
                break
    assert caught.value.code == 75 and asked == [signal.SIGTERM]
    assert ends(supervisor) == []
    assert signal.getsignal(signal.SIGTERM) is own, "the program's handler stays the program's"
    signal.signal(signal.SIGTERM, before)


def test_a_completed_run_stays_done_after_a_stop(supervisor: FakeSupervisor) -> None:
    with training() as run:
        for _ in run.steps():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        supervisor.push(Stop(20))
    assert ends(supervisor) == [(TOTAL, "")]


def test_an_error_after_a_stop_is_shown_and_interrupted(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, training() as run:
        for step in run.steps():
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
                raise RuntimeError("a worker was killed")
    assert caught.value.code == 75
    err = capsys.readouterr().err
    assert "asked to stop, and then raised RuntimeError:" in err and "Traceback" in err


# Leaving the program.


@pytest.mark.parametrize("code", [0, None])
def test_sys_exit_0_in_the_loop_does_not_end_the_run(
    supervisor: FakeSupervisor, code: int | None
) -> None:
    left = r"sys.exit\(0\) ended the program after step 2"
    with pytest.raises(LeftEarly, match=left), training(None) as run:
        for step in run.steps():
            if step == 3:
                raise SystemExit(code)
            run.log(x=step)
    assert ends(supervisor) == []


def test_sys_exit_0_after_the_last_step_is_an_end(supervisor: FakeSupervisor) -> None:
    with pytest.raises(SystemExit) as caught, training() as run:
        for _ in run.steps():
            pass
        raise SystemExit(0)
    assert caught.value.code == 0
    assert ends(supervisor) == [(TOTAL, "")]


@pytest.mark.parametrize("code", [3, "no such file"])
def test_sys_exit_with_an_error_is_a_failure(supervisor: FakeSupervisor, code: object) -> None:
    with pytest.raises(SystemExit) as caught, training() as run:
        for _ in run.steps():
            raise SystemExit(code)
    assert caught.value.code == code
    assert ends(supervisor) == []
    assert said(supervisor) == [f"the program left with sys.exit({code!r})"]


# Children of the trainer.


@pytest.mark.parametrize("end", ["exit", "raise", "loop", "return"])
def test_a_forked_child_leaves_its_parents_training_alone(
    supervisor: FakeSupervisor, end: str
) -> None:
    children = []
    with training() as run:
        for step in run.steps():
            run.log(x=step)
            if step == 3 and not children:
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        child_ends(run, end)
                        status = 0
                    finally:
                        os._exit(status)
                children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert children == [0]
    assert ends(supervisor) == [(TOTAL, "")]
    assert said(supervisor) == []


def child_ends(run: Training, end: str) -> None:
    """A forked child that continues in a copy of the loop."""
    run.tick()
    if end == "exit":
        assert run.__exit__(SystemExit, SystemExit(0), None) is None
    elif end == "raise":
        assert run.__exit__(ValueError, ValueError("in the child"), None) is None
    elif end == "return":
        assert run.__exit__(None, None, None) is None
    else:
        with pytest.raises(NotHere, match="was forked from the one that called outlast.train"):
            run._side.boundary()
