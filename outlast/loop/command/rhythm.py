"""Learns how a command saves: which files belong together, and when a save is complete.

It only looks at names, sizes and times. Digits in a name number its saves:
``checkpoint-500/model.bin`` and ``checkpoint-1000/model.bin`` have one *shape*,
``checkpoint-#/model.bin``.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outlast.loop.command.listing import Flow, Listing, Seen

FIRST_FACTOR = 3
"""Multiple of the quiet time that the folder must rest if there are new kinds of files: others may
arrive late."""
SIBLING_FACTOR = 6
"""The same if a file was not written that each earlier save wrote, if a file or a link has
disappeared, or if the command still has a file open that it has written to."""
LATE_FACTOR = 60
"""The same for a save that certainly lacks a file."""
SHAPES_MAX = 1000
"""The most shapes to remember."""

Rewritten = Callable[[str, Seen], bool]
"""Whether the same file has been rewritten from its beginning since the given state."""

SAVE_WORDS = frozenset(
    (
        *("step", "steps", "epoch", "epochs", "ep", "iter", "iters", "iteration", "iterations"),
        *("ckpt", "checkpoint", "chkpt", "save", "snapshot", "snap", "update", "updates"),
        *("round", "trial", "episode", "episodes", "timestep", "timesteps", "generation"),
    )
)
"""Words beside which a number counts saves, as in ``epoch_3.pt``."""
PART_WORDS = frozenset(
    (
        *("rank", "shard", "part", "worker", "process", "proc", "node", "gpu", "device"),
        *("mp", "tp", "pp", "dp", "local", "layer", "fold", "split", "chunk", "expert", "stage"),
        *("random", "rng", "distcp", "partition", "slice", "block"),
    )
)
"""Words beside which a number counts the files of one save, as in ``rank_3.pt``."""
PADDED = 6
"""A number with this many digits counts saves too, as in ``model_0000999.pth``."""
APART = 2
"""Numbers without such a word count saves if they are at least this far apart."""

_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(r"[a-z]+")
_RANDOM = re.compile(r"(?<![A-Za-z0-9])[0-9a-f]{8,}(?![A-Za-z0-9])")
"""A part of a name that differs in each save, as in Orbax's data files."""
_OF = re.compile(r"\d+-of-\d+")
_SHARD = re.compile(r"(.*?)(\d{5})-of-(\d{5})(.*)")


def shape_of(name: str) -> str:
    """The name without its numbers."""
    return _DIGITS.sub("#", name)


def form_of(path: str) -> str:
    """The path without its numbers, except those that count the files of one save."""
    return "/".join(
        component
        if PART_WORDS.intersection(_WORDS.findall(component.lower()))
        else shape_of(_RANDOM.sub("*", component))
        for component in path.split("/")
    )


def numbers_in(name: str) -> tuple[int, ...]:
    """The numbers of a name, in order."""
    return tuple(int(digits) for digits in _DIGITS.findall(name))


def counts_saves(component: str) -> bool | None:
    """Whether the numbers in the name of a file or folder count saves; None if its words do not
    say so. They may count the files of one save instead: ranks, shards."""
    component = _OF.sub("", component.lower())
    words = _WORDS.findall(component)
    if not numbers_in(component):
        return False
    if PART_WORDS.intersection(words):
        return False
    padded = any(len(digits) >= PADDED for digits in _DIGITS.findall(component))
    if SAVE_WORDS.intersection(words) or component.isdigit() or padded:
        return True
    return None


