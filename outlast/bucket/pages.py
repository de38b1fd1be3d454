"""Pages: older entries of HEAD's chain and lineage, stored outside of HEAD.

HEAD is read with each heartbeat and rewritten with each commit, so it keeps only the newest
entries. The older ones go to pages. A page is written once, under the term of its writer and the
digest of its bytes, and HEAD names it by generation and digest. Only pages that HEAD names count;
any other page is a small file that is never read. Pages are never changed or deleted, so an older
HEAD still finds all its pages.

A page names the pages before it. `FAN` references of one level become one reference of the next
level, to the newest of these pages, which lists the others. So finding an entry among n pages takes
about log(n) reads, and a page has a few dozen references however long the run gets. Setting a run
back copies nothing: a page's references name all older entries.

    PageLost    a page cannot be read; the message names it and what is behind it
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from blake3 import blake3

from outlast.base.codec import OtherFormat, Record
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.head import Checkpoint, Head, Lineage, PageRef, check_chain, check_pages
from outlast.bucket.layout import (
    Layout,
)
from outlast.bucket.parts import Part, parts_of
from outlast.bucket.store import Damaged, NotFound, ReadOnlyStore, Store, put_new
from outlast.bucket.transfer import in_parallel, small_reads

CHAIN_PAGE = 32
"""Checkpoints of one page; HEAD holds fewer than this many, besides those that may still be
dropped.
"""

LINEAGE_PAGE = 64
"""Lineage entries of one page; HEAD keeps this many."""

FAN = 32
"""References of one level that become one of the next level."""

Entry = TypeVar("Entry", Checkpoint, Lineage)


class PageLost(Damaged):
    """A page is missing or is not what HEAD names; newer entries are not affected."""


@dataclass(frozen=True)
class ChainPage(Record):
    """Checkpoints that HEAD's chain once held, oldest first."""

    run: str
    term: int
    """The writer's term."""
    entries: tuple[Checkpoint, ...]
    before: tuple[PageRef, ...]
    """References to older pages, oldest first."""


@dataclass(frozen=True)
class LineagePage(Record):
    """Entries that HEAD's lineage once held, oldest first."""

    run: str
    term: int
    entries: tuple[Lineage, ...]
    before: tuple[PageRef, ...]


Page = ChainPage | LineagePage


class Kept(NamedTuple):
    """All kept checkpoints of a run whose pages can be read."""

    chain: tuple[Checkpoint, ...]
    """The checkpoints, oldest first."""
    lost: tuple[str, ...]
    """One sentence for each page that cannot be read."""


# ---------------------------------------------------------------------------------------------
# Reading


