"""Every guarantee has a planted mutant that must turn its own test red.

One row: the guarantee, the mutant that takes it away, and the check of the test that holds it. The
check is run under the mutant and has to find a violation, which is printed; that it finds none
without the mutant is what the test itself shows, wherever it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.bucket.boot import Claim
from outlast.bucket.errors import RestoreError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import MemoryStore
from outlast.supervisor.metadata import Metadata
from tests.bucket import test_commit, test_crash_points, test_head
from tests.stores import START, FakeClock, prove_stale_writes_are_refused
from tests.supervisor import machine as machine_module
from tests.supervisor import (
    mutants,
    scripted,
    test_attempt,
    test_group,
    test_protocol_machine,
)
from tests.supervisor.fake_cloud import fake_cloud
from tests.supervisor.machine import Broken, play
from tests.supervisor.plans import at_each_moment
from tests.supervisor.scripted import How
from tests.supervisor.world import a_world


class Bench:
    """The arguments of the checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder


Check = Callable[[Bench], Iterator[str]]
"""The violations that a test's check finds, one by one."""


@dataclass(frozen=True)
class Row:
    guarantee: str
    mutant: mutants.Plant
    test: str
    """The test that holds the guarantee."""
    check: Check

    def __str__(self) -> str:
        return f"{self.mutant.__name__.replace('_', ' ')}"


def machine(
    guarantee: str,
    mutant: mutants.Plant,
    trouble: str,
    *,
    harmless: bool = True,
    paged: bool = False,
) -> Row:
    """Held by the stepped machines with one kind of trouble at each moment.

    `harmless`: nothing is seen of the mutant before something goes wrong. `paged`: in a run whose
    HEAD has its old entries in pages.
    """

    def check(bench: Bench) -> Iterator[str]:
        if harmless:
            play([], paged=paged)
        for plan in at_each_moment(trouble):
            try:
                play(plan, paged=paged)
            except Broken as broken:
                yield str(broken).partition("\n\n")[0]

    name = test_protocol_machine.test_the_protocol_holds_with_a_fault_at_each_operation.__name__
    where = "in pages" if paged else "in HEAD"
    return Row(guarantee, mutant, f"{name}[{trouble}-{where}]", check)


def crash_point(guarantee: str, mutant: mutants.Plant, how: How) -> Row:
    """Held by the scripted run, disturbed at every operation."""

    def check(bench: Bench) -> Iterator[str]:
        undisturbed, _ = scripted.play(None, -1)
        assert scripted.violations(undisturbed) == [], "the mutant is harmless alone"
        for found in test_crash_points.disturbed(how):
            yield from found

    name = test_crash_points.test_guarantees_hold_at_every_operation.__name__
    return Row(guarantee, mutant, f"{name}[in HEAD-{how.value}]", check)


def retaken(bench: Bench) -> Iterator[str]:
    for found in test_crash_points.retaken():
        yield from found


def exit_0(bench: Bench) -> Iterator[str]:
    with a_world(bench.monkeypatch, bench.folder) as world:
        yield from _failure(lambda: test_attempt.test_exit_0_after_a_stop_is_not_completion(world))


def namesake(bench: Bench) -> Iterator[str]:
    with fake_cloud(bench.monkeypatch) as cloud:
        cloud.boot("group", "17", {})
        metadata = Metadata()
        group = test_group.find_group(metadata, metadata.attributes())
        assert isinstance(group, test_group.Group)
        yield from _failure(
            lambda: test_group.test_a_namesake_with_another_id_is_another_machine(cloud, group)
        )


def membership(bench: Bench) -> Iterator[str]:
    head_file = HeadFile(MemoryStore(), machine_module.LAYOUT, FakeClock())
    claim = Claim("org/demo/dev", 0, 0, START + timedelta(days=36_500))
    yield from _failure(lambda: test_head.test_before_a_retry_membership_is_asked(head_file, claim))


def all_damaged(bench: Bench) -> Iterator[str]:
    commits = _commits(bench)
    yield from _failure(
        lambda: test_commit.test_all_damaged_is_an_error_and_no_restart(commits, "flipped")
    )


def damaged_source(bench: Bench) -> Iterator[str]:
    commits = _commits(bench)
    yield from _failure(lambda: test_commit.test_what_is_damaged_is_not_copied(commits, "flipped"))


def _commits(bench: Bench) -> test_commit.Bench:
    return test_commit.Bench(
        MemoryStore(),
        machine_module.LAYOUT,
        FakeClock(),
        Claim("org/demo/dev", 0, 0, START + timedelta(days=36_500)),
        bench.folder,
    )