class Numbers:
    """Finds which names contain the number of a save, from all names seen."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    def observe(self, names: Iterable[str]) -> None:
        """Add names, with their folders."""
        for name in names:
            below = ""
            for component in name.split("/"):
                if (digits := numbers_in(component)) and counts_saves(component) is None:
                    self._found.setdefault(shape_of(below + component), set()).add(digits[0])
                below += f"{component}/"

    def count_saves(self, path: str) -> bool:
        """Whether the numbers in the last component of this path count saves."""
        component = path.rpartition("/")[2]
        if "#" not in shape_of(component):
            return False
        said = counts_saves(component)
        if said is not None:
            return said
        found = sorted(self._found.get(shape_of(path), ()))
        apart = (later - earlier for earlier, later in zip(found, found[1:], strict=False))
        return len(found) > 1 and min(apart) >= APART

    def save_of(self, name: str) -> tuple[str, int] | None:
        """(path of the numbered kind, number) of the save that the file or folder belongs to, by
        its topmost number that counts saves; None if its name does not say."""
        at = name.find("/")
        while True:
            top = name if at < 0 else name[:at]
            if self.count_saves(top):
                component = top.rpartition("/")[2]
                folder = top.removesuffix(component)
                key = f"{folder}{shape_of(component)}" if at >= 0 else folder
                return key, numbers_in(component)[0]
            if at < 0:
                return None
            at = name.find("/", at + 1)

    def key(self, name: str) -> str:
        """A key shared by all files that differ only in the number of their save."""
        found, below = [], ""
        for component in name.split("/"):
            numbered = self.count_saves(below + component)
            found.append(shape_of(component) if numbered else component)
            below += f"{component}/"
        return "/".join(found)


class Rhythm:
    """The saves of one command, learned from its listings. Pass every listing to ``observe``."""

    def __init__(self, listing: Listing, learned: Mapping[str, Any]) -> None:
        self._shapes = set(learned.get("shapes", ()))
        together = learned.get("together")
        self._together = None if together is None else set(together)
        self._members = (
            {key: (set(shapes), tuple(last)) for key, (shapes, last) in learned["members"].items()}
            if learned
            else {}
        )
        """For folders that differ only in their numbers: the shapes that each had, and the numbers
        of the last complete one."""
        self._numbers = Numbers()
        self._numbers.observe(listing.files)
        self._before = listing.state
        self._links = dict(listing.links)
        """The target of each link when it was last seen."""
        self._lasting = {name for name in listing.state if self._numbers.save_of(name) is None}
        """Copied files without a save's number."""
        self._moving: set[str] = set()
        """Names that had changed at the last look."""
        self._changed: set[str] = set()
        """Shapes that have changed since the last snapshot."""
        self._events: dict[str, int] = {}
        self._unkept: dict[str, int] = {}
        """Number of saves of each shape since a copy was kept."""
        self._first: dict[str, tuple[int, int]] = {}
        """The look and the time at which each shape first changed in this attempt."""
        self._looks = 0
        self._first_unseen = False
        """Whether the first look with a change may show more than the first save."""
        self._last_numbers: dict[str, int] = {}
        self._begun_unseen = False
        """Whether the newest numbered save began between two looks that were far apart."""
        self._replaced_only: dict[str, bool] = {}
        self._rewritten: set[str] = set()
        """Shapes of which a file older than the newest was rewritten."""
        self.links_move = False

    @property
    def learned(self) -> dict[str, Any]:
        """The notes for the next attempt."""
        if len(self._shapes) > SHAPES_MAX:
            return {}
        return {
            "shapes": sorted(self._shapes, key=repr),
            "together": None if self._together is None else sorted(self._together, key=repr),
            "members": {
                key: (sorted(shapes, key=repr), last)
                for key, (shapes, last) in sorted(self._members.items())
            },
        }

    def observe(self, listing: Listing, flow: Flow, *, is_next: bool = True) -> None:
        """Learn from one more listing of the folder. Unless ``is_next``, a whole save may have
        passed unseen since the listing before."""
        self._looks += 1
        before, now = self._before, listing.state
        moving = {
            name
            for name, seen in now.items()
            if not flow.holds(name) and (name not in before or before[name].version != seen.version)
        }
        if moving:
            self._numbers.observe(now)
        newest = self._newest(now) if moving else {}
        if any(number > self._last_numbers.get(kind, -1) for kind, number in newest.items()):
            self._begun_unseen = not is_next
        self._last_numbers.update(newest)
        if moving and not self._first:
            self._first_unseen = not is_next
        for name in sorted(moving, key=lambda name: now[name].ctime_ns):
            key = self._numbers.key(name)
            self._changed.add(form_of(name))
            was = before.get(name)
            same_file = was is not None and was.inode == now[name].inode
            self._replaced_only[key] = self._replaced_only.get(key, True) and not same_file
            if name in self._moving and same_file:
                continue  # still being written
            save = self._numbers.save_of(name)
            if was is not None and save is not None and save[1] < newest[save[0]]:
                self._rewritten.add(key)
            self._events[key] = self._events.get(key, 0) + 1
            if (
                was is None or not same_file or now[name].size <= was.size
            ):  # else still being written
                self._unkept[key] = self._unkept.get(key, 0) + 1
            self._first.setdefault(key, (self._looks, now[name].ctime_ns))
        links = listing.links
        self.links_move = self.links_move or any(
            self._links.get(name, to) != to for name, to in links.items()
        )
        self._moving, self._before, self._links = moving, now, {**self._links, **links}

    def kept(self, listing: Listing) -> None:
        """Note that a copy of this listing was kept."""
        self._unkept = {}
        self._links = dict(listing.links)
        self._lasting = {name for name in listing.state if self._numbers.save_of(name) is None}

    def _newest(self, names: Iterable[str]) -> dict[str, int]:
        """The highest number of each kind of save."""
        found: dict[str, int] = {}
        for name in names:
            if save := self._numbers.save_of(name):
                found[save[0]] = max(found.get(save[0], save[1]), save[1])
        return found

    def lost(self, listing: Listing) -> bool:
        """Whether a link, or a file without a save's number, has disappeared: a script that removes
        it before it writes the next one is in the middle of a save."""
        files = listing.files
        return any(name not in listing.links and name not in files for name in self._links) or any(
            name not in files for name in self._lasting
        )

    def early(self, listing: Listing) -> set[str]:
        """By-products, logs and folders of a new save that has no checkpoint file yet, while
        earlier saves exist. A script that looks for the newest save would find this empty one."""
        state = listing.state
        newest = self._newest(state)
        found = {
            name for name in listing.files if name not in state and self._is_later(name, newest)
        }
        return found | {name for name in listing.folders if self._is_later(f"{name}/", newest)}

    def _is_later(self, name: str, newest: Mapping[str, int]) -> bool:
        save = self._numbers.save_of(name)
        return save is not None and save[1] > newest.get(save[0], save[1])

    def taken(self, listing: Listing) -> None:
        """Learn from a snapshot of a folder at rest."""
        state = listing.state
        self._shapes.update(map(form_of, state))
        if self._changed:
            self._together = (
                set(self._changed) if self._together is None else self._together & self._changed
            )
        self._changed = set()
        for key, members in folder_families(state, self._members, least=1):
            found, last = set.intersection(*members.values()), max(members)
            if key in self._members:
                found &= self._members[key][0]
            self._members[key] = (found, last)

    def factor(self, listing: Listing) -> int:
        """Multiple of the quiet time that the folder must rest to count as complete."""
        if self.lacks(listing):
            return LATE_FACTOR
        partial = self._together is not None and not self._changed >= self._together
        if partial or _lacks_sibling(listing.state) or self.lost(listing):
            return SIBLING_FACTOR
        is_new = any(form_of(name) not in self._shapes for name in listing.state)
        return FIRST_FACTOR if is_new else 1

    def lacks(self, listing: Listing) -> str | None:
        """A file that the newest save certainly lacks, or None."""
        state = listing.state
        for key, members in folder_families(state, self._members):
            if key not in self._members:
                continue
            newest, (expected, last) = max(members), self._members[key]
            missing = sorted(expected - members[newest], key=repr)
            if missing and newest > last:
                return f"{_named(key, newest)}/{missing[0]}"
        return _lacks_known(state)

    # Saves that follow each other within the quiet time.

    @property
    def saves_again(self) -> bool:
        """Whether some file was saved a second time in this attempt."""
        return any(count >= 2 for count in self._events.values())

    @property
    def saves_unkept(self) -> bool:
        """Whether some file was saved a second time since a copy was kept."""
        return any(count >= 2 for count in self._unkept.values())

    @property
    def _recurrent(self) -> list[str]:
        return [shape for shape, count in self._events.items() if count >= 2]

    @property
    def _leaders(self) -> set[str]:
        """The shapes with which a save begins."""
        first = {shape: self._first[shape] for shape in self._recurrent}
        if not first:
            return set()
        begun = min(first.values())
        if self._first_unseen and sum(look == begun[0] for look, _ in self._first.values()) > 1:
            return set()
        return {shape for shape, (look, at_ns) in first.items() if (look, at_ns) == begun}

    @property
    def replaces_one_file(self) -> bool:
        """Whether each save is one file that is renamed into place, so that it is always whole."""
        shapes = self._recurrent
        return (
            len(shapes) == 1
            and "#" not in shape_of(shapes[0])
            and self._replaced_only.get(shapes[0], False)
            and self._events[shapes[0]] >= 2
            and not self.links_move
        )

    @property
    def rests(self) -> bool:
        """Whether nothing had changed at the last look."""
        return not self._moving

    def older(self, listing: Listing) -> list[str] | None:
        """The names in all numbered saves but the newest; these saves are complete because a later
        one has begun. None if a save has other files too."""
        state = listing.state
        newest = self._newest(state)
        saves = {name: self._numbers.save_of(name) for name in state}
        of_newest = {
            name for name, save in saves.items() if save is not None and save[1] == newest[save[0]]
        }
        if len(of_newest) == len(state) or not of_newest or self.links_move:
            return None
        if self.lost(listing) or self._begun_unseen or self._links_to_save(listing):
            return None
        begun_ns = min(state[name].ctime_ns for name in of_newest)
        for name in state.keys() - of_newest:
            seen = state[name]
            if (seen.ctime_ns if saves[name] is None else seen.mtime_ns) >= begun_ns:
                return None
        earlier = {self._numbers.key(name) for name in state if name not in of_newest}
        for key in self._recurrent:
            if key in self._rewritten or key not in earlier or "#" not in key:
                return None
        names = [name for name in state if name not in of_newest]
        if not any(saves[name] for name in names):
            return None
        rest = Listing({name: state[name] for name in names}, {}, frozenset(), listing.kinds)
        if self.lacks(rest) or _lacks_sibling(rest.state):
            return None
        others = [
            name
            for name in listing.files
            if name not in state
            and ((save := self._numbers.save_of(name)) is None or save[1] < newest.get(save[0], 0))
        ]
        return [*names, *others]

    def _links_to_save(self, listing: Listing) -> bool:
        """Whether a link names a numbered save, as one does that follows the newest."""
        return any(
            self._numbers.save_of(posixpath.join(posixpath.dirname(name), to)) is not None
            for name, to in listing.links.items()
        )

    def begins_next(
        self, before: Listing, after: Listing, rewritten: Rewritten, *, is_next: bool
    ) -> bool | None:
        """Whether the first change between two listings begins another save, so that the previous
        one was complete; None if nothing has changed. Unless ``is_next``, a whole save may have
        passed unseen between the two."""
        old, new = before.state, after.state
        changed = {
            name: seen.ctime_ns
            for name, seen in new.items()
            if name not in old or old[name].version != seen.version
        }
        gone = [name for name in old if name not in new and self._numbers.save_of(name) is None]
        moved = {name for name in before.links if after.links.get(name) != before.links[name]}
        if not changed:
            return False if gone or moved else None
        if not is_next:
            followers = {*self._recurrent} - self._leaders
            seen_late = any(self._numbers.key(name) in followers for name in changed)
            if seen_late or any(name not in new for name in old):
                return False
        begun = min(changed.values())
        first = [name for name, at_ns in changed.items() if at_ns == begun]
        return all(self._leads(name, old.get(name), new[name], rewritten) for name in first)

    def _leads(self, name: str, old: Seen | None, new: Seen, rewritten: Rewritten) -> bool:
        """Whether this change is the first one of a save."""
        if self._numbers.key(name) not in self._leaders:
            return False
        if old is None:
            save = self._numbers.save_of(name)
            return save is not None or "#" not in shape_of(name)
        return _replaced(old, new) or rewritten(name, old)