class _Pages(Generic[Entry]):
    """Reads the pages of one kind, each once."""

    def __init__(
        self,
        store: ReadOnlyStore,
        layout: Layout,
        kind: type[ChainPage] | type[LineagePage],
        patience: Patience,
    ) -> None:
        self._store = store
        self._layout = layout
        self._kind = kind
        self._patience = patience

    def read(self, ref: PageRef) -> Page:
        """Raises PageLost, and StoreError if the store does not answer."""
        try:
            data, _ = self._patience(lambda: self._store.get(ref.path, generation=ref.generation))
            found = blake3(data).hexdigest()
            if found != ref.blake3:
                raise Damaged(f"{ref.path}: BLAKE3 is {found}, named is {ref.blake3}")
            page = self._kind.from_json(data)
            check_pages(self._layout, page.before)
            if isinstance(page, ChainPage):
                check_chain(self._layout, page.entries)
            return page
        except (Damaged, NotFound, ValueError) as error:
            what = "checkpoints" if self._kind is ChainPage else "entries of the lineage"
            behind = f"{ref.entries} older {what}, of steps {ref.first} to {ref.last}"
            raise PageLost(
                f"page {ref.path}: cannot be read, and it leads to {behind} ({error})"
            ) from None

    def refs(self, ref: PageRef | None) -> tuple[PageRef, ...]:
        """The references in the next page; one reference if it cannot be read."""
        if ref is None:
            return ()
        try:
            return _list_after(self.read(ref), ref)
        except PageLost:
            return (ref,)

    def newest_first(self, ref: PageRef | None, lost: Callable[[PageLost], None]) -> Iterator[Page]:
        """Reads the pages behind a reference, one at a time. Calls `lost` for a page that cannot be
        read; if `lost` returns, the pages before that one follow.
        """
        if ref is None:
            return
        try:
            page = self.read(ref)
        except PageLost as error:
            lost(error)
            return
        yield page
        for before in reversed(page.before):
            if before.level < ref.level:
                yield from self.newest_first(before, lost)

    def all(self, ref: PageRef | None) -> tuple[list[Entry], list[str]]:
        """Reads all entries, oldest first, many pages at a time; also returns what could not be
        read.
        """
        found: dict[tuple[int, ...], tuple[Entry, ...]] = {}
        lost: list[str] = []
        waiting = [((), ref)] if ref is not None else []
        streams = small_reads(self._store)
        while waiting:
            pages = in_parallel([lambda one=one: self._try(one) for _, one in waiting], streams)
            following = []
            for (place, one), page in zip(waiting, pages, strict=True):
                if isinstance(page, PageLost):
                    lost.append(str(page))
                    continue
                before = [other for other in page.before if other.level < one.level]
                following += [((*place, at), other) for at, other in enumerate(before)]
                found[(*place, len(before))] = page.entries  # type: ignore[assignment]
            waiting = following
        return [entry for place in sorted(found) for entry in found[place]], lost

    def _try(self, ref: PageRef) -> Page | PageLost:
        try:
            return self.read(ref)
        except PageLost as error:
            return error


def newest_first(
    store: Store,
    layout: Layout,
    head: Head,
    *,
    lost: Callable[[PageLost], None],
    patience: Patience = BRIEF,
) -> Iterator[Checkpoint]:
    """All kept checkpoints, newest first. Reads pages when they are needed, and calls `lost` for
    one that cannot be read. Raises StoreError if the store does not answer.
    """
    waiting = sorted(head.chain, key=_age)
    for page in _chain(store, layout, patience).newest_first(head.older_chain, lost):
        assert isinstance(page, ChainPage)
        # A best checkpoint stays in HEAD longer than its neighbours, so its page is later than its
        # age suggests: it waits for its turn.
        waiting = sorted((*page.entries, *waiting), key=_age)
        before = max((one.last for one in page.before), default=-1)
        while waiting and waiting[-1].step > before:
            yield waiting.pop()
    yield from reversed(waiting)


def kept(store: ReadOnlyStore, layout: Layout, head: Head, *, patience: Patience = BRIEF) -> Kept:
    """All kept checkpoints, oldest first, without those behind an unreadable page. Raises
    StoreError if the store does not answer.
    """
    older, lost = _chain(store, layout, patience).all(head.older_chain)
    return Kept(tuple(sorted((*older, *head.chain), key=_age)), tuple(lost))


def parts(
    store: ReadOnlyStore, layout: Layout, head: Head, *, patience: Patience = BRIEF
) -> tuple[Part, ...]:
    """The parts of a run in the order in which they began; reads no page if there are none. Raises
    PageLost if a page cannot be read, and StoreError.
    """
    if head.older_chain is None or not (head.chain and head.chain[-1].part):
        return parts_of(head.chain)
    found = kept(store, layout, head, patience=patience)
    if found.lost:
        raise PageLost("; ".join(found.lost))
    return parts_of(found.chain)


def entries(
    store: Store,
    layout: Layout,
    ref: PageRef,
    step: int | None = None,
    *,
    patience: Patience = BRIEF,
) -> tuple[Checkpoint, ...]:
    """The checkpoints behind a reference, oldest first; with ``step``, only those of that step.
    Raises PageLost if a page cannot be read, and StoreError.
    """
    found, lost = _chain(store, layout, patience).all(ref)
    if lost:
        raise PageLost("; ".join(lost))
    found = sorted(found, key=_age)
    return tuple(entry for entry in found if step is None or entry.step == step)


