"""Planted mutants: the same code with one safeguard taken away, in one place each.

A guarantee whose test stays green under its mutant is not tested at all; test_mutants.py has the
table.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import cleanup as cleanup_module
from outlast.bucket import headfile as headfile_module
from outlast.bucket import pages
from outlast.bucket import upload as upload_module
from outlast.bucket.boot import Act, Claim, Decision, Look
from outlast.bucket.commit import Committer
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Checkpoint, End, Head, HeadError, new_nonce
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Fresh, Reader, Restored
from outlast.bucket.store import (
    Data,
    MemoryStore,
    Object,
    PreconditionFailed,
    Store,
    StoreError,
    checksum_of,
    delete_quietly,
    memory,
)
from outlast.bucket.store.contract import opened
from outlast.supervisor.group import Group
from outlast.supervisor.link import Link
from outlast.supervisor.site import Next, Outcome
from outlast.supervisor.trainer_loop import TrainerLoop

Plant = Callable[[pytest.MonkeyPatch], None]


def precondition_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store applies a write whatever generation it names."""
    monkeypatch.setattr(memory, "check_generation", lambda *_: None)


def nonce_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer does not know its own write again."""
    monkeypatch.setattr(headfile_module, "is_own", lambda found, nonces: False)


def any_nonce_taken_for_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer takes every write that it finds for its own."""
    monkeypatch.setattr(headfile_module, "is_own", lambda found, nonces: bool(nonces))


def commits_in_any_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old attempt commits in the term that its process holds now."""
    holding = HeadFile._holding
    monkeypatch.setattr(HeadFile, "_holding", lambda head_file, term=None: holding(head_file))


def swap_repeated_over_whatever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused swap reads the generation again and continues."""

    def applied(head_file: HeadFile, wanted: Head, generation: int) -> bool:
        while True:
            try:
                written = head_file.store.put(
                    head_file.layout.head, wanted.to_json(), if_generation_match=generation
                )
            except PreconditionFailed:
                generation = head_file.read().object.generation
                continue
            head_file._held = headfile_module._Held(wanted, written.generation)
            return True

    monkeypatch.setattr(HeadFile, "_applied", applied)


def manifest_before_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is uploaded before the objects that it names."""
    put = MemoryStore.put
    held: list[tuple[str, bytes]] = []

    def put_later(
        store: MemoryStore, path: str, data: Data, *, if_generation_match: int | None = None
    ) -> Object:
        snapshot = "/t0" in path and "/result/" not in path
        if snapshot and not path.endswith("/MANIFEST.json"):
            with opened(data) as file:
                held.append((path, file.read()))
            # The generation that it will have: the manifest's comes first.
            upcoming = int(repr(store._generations).strip("count()"))
            return Object(path, upcoming + len(held), *checksum_of(data), store.now())
        written = put(store, path, data, if_generation_match=if_generation_match)
        if snapshot:
            while held:
                put(store, *held.pop(0), if_generation_match=0)
        return written

    monkeypatch.setattr(MemoryStore, "put", put_later)


def rows_after_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are flushed once the commit is in HEAD."""
    put = MemoryStore.put
    held: list[tuple[str, bytes]] = []

    def put_later(
        store: MemoryStore, path: str, data: Data, *, if_generation_match: int | None = None
    ) -> Object:
        if "/metrics/" in path:
            with opened(data) as file:
                content = file.read()
            held.append((path, content))
            return Object(path, 0, *checksum_of(content), store.now())
        written = put(store, path, data, if_generation_match=if_generation_match)
        while path.endswith("/HEAD") and held:
            put(store, *held.pop(0), if_generation_match=0)
        return written

    monkeypatch.setattr(MemoryStore, "put", put_later)