def _failure(test: Callable[[], None]) -> Iterator[str]:
    try:
        test()
    except (AssertionError, RestoreError, pytest.fail.Exception) as error:
        yield f"{type(error).__name__}: {error}"


TABLE = [
    machine(
        "a write names the generation that it replaces",
        mutants.precondition_removed,
        "frozen while a successor finishes",
        harmless=False,
    ),
    crash_point("a late request is refused", mutants.precondition_removed, How.REPLAYED),
    machine("a writer knows its own write again", mutants.nonce_ignored, "answer lost"),
    crash_point("and again after a late one", mutants.nonce_ignored, How.DELAYED),
    crash_point("and no other writer's", mutants.any_nonce_taken_for_own, How.FROZEN),
    Row(
        "an attempt's commits end with its term",
        mutants.commits_in_any_term,
        test_crash_points.test_guarantees_hold_when_the_process_of_an_old_attempt_takes_the_run_again.__name__,
        retaken,
    ),
    machine(
        "a refused swap is not repeated",
        mutants.swap_repeated_over_whatever_is_there,
        "frozen while a successor finishes",
    ),
    machine(
        "a manifest names what is there",
        mutants.manifest_before_objects,
        "answer lost",
        harmless=False,
    ),
    machine("rows come before the commit", mutants.rows_after_head, "answer lost", harmless=False),
    machine(
        "retention deletes what a swap has dropped",
        mutants.retention_before_the_swap,
        "answer lost",
        harmless=False,
    ),
    machine(
        "the sweep takes lower terms only",
        mutants.sweep_of_equal_terms,
        "answer lost",
        harmless=False,
    ),
    machine(
        "what goes to a page is not dropped",
        mutants.folded_is_dropped,
        "answer lost",
        harmless=False,
        paged=True,
    ),
    machine("the sweep knows the pages", mutants.sweep_without_pages, "cut", paged=True),
    machine(
        "a page is there before HEAD names it",
        mutants.page_is_not_there,
        "answer lost",
        harmless=False,
        paged=True,
    ),
    machine(
        "a fenced attempt deletes nothing",
        mutants.failed_commit_cleans_up,
        "frozen while a successor finishes",
    ),
    machine("each attempt has its own term", mutants.term_taken_without_one_more, "overtaken"),
    machine(
        "(resume, placement) never falls",
        mutants.lower_pair_accepted,
        "late boot of an earlier placement",
    ),
    Row(
        "who lost its group takes no term",
        mutants.retry_without_membership,
        test_head.test_before_a_retry_membership_is_asked.__name__,
        membership,
    ),
    machine("bytes are hashed before they are used", mutants.restore_without_hash, "bit flipped"),
    Row(
        "nothing starts from scratch in silence",
        mutants.silent_restart,
        test_commit.test_all_damaged_is_an_error_and_no_restart.__name__,
        all_damaged,
    ),
    Row(
        "a copy has the bytes that it was made for",
        mutants.copies_trusted,
        test_commit.test_what_is_damaged_is_not_copied.__name__,
        damaged_source,
    ),
    machine("a run ends once a resume", mutants.end_overwritten, "stopped by the operator"),
    machine(
        "a failure is counted before its retry",
        mutants.failure_counted_after_the_retry,
        "trainer fails",
    ),
    Row(
        "exit 0 after a signal is not a completion",
        mutants.exit_0_trusted,
        test_attempt.test_exit_0_after_a_stop_is_not_completion.__name__,
        exit_0,
    ),
    machine(
        "a machine leaves by its instance id",
        mutants.leaving_by_name,
        "late boot of an earlier placement",
    ),
    Row(
        "a namesake is another machine",
        mutants.leaving_by_name,
        test_group.test_a_namesake_with_another_id_is_another_machine.__name__,
        namesake,
    ),
]


@pytest.fixture(autouse=True)
def fencing() -> None:
    prove_stale_writes_are_refused(MemoryStore())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row}: {row.test}")
def test_the_test_of_a_guarantee_finds_its_mutant(
    row: Row, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row.mutant(monkeypatch)
    violation = next(row.check(Bench(monkeypatch, tmp_path)), None)
    assert violation is not None, f"{row.mutant.__name__}: {row.test} stays green under it"
    print(f"{row.guarantee}; {row}; {row.test}: {violation}")


def test_every_mutant_is_in_the_table() -> None:
    planted = {
        name
        for name, plant in vars(mutants).items()
        if callable(plant)
        and getattr(plant, "__module__", "") == mutants.__name__
        and not name.startswith("_")
    }
    assert planted == {row.mutant.__name__ for row in TABLE}