def find(
    store: Store, layout: Layout, head: Head, step: int, *, patience: Patience = BRIEF
) -> Checkpoint | None:
    """The newest kept checkpoint of a step; None if there is none. Raises PageLost if the page that
    may have it cannot be read, and StoreError.
    """
    for entry in reversed(head.chain):
        if entry.step == step:
            return entry
    return find_behind(store, layout, head.older_chain, step, patience=patience)


def find_behind(
    store: Store, layout: Layout, ref: PageRef | None, step: int, *, patience: Patience = BRIEF
) -> Checkpoint | None:
    """Like `find`, in the pages behind a reference."""
    if ref is None or not ref.first <= step <= ref.last:
        return None
    page = _chain(store, layout, patience).read(ref)
    for entry in reversed(page.entries):
        if isinstance(entry, Checkpoint) and entry.step == step:
            return entry
    for before in reversed(page.before):
        if before.level < ref.level:
            found = find_behind(store, layout, before, step, patience=patience)
            if found is not None:
                return found
    return None


def until(
    store: Store,
    layout: Layout,
    head: Head,
    step: int,
    *,
    without: Collection[Checkpoint] = (),
    patience: Patience = BRIEF,
) -> Head:
    """HEAD as it was when its newest checkpoint was at that step: later checkpoints, and those of
    that step in `without`, are in neither the chain nor its pages. Raises PageLost and
    StoreError.
    """
    chain, older = cut(
        store, layout, head.chain, head.older_chain, step, without=without, patience=patience
    )
    return replace(head, chain=tuple(chain), older_chain=older)


def cut(
    store: Store,
    layout: Layout,
    chain: Sequence[Checkpoint],
    older: PageRef | None,
    step: int,
    *,
    without: Collection[Checkpoint] = (),
    patience: Patience = BRIEF,
) -> tuple[list[Checkpoint], PageRef | None]:
    """Like `until`, for a chain and the pages before it."""
    chain = [entry for entry in chain if entry.step <= step and entry not in without]
    newest = max((entry.step for entry in chain), default=-1)
    pages = _chain(store, layout, patience)
    part, older = _split(pages, older, step, newest, without)
    return sorted((*part, *chain), key=_age), older


def _split(
    pages: "_Pages[Checkpoint]",
    older: PageRef | None,
    step: int,
    newest: int,
    without: Collection[Checkpoint] = (),
) -> tuple[list[Checkpoint], PageRef | None]:
    """What is behind `older` up to the step: the checkpoints of the page that contains the step,
    and the pages before it. HEAD itself holds a checkpoint of step `newest`. If these pages have a
    newer one, it is among the checkpoints, because HEAD itself always holds the newest.
    """
    refs = [older] if older else []
    part: list[Checkpoint] = []
    first = min((entry.step for entry in without), default=step + 1)
    while refs and (refs[-1].last > min(step, newest) or refs[-1].last >= first):
        ref = refs.pop()
        if ref.first > step:
            continue
        page = pages.read(ref)
        refs += [other for other in page.before if other.level < ref.level]
        here = (one for one in page.entries if isinstance(one, Checkpoint) and one.step <= step)
        part = [*(one for one in here if one not in without), *part]
        newest = max([newest, *(entry.step for entry in part)])
    return sorted(part, key=_age), _of_all(refs)


def found_again(
    store: Store,
    layout: Layout,
    step: int,
    owns: Callable[[Checkpoint], bool],
    *,
    patience: Patience = BRIEF,
) -> tuple[list[Checkpoint], PageRef | None]:
    """For a lost HEAD: the checkpoints up to the step that the newest page leads to, as those for
    HEAD itself and a reference to the others. A page counts if its name matches its bytes and
    `owns` accepts each of its checkpoints. Raises StoreError, and OtherFormat for a page that
    another version of Outlast wrote.
    """
    pages = _chain(store, layout, patience)
    items = sorted(store.list(layout.pages), key=lambda item: item.updated, reverse=True)
    for item in items:
        place = layout.page_of(item.path)
        data, _ = patience(lambda path=item.path: store.get(path))
        digest = blake3(data).hexdigest()
        if place is None or not digest.startswith(place[1]):
            continue
        try:
            page = ChainPage.from_json(data)
            check_chain(layout, page.entries)
            if page.run == layout.run and all(owns(entry) for entry in page.entries):
                ref = _reference(item.path, item.generation, digest, page.entries, page.before)
                return _split(pages, ref, step, step)
        except OtherFormat:
            raise
        except (
            ValueError,
            PageLost,
        ):  # It is a page of the lineage, or it or an earlier one is damaged.
            continue
    return [], None


