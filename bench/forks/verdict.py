"""What must hold after a point: the undisturbed bytes, nothing lost, doubled or left over."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.forks.play import Played
from bench.forks.points import Point
from bench.forks.probe import FAILING, Kind
from bench.forks.scenes import Scene, comparable, files_of, kept, key_of, result_of
from bench.forks.vm import LAYOUT
from bench.points import row_faults
from outlast.base.exits import DONE, FENCED, INTERRUPTED, Reason, State
from outlast.bucket.head import Head, HeadError, end_copy, read_head
from outlast.bucket.layout import AttemptEnd, AttemptStart
from outlast.bucket.records import read_record
from outlast.bucket.rows import read_rows
from outlast.bucket.store import FolderStore, Store, StoreError


@dataclass(frozen=True)
class Verdict:
    """The outcome of one point."""

    number: int
    point: Point
    hit: bool
    broken: list[str]
    """What does not hold, in words; empty if all does."""
    vms: int = 0
    lost: int = 0
    """Steps that were made and had to be repeated."""
    woken: bool = False
    leftovers: int = 0
    """Objects of a zombie or of a late request, under names that only its attempt has."""
    cpu_sec: float = 0.0
    """Processor time of all that was played, and of this verdict."""

    @property
    def good(self) -> bool:
        return not self.broken


@dataclass
class _Check:
    scene: Scene
    played: Played
    store: Store
    broken: list[str] = field(default_factory=list)
    lost: int = 0
    leftovers: int = 0

    def hold(self, condition: bool, otherwise: str) -> None:
        if not condition:
            self.broken.append(otherwise)

    @property
    def kind(self) -> Kind:
        return self.played.point.blow.kind


def judge(number: int, scene: Scene, played: Played) -> Verdict:
    """The verdict on a point that was played."""
    check = _Check(scene, played, FolderStore(played.place.bucket, reading=True))
    check.broken += played.wrong
    try:
        head = read_head(check.store, LAYOUT).head
        for look in (_ends, _result, _rows, _checkpoints, _history, _attempts, _leftovers, _codes):
            look(check, head)
    except (HeadError, StoreError, OSError, ValueError) as error:
        check.broken.append(f"cannot be read: {error}")
    return Verdict(
        number,
        played.point,
        played.hit,
        check.broken,
        len(played.vms),
        check.lost,
        played.woken,
        check.leftovers,
    )


def _ends(check: _Check, head: Head) -> None:
    check.hold(head.state is State.DONE, f"the run is {head.state}, not done")
    check.hold(head.failures == 0, f"{head.failures} failures are counted")
    data, _ = check.store.get(LAYOUT.end(0))
    check.hold(data == end_copy(LAYOUT, head).to_json(), "END-r0.json is not HEAD's end")


def _result(check: _Check, head: Head) -> None:
    if head.end is None or head.end.result is None:
        check.hold(False, "HEAD names no result")
        return
    found, wanted = result_of(check.store, head), check.scene.truth.result
    other = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    check.hold(not other, f"the result has other bytes: {', '.join(other)}")


def _rows(check: _Check, head: Head) -> None:
    rows, wanted = read_rows(check.store, LAYOUT, head), check.scene.truth.rows
    if rows == wanted:
        return
    if not any("part" in row for row in wanted):
        twice, missing = row_faults([row["step"] for row in rows], len(wanted))
        check.hold(not (twice or missing), f"{twice} rows are there twice, {missing} are missing")
    check.hold(False, "the rows are not the undisturbed ones")


def _checkpoints(check: _Check, head: Head) -> None:
    """Each checkpoint that is kept has the undisturbed bytes; and the same ones are kept, except
    that a notice makes another one, and an upload beside the training may move some."""
    for one in kept(check.store, head):
        wanted = check.scene.truth.states.get(key_of(one))
        check.hold(files_of(check.store, one) == wanted, f"step {one.step} has other bytes")
    found, wanted = comparable(check.store, head), check.scene.truth.head
    if check.kind in (Kind.NOTICE, Kind.NOTICE_CUT) or not check.scene.program.waits:
        found, wanted = ({**one, "chain": None} for one in (found, wanted))
    check.hold(found == wanted, f"HEAD says {found}, undisturbed {wanted}")


def _journal(check: _Check) -> Iterator[dict[str, Any]]:
    for line in check.played.place.journal.read_text().splitlines():
        yield json.loads(line)


def _history(check: _Check, head: Head) -> None:
    """Each HEAD that there was: terms rise, no commit is lost, an end stays; nothing that HEAD
    names is deleted; and a VM whose term is over writes only what is its own."""
    before: dict[str, Any] | None = None
    terms: dict[str, set[int]] = {}
    if check.scene.bucket is not None:
        before = json.loads(read_head(FolderStore(check.scene.bucket), LAYOUT).head.to_json())
    for line in _journal(check):
        vm, path = line["vm"], line["path"].removeprefix(LAYOUT.root)
        if "head" in line:
            now = json.loads(line["head"])
            _follows(check, vm, before, now)
            terms.setdefault(vm, set()).add(now["term"])
            before = now
        elif line["verb"] == "delete" and before is not None:
            named = [entry["path"] for entry in before["chain"]]
            if before["end"] and before["end"].get("result"):
                named.append(before["end"]["result"]["path"])
            harmed = any(line["path"].startswith(folder) for folder in named)
            check.hold(not harmed, f"{vm} deletes {path}, which HEAD names")
        elif before is not None and vm in terms and before["term"] > max(terms[vm]):
            own = [f"{term:06d}" for term in terms[vm]]
            parts = path.split("/")
            mine = parts[0].lstrip("t") in own or (len(parts) > 1 and parts[1].lstrip("t") in own)
            check.hold(mine, f"{vm} of an old term writes {path}")
            check.leftovers += mine and parts[0] not in ("attempts", "metrics")


def _follows(check: _Check, vm: str, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
    if before is None:
        return
    check.hold(now["term"] >= before["term"], f"{vm} writes HEAD of an old term")
    check.hold(before["end"] is None or now == before, f"{vm} changes HEAD after the end")
    newest = [head["chain"][-1]["step"] if head["chain"] else 0 for head in (before, now)]
    check.hold(newest[1] >= newest[0], f"{vm} loses step {newest[0]}, which was committed")


def _attempts(check: _Check, head: Head) -> None:
    """Each attempt resumed from what was committed, and says why it ended."""
    committed = _committed_at_start(check)
    for term, step in committed.items():
        start = read_record(check.store, LAYOUT.attempt_start(term), AttemptStart)
        if start is not None:
            check.hold(start.step == step, f"attempt {term} began at {start.step}, not {step}")
    first = min(committed, default=0)
    later = [step for term, step in committed.items() if term > first]
    if check.kind is not Kind.ZOMBIE and later and check.played.hit:
        # The steps of a part count from its own beginning: of a run with parts no loss is computed.
        in_parts = any("part" in row for row in check.scene.truth.rows)
        check.lost = 0 if in_parts else max(0, check.played.steps - later[0])
    if check.kind is Kind.NOTICE:
        check.hold(check.lost == 0, f"a notice in time lost {check.lost} steps")
        end = read_record(check.store, LAYOUT.attempt_end(first), AttemptEnd)
        known = end is None or end.reason in (Reason.PREEMPTED, Reason.DONE)
        check.hold(known, f"a preemption is recorded as {end and end.reason}")
    if check.kind in FAILING:
        same = len(check.played.vms) == len(committed) == 1
        check.hold(same, f"a failed request took {len(committed)} attempts")


def _committed_at_start(check: _Check) -> dict[int, int]:
    """The newest committed step when each term of this point began."""
    found: dict[int, int] = {}
    for line in _journal(check):
        if "head" in line:
            head = json.loads(line["head"])
            step = head["chain"][-1]["step"] if head["chain"] else 0
            found.setdefault(head["term"], step)
    return found


def _leftovers(check: _Check, head: Head) -> None:
    """Every object is one that HEAD names, or a record, or rows."""
    named = {one.path for one in kept(check.store, head)}
    if head.end is not None and head.end.result is not None:
        named.add(head.end.result.path)
    for found in check.store.list(LAYOUT.root):
        place = LAYOUT.folder_of(found.path)
        path = found.path.removeprefix(LAYOUT.root)
        known = ("HEAD", "END-r0.json") if place is None else ()
        records = path.startswith(("attempts/", "boots/", "metrics/", "records/", "pages/"))
        if (place is not None and place[1] in named) or path in known or records:
            continue
        if check.played.woken and place is not None and check.leftovers:
            continue  # its own, counted in the history
        check.hold(False, f"{path} is left over")


def _codes(check: _Check, head: Head) -> None:
    """The last VM left with 0; a zombie found out that it was fenced, or that the run has ended."""
    codes = [vm.code for vm in check.played.vms]
    zombie = check.kind is Kind.ZOMBIE and check.played.woken
    last = codes[1:] if zombie and len(codes) > 1 else codes
    check.hold(last[-1] in (DONE, None), f"the last VM exits with {last[-1]}")
    if zombie:
        known = (FENCED, DONE, INTERRUPTED)
        check.hold(codes[0] in known, f"the zombie exits with {codes[0]}")
