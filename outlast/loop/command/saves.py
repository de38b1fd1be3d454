"""Decides when a command's checkpoint is complete, and copies it then.

There are three ways, and the first one that a command uses applies to the whole run: it calls
``outlast mark``, it writes a file COMPLETE, or it does neither and its folder comes to rest. If the
folder never rests because saves follow each other too quickly, a copy is kept once the next save
begins, which proves that the copied one was complete.
"""

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from outlast.base import exits
from outlast.loop.command.flow import FlowWatch
from outlast.loop.command.folder import Changed, Copier, NoRoom, Taken, starts_with
from outlast.loop.command.handover import Handover
from outlast.loop.command.listing import NO_FLOW, Listing, Seen, Stillness, look
from outlast.loop.command.notes import Notes
from outlast.loop.command.rhythm import SIBLING_FACTOR, Rhythm
from outlast.loop.words import say
from outlast.spec.file_kinds import PICTURES, Kind, Kinds
from outlast.spec.globs import matches

SCAN_SEC = 0.25
SCAN_COST = 20.0
"""Listing the folder takes at most this fraction (1 / SCAN_COST) of the time."""
DENSE_SEC = 2 * SCAN_SEC
"""No whole save fits between two looks that are so close."""
NEVER_STILL_SEC = 60.0
MARK_TRIES = 3
RESTS = 20
REST_SHARE = 0.25
"""A rest that is shorter than this share of the longest recent one is inside a save."""

HasOpen = Callable[[Iterable[str]], bool]
"""Whether the command has one of these files open for writing; True if the system does not say."""