def copies_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy inside the store is accepted without checking its content."""

    def copied(
        store: MemoryStore, source: str, path: str, *, source_generation: int, **_: Any
    ) -> Object | None:
        entry = store._objects.get(source)
        if entry is None or entry[1].generation != source_generation:
            return None
        written = store.put(path, entry[0], if_generation_match=0)
        return replace(written, size=entry[1].size, crc32c=entry[1].crc32c)

    monkeypatch.setattr(upload_module, "copy_new", copied)


def retention_before_the_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that the next HEAD drops are deleted while the current HEAD names them."""
    swap = HeadFile.swap

    def deleting(head_file: HeadFile, change: Callable[[Head], Head], *, term: int) -> Head:
        held = head_file.held(term)
        kept = change(held).chain
        for entry in held.chain:
            if entry not in kept:
                _delete_folder(head_file.store, entry.path)
        return swap(head_file, change, term=term)

    monkeypatch.setattr(HeadFile, "swap", deleting)


def folded_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints that move to a page are deleted, because HEAD no longer names them."""
    swap, note = HeadFile.swap, Committer._note_dropped
    before: set[Checkpoint] = set()

    def remembering(head_file: HeadFile, change: Callable[[Head], Head], *, term: int) -> Head:
        before.clear()
        before.update(head_file.held(term).chain)
        return swap(head_file, change, term=term)

    def note_all(committer: Committer, dropped: set[Checkpoint], after: Head) -> None:
        note(committer, dropped | before, after)

    monkeypatch.setattr(HeadFile, "swap", remembering)
    monkeypatch.setattr(Committer, "_note_dropped", note_all)


def sweep_without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep deletes objects that HEAD does not name, even if its pages do."""

    def kept(store: Store, layout: Layout, head: Head, **_: Any) -> pages.Kept:
        return pages.Kept(head.chain, ())

    monkeypatch.setattr(cleanup_module, "pages", _replaced(pages, kept=kept))


def _replaced(module: ModuleType, **names: Any) -> SimpleNamespace:
    """A module with other things under some names, for one that uses it."""
    return SimpleNamespace(**{**vars(module), **names})


def page_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD names a page whose bytes went elsewhere."""
    put = pages.put_new

    def astray(store: Store, path: str, data: Any, **named: Any) -> Object:
        return put(store, f"{path}.new", data, **named)

    monkeypatch.setattr(pages, "put_new", astray)


def sweep_of_equal_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep deletes objects of the current term that HEAD does not name yet."""

    def sweep(committer: Committer, **_: Any) -> None:
        store, layout = committer._store, committer._layout
        named = [entry.path for entry in committer._head_file.check(term=committer.term).chain]
        for found in list(store.list(layout.terms)):
            place = layout.folder_of(found.path)
            if place and place[0] <= committer.term and place[1] not in named:
                delete_quietly(store, found.path, found.generation)

    monkeypatch.setattr(Committer, "sweep", sweep)


def failed_commit_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed commit deletes its uploads, even if its swap may have succeeded."""
    commit = Committer.commit

    def cleaning(committer: Committer, folder: Path, **named: Any) -> Checkpoint:
        before = _folders(committer)
        try:
            return commit(committer, folder, **named)
        except (HeadError, StoreError):
            for leftover in _folders(committer) - before:
                _delete_folder(committer._store, leftover)
            raise

    monkeypatch.setattr(Committer, "commit", cleaning)


def term_taken_without_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor reuses its predecessor's term."""

    def change(look: Look, claim: Claim, decision: Decision) -> Decision:
        if decision.act is not Act.TAKE or decision.head is None or not isinstance(look, Head):
            return decision
        return replace(decision, head=replace(decision.head, term=look.term))

    _decide_otherwise(monkeypatch, lambda look, claim: claim, change)


def lower_pair_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of an earlier resume or placement takes the run."""

    def pretend(look: Look, claim: Claim) -> Claim:
        if isinstance(look, Head) and (claim.resume, claim.placement) < (
            look.resume,
            look.placement,
        ):
            return replace(claim, resume=look.resume, placement=look.placement)
        return claim

    def change(look: Look, claim: Claim, decision: Decision) -> Decision:
        if decision.act is not Act.TAKE or decision.head is None:
            return decision
        head = replace(decision.head, resume=claim.resume, placement=claim.placement)
        return replace(decision, head=head)

    _decide_otherwise(monkeypatch, pretend, change)


def retry_without_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was refused the term tries again."""
    take_term = HeadFile.take_term

    def taking(head_file: HeadFile, claim: Claim, **named: Any) -> Decision:
        return take_term(head_file, claim, **{**named, "still_member": lambda: True})

    monkeypatch.setattr(HeadFile, "take_term", taking)


