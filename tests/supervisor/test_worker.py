"""The thread that commits: each job until it is done or pointless."""

import queue
from typing import Any

from outlast.base.retry import Patience
from outlast.bucket.store import Unavailable
from outlast.supervisor.worker import Finished, Job, Worker
from tests.log_lines import log_lines
from tests.stores import FakeClock


def test_a_job_is_tried_until_it_is_done_and_its_error_is_posted() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    clock, said = FakeClock(), log_lines()
    worker = Worker(posted.put, Patience(clock))
    tries: list[int] = []

    def run() -> str:
        tries.append(1)
        if len(tries) <= 5:
            raise Unavailable("no answer")
        return "done"

    def crash() -> None:
        "\udce9".encode()

    worker.submit(Job("commit", run))
    worker.submit(Job("result", crash))
    done, crashed = posted.get(timeout=60), posted.get(timeout=60)
    worker.close()
    assert isinstance(done, Finished) and (done.value, done.error, len(tries)) == ("done", None, 6)
    assert isinstance(crashed.error, UnicodeEncodeError)
    assert said[0] == "commit: no answer; trying again for up to 15 min"
    assert said[1].startswith("commit: no answer; trying again (tried 4 times in ")
    assert said[2:] == ["commit: succeeded at try 6"]


def test_a_closed_worker_waits_no_longer() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()

    class Closing(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            worker.close()

    clock = Closing()
    worker = Worker(posted.put, Patience(clock))

    def fail() -> None:
        raise Unavailable("no answer")

    worker.submit(Job("commit", fail))
    assert isinstance(posted.get(timeout=60).error, Unavailable)
    assert clock.elapsed < 5