def _replaced(before: Seen, after: Seen) -> bool:
    return before.inode != after.inode


def folder_families(
    names: Iterable[str], known: Iterable[str] = (), *, least: int = 2
) -> Iterator[tuple[str, dict[tuple[int, ...], set[str]]]]:
    """Groups of sibling folders that differ only in their numbers, at least ``least`` of them or of
    a known path: (path without numbers, {numbers of a folder: shapes of its files})."""
    known = set(known)
    waiting: list[tuple[str, list[str]]] = [("", list(names))]
    while waiting:
        prefix, below = waiting.pop()
        folders: dict[str, list[str]] = {}
        for name in below:
            first, slash, rest = name.partition("/")
            if slash:
                folders.setdefault(first, []).append(rest)
        families: dict[str, list[str]] = {}
        for folder in folders:
            families.setdefault(shape_of(folder), []).append(folder)
        for shape, members in families.items():
            key = f"{prefix}{shape}"
            if "#" in shape and (len(members) >= least or shape_of(key) in known):
                yield (
                    shape_of(key),
                    {
                        numbers_in(prefix) + numbers_in(folder): set(map(form_of, folders[folder]))
                        for folder in members
                    },
                )
            else:
                waiting += [(f"{prefix}{folder}/", folders[folder]) for folder in members]