def restore_without_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are accepted without a check."""

    def download(reader: Reader, checkpoint: Checkpoint, entry: Any, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        reader._store.fetch(checkpoint.path + entry.name, to, generation=entry.generation)

    monkeypatch.setattr(Reader, "_object", download)


def silent_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no checkpoint can be read the run starts from scratch."""
    restore = Committer.restore

    def restoring(committer: Committer, into: Path) -> Restored | Fresh:
        try:
            return restore(committer, into)
        except RestoreError:
            return Fresh()

    monkeypatch.setattr(Committer, "restore", restoring)


def end_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's stop does not look whether the run has ended."""

    def end_from_outside(head_file: HeadFile, state: State, reason: Reason) -> Head:
        found = head_file.read()
        end = End(reason=reason, exit=None, step=found.head.step, result=None)
        mine = replace(found.head.ended(state, end), nonce=new_nonce())
        head_file.store.put(
            head_file.layout.head, mine.to_json(), if_generation_match=found.object.generation
        )
        return mine

    monkeypatch.setattr(HeadFile, "end_from_outside", end_from_outside)


def failure_counted_after_the_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure comes into HEAD with the next swap of the process, after the retry began."""
    swap = HeadFile.swap
    uncounted: list[HeadFile] = []

    def count_failure(head_file: HeadFile, *, term: int, before: int, retries: int) -> bool:
        uncounted.append(head_file)
        return before + 1 <= retries

    def counting(head_file: HeadFile, change: Callable[[Head], Head], *, term: int) -> Head:
        late, uncounted[:] = len(uncounted), []
        return swap(
            head_file,
            lambda head: replace(change(head), failures=head.failures + late),
            term=term,
        )

    monkeypatch.setattr(HeadFile, "count_failure", count_failure)
    monkeypatch.setattr(HeadFile, "swap", counting)


def exit_0_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 0 is the end of the run, also after a stop that was sent to the trainer."""
    judge = TrainerLoop._judge

    def trusting(loop: TrainerLoop, link: Link, now: float) -> None:
        if link.exit_code != 0:
            return judge(loop, link, now)
        loop._term.committer.finish(State.DONE, Reason.DONE, exit=0)
        loop._outcome = Outcome(Next.LEAVE, Reason.DONE, "the trainer exited with 0")

    monkeypatch.setattr(TrainerLoop, "_judge", trusting)


def leaving_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine takes a namesake in its group for itself."""

    managed_instances = Group._managed_instances

    def namesakes(group: Group) -> Iterator[Mapping[str, object]]:
        for instance in managed_instances(group):
            same = instance.get("name") == group._name
            yield {**instance, "id": group._instance_id} if same else instance

    monkeypatch.setattr(Group, "_managed_instances", namesakes)


def _decide_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    pretend: Callable[[Look, Claim], Claim],
    change: Callable[[Look, Claim, Decision], Decision],
) -> None:
    decide = headfile_module.decide

    def otherwise(look: Look, claim: Claim, **named: Any) -> Decision:
        return change(look, claim, decide(look, pretend(look, claim), **named))

    monkeypatch.setattr(headfile_module, "decide", otherwise)


def _folders(committer: Committer) -> set[str]:
    layout: Layout = committer._layout
    with contextlib.suppress(StoreError):
        return {
            place[1]
            for found in committer._store.list(layout.term(committer.term))
            if (place := layout.folder_of(found.path))
        }
    return set()


def _delete_folder(store: Store, folder: str) -> None:
    with contextlib.suppress(StoreError):
        for found in list(store.list(folder)):
            delete_quietly(store, found.path, found.generation)