def lineage(
    store: Store, layout: Layout, head: Head, *, patience: Patience = BRIEF
) -> Iterator[Lineage]:
    """The whole lineage, newest first; reads pages when they are needed. Raises PageLost if one
    cannot be read, and StoreError.
    """
    yield from reversed(head.lineage)
    for page in _lineage(store, layout, patience).newest_first(head.older_lineage, _raise):
        assert isinstance(page, LineagePage)
        yield from reversed(page.entries)


def lineage_until(
    store: Store, layout: Layout, head: Head, term: int, *, patience: Patience = BRIEF
) -> Head:
    """HEAD with its lineage cut back to the time before any later term. Raises PageLost and
    StoreError.
    """
    part = tuple(entry for entry in head.lineage if entry.term <= term)
    pages = _lineage(store, layout, patience)
    refs = [head.older_lineage] if head.older_lineage else []
    while refs and not part:
        ref = refs.pop()
        page = pages.read(ref)
        assert isinstance(page, LineagePage)
        refs += [other for other in page.before if other.level < ref.level]
        part = tuple(entry for entry in page.entries if entry.term <= term)
    return replace(head, lineage=part, older_lineage=_of_all(refs))


def _raise(error: PageLost) -> None:
    raise error


def _chain(store: ReadOnlyStore, layout: Layout, patience: Patience) -> _Pages[Checkpoint]:
    return _Pages(store, layout, ChainPage, patience)


def _lineage(store: ReadOnlyStore, layout: Layout, patience: Patience) -> _Pages[Lineage]:
    return _Pages(store, layout, LineagePage, patience)


def _age(entry: Checkpoint) -> tuple[int, int]:
    """The lists have older entries first, so entries of the same step (the last state of a part,
    its end, the start of the next part) stay in order.
    """
    return entry.term, entry.step


# ---------------------------------------------------------------------------------------------
# Into another store


def moved(
    origin: Store,
    target: Store,
    layout: Layout,
    head: Head,
    entry: Callable[[Checkpoint], Checkpoint],
    *,
    patience: Patience = BRIEF,
) -> Head:
    """HEAD for a copy of the run in another store, whose checkpoints `entry` returns; writes its
    pages there. A repeated call writes the same. Raises PageLost if a page cannot be read."""
    known: dict[str, PageRef] = {}

    def one(pages: _Pages[Checkpoint] | _Pages[Lineage], ref: PageRef) -> PageRef:
        if ref.path not in known:
            page = pages.read(ref)
            before = tuple(one(pages, other) for other in page.before)
            if isinstance(page, ChainPage):
                page = replace(page, entries=tuple(map(entry, page.entries)), before=before)
            else:
                page = replace(page, before=before)
            data = page.to_json()
            digest = blake3(data).hexdigest()
            written = put_new(target, layout.page(page.term, digest), data, patience=patience)
            known[ref.path] = replace(
                ref, path=written.path, generation=written.generation, blake3=digest
            )
        there = known[ref.path]
        return replace(ref, path=there.path, generation=there.generation, blake3=there.blake3)

    chain, older = head.older_chain, head.older_lineage
    return replace(
        head,
        chain=tuple(map(entry, head.chain)),
        older_chain=chain and one(_chain(origin, layout, patience), chain),
        older_lineage=older and one(_lineage(origin, layout, patience), older),
    )


# ---------------------------------------------------------------------------------------------
# References


def _list_after(page: Page, ref: PageRef) -> tuple[PageRef, ...]:
    """The references for the next page: those of this page, and this page."""
    before = list(page.before)
    own = _reference(ref.path, ref.generation, ref.blake3, page.entries, ())
    while len([one for one in before if one.level == own.level]) >= FAN - 1:
        covered = [one for one in before if one.level <= own.level]
        before = before[: len(before) - len(covered)]
        own = _covering(own, covered, own.level + 1)
    return (*before, own)