class Saves:
    """Watches a command's checkpoint folder and copies what is complete; call ``begin`` first."""

    def __init__(
        self,
        root: Path,
        copier: Copier,
        handover: Handover,
        kinds: Kinds,
        *,
        quiet_sec: float,
        step: int,
        has_open: HasOpen = lambda paths: True,
    ) -> None:
        self._root = root
        self._copier = copier
        self._handover = handover
        self._kinds = kinds
        self._quiet_sec = quiet_sec
        self._has_open = has_open
        self._base = step
        self.count = 0
        """Snapshots made in this attempt."""
        self.copy_cost_sec = 0.0
        self._warned: set[str] = set()
        self._warned_unsaved = False
        self._candidate: _Candidate | None = None

    def begin(self, notes: Notes, *, is_new: bool = False) -> None:
        """Start with the folder as the command finds it, and the previous attempt's notes.
        ``is_new``: its files are a checkpoint that was not copied yet."""
        now_sec = time.monotonic()
        self._said = notes.said
        self.had_ended = notes.ended
        """Whether the command had ended with 0 when the restored files were kept."""
        self._listing = look(self._root, self._kinds)
        self._flow = NO_FLOW
        self._flows = FlowWatch(self._root, self._quiet_sec)
        self._rhythm = Rhythm(self._listing, notes.learned)
        self._taken = self._listing
        self._taken_at_sec = now_sec
        self._taken_marks = self._listing.complete_folders()
        self._still = Stillness(now_sec, self._listing)
        self._still_sec = 0.0
        self._rests: deque[float] = deque(maxlen=RESTS)
        """Recent rests between two changes, in seconds."""
        self._scan_at_sec = now_sec
        self._looked_at_sec = now_sec
        self._is_next = True
        """Whether the last two looks were so close that no whole save fits between them."""
        self._unsaved_since_sec: float | None = None
        self._found_count = 0
        if is_new and self._listing.chosen().state:
            self._take(None, said="", before=self._listing)
            self._found_count = self.count

    @property
    def has_new(self) -> bool:
        """Whether the command itself has made a checkpoint in this attempt."""
        return self.count > self._found_count

    @property
    def step(self) -> int:
        """A command's step, which is the number of its snapshots in all attempts."""
        return self._base + self.count

    @property
    def said(self) -> str:
        """How the command reports a complete checkpoint; empty until it does."""
        return self._said

    def scan(self, now_sec: float, *, stopping: bool) -> bool:
        """List the folder and copy what is complete. Return whether something has changed."""
        if now_sec < self._scan_at_sec:
            return False
        begun_sec = time.monotonic()
        listing = self._look(now_sec)
        cost_sec = time.monotonic() - begun_sec
        before_sec, still_sec = self._still_sec, self._still.still_sec(now_sec, listing, self._flow)
        self._still_sec = still_sec
        if still_sec < before_sec:
            self._rests.append(before_sec)
        if listing.says_complete and not self._said:
            self._said = "complete"
        if self._said == "complete":
            self._take_complete(listing)
        elif not stopping and not self._said:
            self._take_quiet(now_sec, listing)
        self._scan_at_sec = now_sec + max(SCAN_SEC, SCAN_COST * cost_sec)
        return still_sec < before_sec

    def _look(self, now_sec: float) -> Listing:
        self._is_next = now_sec - self._looked_at_sec <= DENSE_SEC
        self._looked_at_sec = now_sec
        self._listing = listing = look(self._root, self._kinds)
        if not self._said:
            self._flow = self._flows.observe(now_sec, listing)
            self._rhythm.observe(listing, self._flow, is_next=self._is_next)
        return listing

    # A folder with a COMPLETE file.

    def _take_complete(self, listing: Listing) -> None:
        """Copy all complete folders as soon as another one is complete."""
        marks = listing.complete_folders()
        news = any(self._taken_marks.get(name) != mark for name, mark in marks.items())
        if news and self._take(list(marks), said="complete", before=listing):
            self._taken_marks = marks

    # A folder that comes to rest.

    @property
    def _needed_sec(self) -> float:
        return self._quiet_sec * self._rhythm.factor(self._listing)

    def _is_news(self, listing: Listing) -> bool:
        """Whether a checkpoint file has changed since the last copy."""
        now, kept = listing.chosen(), self._taken.chosen()
        return now.touched_of(self._flow) != kept.touched_of(self._flow)

    def _take_quiet(self, now_sec: float, listing: Listing) -> None:
        if not listing.chosen().state:
            self._unsaved_since_sec = None
            self._say_if_nothing_counts(listing)
            return
        if not self._is_news(listing):
            self._unsaved_since_sec = None
            self._drop_candidate()
            self._take_flowing(now_sec, listing)
            return
        if self._unsaved_since_sec is None:
            self._unsaved_since_sec = now_sec
        if self._still_sec >= self._needed_sec and not self._is_writing(listing):
            self._say_if_late(listing)
            if self._handover.is_due(now_sec) and self._take(None, said="", before=listing):
                self._rhythm.taken(listing)
            return
        waited_sec = now_sec - self._unsaved_since_sec
        if waited_sec >= self._quiet_sec and self._handover.is_due(now_sec):
            self._take_between(listing)
        if self._rhythm.saves_unkept or waited_sec >= NEVER_STILL_SEC:
            self._warn_unsaved(now_sec)

    def _is_writing(self, listing: Listing) -> bool:
        """Whether the command has a file open that has changed since the last copy. A file that
        stays open delays the copy for a limited time only."""
        if self._still_sec >= self._quiet_sec * SIBLING_FACTOR:
            return False
        kept = self._taken.files
        names = (
            name
            for name, seen in listing.files.items()
            if kept.get(name) != seen
            and not self._flow.holds(name)
            and self._kinds.of(name) in (Kind.CHECKPOINT, Kind.BY_PRODUCT)
        )
        return self._has_open(str(self._root / name) for name in names)

    def _take_flowing(self, now_sec: float, listing: Listing) -> None:
        """Copy if only flowing files have changed: appended lines, or a database."""
        if not (self._flow.growing or self._flow.databases):
            return
        waited_sec = now_sec - self._taken_at_sec
        changed = listing.stamp != self._taken.stamp
        if changed and waited_sec >= self._quiet_sec and self._handover.is_due(now_sec):
            self._take(None, said="", before=listing)

    # A command that saves again before its folder has come to rest.

    def _take_between(self, listing: Listing) -> None:
        if self._candidate is not None:
            self._check_candidate(listing)
            return
        older = self._rhythm.older(listing)
        if older is not None:
            kept = self._taken.files
            state = listing.state
            if any(name in state and kept.get(name) != state[name] for name in older):
                self._take(older, said="", before=listing, partly=True)
            return
        if not self._rhythm.saves_again or self._rhythm.lost(listing):
            return
        rests = self._still_sec >= max(self._rests, default=0.0) * REST_SHARE
        whole = (rests and self._rhythm.rests) or self._rhythm.replaces_one_file
        if whole and not self._has_begun_again(listing):
            self._make_candidate(listing)

    def _has_begun_again(self, listing: Listing) -> bool:
        """Whether a by-product other than a picture is newer than the whole checkpoint, and may be
        the first file of the next save."""
        kept = self._taken.files
        newest_ns = max(seen.ctime_ns for seen in listing.state.values())
        return any(
            seen.ctime_ns > newest_ns
            and kept.get(name) != seen
            and self._kinds.of(name) is Kind.BY_PRODUCT
            and not matches(name, PICTURES)
            for name, seen in listing.files.items()
        )

    def _make_candidate(self, listing: Listing) -> None:
        """Copy the folder now; if the next change begins another save, this one was complete."""
        confirmed: list[bool] = []
        begun_sec = time.monotonic()
        closed = not self._has_open(str(self._root / name) for name in listing.state)

        def accept(before: Listing, after: Listing) -> bool:
            is_next = time.monotonic() - begun_sec <= DENSE_SEC
            begins = self._rhythm.begins_next(
                before, after, lambda name, seen: False, is_next=is_next
            )
            confirmed.append(bool(begins))
            return begins is not False

        try:
            taken = self._copier.take(
                "tmp-candidate",
                before=listing,
                without=self._rhythm.early(listing),
                flow=self._flow,
                notes=self._notes(""),
                accept=accept,
            )
        except (Changed, NoRoom, OSError):
            return
        self._candidate = _Candidate(taken, closed)
        if any(confirmed):
            self._keep_candidate()

    def _check_candidate(self, listing: Listing) -> None:
        assert self._candidate is not None
        begins = self._rhythm.begins_next(
            self._candidate.taken.listing,
            listing,
            self._candidate.is_rewritten_below(self._root),
            is_next=self._is_next,
        )
        if begins:
            self._keep_candidate()
        elif begins is False:
            self._drop_candidate()

    def _keep_candidate(self) -> None:
        assert self._candidate is not None
        taken, self._candidate = self._candidate.taken, None
        identifier = self._identifier
        folder = taken.folder.with_name(f"snap-{identifier}")
        os.replace(taken.folder, folder)
        self._note_taken(
            identifier, Taken(folder, taken.listing, taken.copied, taken.cost_sec), said=""
        )

    def _drop_candidate(self) -> None:
        if self._candidate is not None:
            shutil.rmtree(self._candidate.taken.folder, ignore_errors=True)
            self._candidate = None

    # Messages.

    def _say_if_nothing_counts(self, listing: Listing) -> None:
        found = sorted(name for name in listing.files if self._kinds.of(name) is not Kind.TEMPORARY)
        if not found or self._still_sec < self._quiet_sec:
            return
        some = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        if self._kinds.checkpoint:
            globs = " ".join(self._kinds.checkpoint)
            self._warn(
                f"CHECKPOINT_DIR: no file matches {globs} (--checkpoint, "
                f"outlast:checkpointFiles), so nothing is kept; it holds {some}"
            )
            return
        self._warn(
            f"CHECKPOINT_DIR: contains only logs and by-products ({some}), which make no "
            "checkpoint; if one of them should, name it (--checkpoint GLOB, "
            "outlast:checkpointFiles)"
        )

    def _say_if_late(self, listing: Listing) -> None:
        missing = self._rhythm.lacks(listing)
        if missing:
            self._warn(
                f"CHECKPOINT_DIR: lacks {missing} after {self._still_sec:.0f} s without a change; "
                "it is kept as it is"
            )

    def _warn_unsaved(self, now_sec: float) -> None:
        if not self._warned_unsaved:
            self._warned_unsaved = True
            say(
                "CHECKPOINT_DIR was written to again before it had been unchanged for "
                f"{self._quiet_sec:g} s; a save is then kept only if it was certainly complete: "
                "call outlast mark after each save, save less often, or set a shorter time "
                "(--checkpoint-quiet-sec, outlast:checkpointQuietSec)"
            )

    def _warn(self, sentence: str) -> None:
        """Print a sentence, but each only once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            say(sentence)

    # Copies.

    @property
    def _identifier(self) -> str:
        return f"{self.count + 1:06d}"

    def _notes(self, said: str, *, ended: bool = False) -> Notes:
        return Notes(self._said or said, ended, self._rhythm.learned)

    def _take(
        self,
        chosen: list[str] | None,
        *,
        said: str,
        before: Listing,
        ended: bool = False,
        partly: bool = False,
    ) -> Taken | None:
        """Make a copy, which replaces one that the supervisor has not accepted yet; None if that is
        not possible now.

        ``partly``: the files that are not chosen belong to an unfinished save."""
        identifier = self._identifier
        self._drop_candidate()
        try:
            taken = self._copier.take(
                f"snap-{identifier}",
                folders=chosen,
                before=before,
                without=() if said or ended else self._rhythm.early(before),
                flow=self._flow,
                notes=self._notes(said, ended=ended),
            )
        except Changed:
            return None
        except (NoRoom, OSError) as error:
            # Training matters more than one checkpoint, and the problem may be temporary.
            self._warn(f"no checkpoint could be made: {error}")
            return None
        if partly:
            taken = Taken(taken.folder, before.chosen(chosen), taken.copied, taken.cost_sec)
        self._note_taken(identifier, taken, said)
        return taken

    def _note_taken(self, identifier: str, taken: Taken, said: str) -> None:
        self.count += 1
        self._said = self._said or said
        self.copy_cost_sec = taken.cost_sec
        if taken.links_left:
            self._warn(
                "CHECKPOINT_DIR: links that lead out of it are not kept, such as "
                f"{taken.links_left[0]}; save the files themselves there"
            )
        self._taken, self._taken_at_sec = taken.listing, time.monotonic()
        self._unsaved_since_sec = None
        self._rhythm.kept(taken.listing)
        self._handover.put(identifier, taken, self.step)

    def marked(self, named: str) -> dict[str, object]:
        """The answer for ``outlast mark``, which waits while the copy is made."""
        root = os.path.realpath(self._root)
        place = os.path.realpath(named) if named else root
        if place != root and not place.startswith(f"{root}{os.sep}"):
            return {
                "error": f"{named}: is not in CHECKPOINT_DIR {self._root}; save there",
                "code": exits.USAGE,
            }
        if not os.path.isdir(place):
            return {"error": f"{named}: is not a folder", "code": exits.USAGE}
        chosen = None if place == root else [os.path.relpath(place, root).replace(os.sep, "/")]
        self._said = "mark"
        for _ in range(MARK_TRIES):
            before = look(self._root, self._kinds)
            found = before.chosen(chosen)
            if not found.files:
                return {"error": f"{place}: holds no files", "code": 1}
            if not found.state:
                return {
                    "error": f"{place}: contains only logs and by-products, such as "
                    f"{min(found.files)}; name what is a checkpoint (--checkpoint GLOB)",
                    "code": 1,
                }
            if self._take(chosen, said="mark", before=before) is not None:
                return {"step": self.step}
        return {
            "error": f"{place}: could not be copied: it changed meanwhile or does not fit; "
            "finish writing before the mark",
            "code": 1,
        }

    # After the command's end.

    def take_last(
        self, *, saved: bool, ended: bool = False, is_result: bool = False, even_old: bool = False
    ) -> None:
        """Copy what the command has left. ``saved``: it has finished saving; otherwise it may have
        been interrupted while writing, and only files that had already come to rest are copied.
        ``ended``: it ended by itself with 0. If its checkpoint ``is_result``, that is then copied
        even if nothing has changed, so that the next attempt sees the end. A command that made no
        checkpoint in this attempt may not have finished, so this needs ``even_old``.
        """
        before, before_sec = self._listing, self._still_sec
        listing = self._look(time.monotonic())
        if self._said == "complete" or (not self._said and listing.says_complete):
            self._take_complete(listing)
        if self._said or not listing.chosen().state:
            return
        changed = self._is_news(listing)
        if ended:
            is_end = is_result and not self.had_ended and (self.has_new or even_old)
            if changed or is_end:
                self._take(None, said="", before=listing, ended=True)
            return
        untouched = listing.stamp == before.stamp
        if changed and (saved or (untouched and before_sec >= self._needed_sec)):
            self._take(None, said="", before=listing)

    @property
    def unmatched_globs(self) -> list[tuple[str, str]]:
        """(kind, glob) of each glob that matches no file in the folder."""
        names = self._listing.files
        return [
            (kind, glob)
            for kind, globs in self._kinds.given.items()
            for glob in globs
            if not any(matches(name, [glob]) for name in names)
        ]


class _Candidate:
    """A copy of the folder at a moment when a save may have been complete."""

    def __init__(self, taken: Taken, closed: bool) -> None:
        self.taken = taken
        self._closed = closed

    def is_rewritten_below(self, root: Path) -> Callable[[str, Seen], bool]:
        """A function that says whether a file was rewritten from its beginning since it was copied
        and was closed then, which means that the copy was whole."""

        def is_rewritten(name: str, before: Seen) -> bool:
            if not self._closed:
                return False
            with contextlib.suppress(OSError):
                return not starts_with(root / name, self.taken.folder / "files" / name)
            return False

        return is_rewritten