def _named(key: str, numbers: tuple[int, ...]) -> str:
    left = list(map(str, numbers))
    return re.sub("#", lambda _: left.pop(0) if left else "#", key)


def _files_by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        found.setdefault(folder, []).append(base)
    return found


def _numbered_files(bases: Iterable[str]) -> dict[str, set[int]]:
    """The first numbers in the names of one folder's files, by shape."""
    found: dict[str, set[int]] = {}
    for base in bases:
        if numbers := numbers_in(base):
            found.setdefault(shape_of(base), set()).add(numbers[0])
    return found


def _lacks_sibling(state: Iterable[str]) -> str | None:
    """A sibling file that the newest save lacks: if all earlier numbers have both model-N.pt and
    optimizer-N.pt, say, the newest must have both too. None if it lacks none."""
    for folder, bases in _files_by_folder(state).items():
        shapes = _numbered_files(bases)
        newest = max((max(ids) for ids in shapes.values()), default=None)
        if newest is None:
            continue
        earlier = [ids - {newest} for ids in shapes.values() if newest in ids]
        if len(earlier[0]) < 2 or any(ids != earlier[0] for ids in earlier):
            continue
        for shape, ids in sorted(shapes.items()):
            if newest not in ids and ids == earlier[0]:
                name = _named(shape, (newest,) * shape.count("#"))
                return f"{folder}/{name}" if folder else name
    return None


def _lacks_known(state: Iterable[str]) -> str | None:
    """A file that is missing in a format that defines its complete set of files, or None."""
    for folder, bases in _files_by_folder(state).items():
        prefix = f"{folder}/" if folder else ""
        present = set(bases)
        if any(base.endswith(".distcp") for base in bases) and ".metadata" not in present:
            return f"{prefix}.metadata"  # torch.distributed.checkpoint writes it last
        of_trainer = "training_args.bin" in present or any(
            base.startswith("rng_state") for base in present
        )
        is_numbered = shape_of(folder.rpartition("/")[2]) == "checkpoint-#"
        if is_numbered and of_trainer and "trainer_state.json" not in present:
            return f"{prefix}trainer_state.json"  # transformers.Trainer writes it last
        shards: dict[tuple[str, str, str], set[str]] = {}
        for base in bases:
            if found := _SHARD.fullmatch(base):
                shards.setdefault((found[1], found[3], found[4]), set()).add(found[2])
        for (head, count, tail), there in sorted(shards.items()):
            if len(there) < int(count):
                return f"{prefix}one of {head}*-of-{count}{tail}"
    return None