def _of_all(refs: Sequence[PageRef]) -> PageRef | None:
    """Combines references into one: to the newest page, which lists the others."""
    if not refs:
        return None
    *before, newest = refs
    return _covering(newest, before, max(one.level for one in refs) + 1)


def _covering(ref: PageRef, others: Sequence[PageRef], level: int) -> PageRef:
    all_of_them = (ref, *others)
    return replace(
        ref,
        level=level,
        entries=sum(one.entries for one in all_of_them),
        first=min(one.first for one in all_of_them),
        last=max(one.last for one in all_of_them),
    )


def _reference(
    path: str,
    generation: int,
    digest: str,
    entries: Sequence[Checkpoint] | Sequence[Lineage],
    before: Sequence[PageRef],
) -> PageRef:
    """A reference to a page; with `before`, also to everything that it names."""
    steps = [one.step if isinstance(one, Checkpoint) else one.from_step for one in entries]
    own = PageRef(path, generation, digest, 0, len(entries), min(steps), max(steps))
    return _of_all((*before, own)) or own


# ---------------------------------------------------------------------------------------------
# Writing


@dataclass(frozen=True)
class Fold:
    """A page in the bucket that HEAD does not name yet."""

    page: Page
    base: PageRef | None
    """The references in HEAD when it was written."""
    ref: PageRef

    def applied(self, head: Head) -> Head:
        """HEAD with the page instead of its entries; unchanged if HEAD has changed since."""
        gone = set(self.page.entries)
        if isinstance(self.page, ChainPage):
            if head.older_chain != self.base or not gone.issubset(head.chain):
                return head
            chain = tuple(entry for entry in head.chain if entry not in gone)
            return replace(head, chain=chain, older_chain=self.ref)
        if head.older_lineage != self.base or not gone.issubset(head.lineage):
            return head
        left = tuple(entry for entry in head.lineage if entry not in gone)
        return replace(head, lineage=left, older_lineage=self.ref)


class Folder:
    """Writes the pages of one term, at most one for each commit, so that all commits cost about the
    same.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        term: int,
        *,
        patience: Patience,
        stays: Callable[[Head], Sequence[Checkpoint]],
    ) -> None:
        """`stays` returns the entries of HEAD's chain that no later commit drops, oldest first."""
        self._store = store
        self._layout = layout
        self._term = term
        self._patience = patience
        self._stays = stays
        self._lists: dict[PageRef, tuple[PageRef, ...]] = {}
        """The references for the next page, computed from HEAD's."""

    def fold(self, head: Head) -> Fold | None:
        """Writes a page with HEAD's oldest entries, if there are enough; the following swap names
        it. Raises what the store raises; a retry writes the same page.
        """
        staying = self._stays(head)
        if len(staying) >= CHAIN_PAGE:
            return self._put(ChainPage, staying[:CHAIN_PAGE], head.older_chain)
        # The holder's own entry may still move; those of lower terms never do.
        if len(head.lineage) >= 2 * LINEAGE_PAGE:
            return self._put(LineagePage, head.lineage[:LINEAGE_PAGE], head.older_lineage)
        return None

    def _put(
        self,
        kind: type[ChainPage] | type[LineagePage],
        entries: Sequence[Checkpoint] | Sequence[Lineage],
        base: PageRef | None,
    ) -> Fold:
        before = self._list(kind, base)
        page = kind(self._layout.run, self._term, tuple(entries), before)  # type: ignore[arg-type]
        data = page.to_json()
        digest = blake3(data).hexdigest()
        path = self._layout.page(self._term, digest)
        written = put_new(self._store, path, data, patience=self._patience)
        ref = _reference(path, written.generation, digest, entries, before)
        self._lists[ref] = _list_after(page, ref)
        return Fold(page, base, ref)

    def _list(
        self, kind: type[ChainPage] | type[LineagePage], base: PageRef | None
    ) -> tuple[PageRef, ...]:
        if base is None:
            return ()
        known = self._lists.pop(base, None)
        if known is None:
            known = _Pages(self._store, self._layout, kind, self._patience).refs(base)
        return known
