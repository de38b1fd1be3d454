"""Many points, on several processes: the table, and how to play a single one again."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.forks import points, scenes
from bench.forks.play import play
from bench.forks.points import PHASES, Deck, Point
from bench.forks.probe import Kind
from bench.forks.programs import PROGRAMS
from bench.forks.scenes import Scene, SceneError
from bench.forks.verdict import Verdict, judge
from bench.forks.vm import die_with_parent
from bench.result import Result
from bench.sites import in_memory
from outlast.base.exits import DONE, INTERRUPTED, USAGE
from outlast.base.process_tree import adopt_orphans

FAILED = 1
CANNOT = 69
SAY_SEC = 60.0


def run(
    result: Result,
    *,
    count: int,
    seed: int,
    programs: Sequence[str] = (),
    point: str = "",
    only: int | None = None,
    workers: int = 2,
    keep: Path | None = None,
    json_file: Path | None = None,
) -> int:
    """Plays `count` points of a seed, or one, and adds the table to the result; the exit code.

    Folders of points that do not hold stay in `keep`.
    """
    names = [*(programs or PROGRAMS)]
    if unknown := [name for name in names if name not in PROGRAMS]:
        known = ", ".join(PROGRAMS)
        print(f"trainer {unknown[0]!r}: cannot be forked; known are {known}", file=sys.stderr)
        return USAGE
    if point:
        names = [name for name in names if point.startswith(f"{name}/")] or names
    adopt_orphans()  # a trainer whose supervisor is dead is waited for here
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(INTERRUPTED))
    work = in_memory("outlast-kills-")
    try:
        begun = time.monotonic()
        made = scenes.make(names, work / "scenes")
        if point:
            chosen = [(0, points.parse(point, made))]
        else:
            deck = Deck(made)
            numbers = range(count) if only is None else [only]
            chosen = [(number, deck.draw(seed, number)) for number in numbers]
        prepared_sec = time.monotonic() - begun
        begun = time.monotonic()
        found, stopped = list[Verdict](), False
        try:
            for verdict in _play_all(made, chosen, work, min(workers, len(chosen)), keep):
                found.append(verdict)
        except (KeyboardInterrupt, SystemExit):
            stopped = True  # what was played until now is shown
        took_sec = time.monotonic() - begun
    except (SceneError, ValueError) as error:
        print(f"kill matrix: {error}", file=sys.stderr)
        return CANNOT if isinstance(error, SceneError) else USAGE
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if found:
        _show(result, found, seed, prepared_sec, took_sec)
    for verdict in found:
        if not verdict.good:
            what = "; ".join(verdict.broken)
            result.say(f"point {verdict.number} of seed {seed} ({verdict.point.phase}): {what}")
            result.say(f"  again: {verdict.point.command}")
    code = DONE if any(verdict.hit for verdict in found) else CANNOT
    if len(found) < len(chosen):
        result.say(f"Only {len(found)} of {len(chosen)} points were played.")
        code = INTERRUPTED if stopped else CANNOT
    if any(not verdict.good for verdict in found):
        code = FAILED
    return result.end(json_file, code, verdicts=[asdict(verdict) for verdict in found])


# ---------------------------------------------------------------------------------------------
# Workers


def _play_all(
    made: Mapping[str, Scene],
    chosen: Sequence[tuple[int, Point]],
    work: Path,
    workers: int,
    keep: Path | None,
) -> Iterator[Verdict]:
    gc.collect()
    gc.freeze()  # so that the forks share this process's memory
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for worker in range(workers):
        ours, theirs = context.Pipe(duplex=False)
        share = chosen[worker::workers]
        process = context.Process(
            target=_work, args=(made, share, work / f"worker{worker}", theirs, keep), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield from _said(_received(pipes), len(chosen))
    finally:
        for process in processes:
            process.kill()  # it has ended, or this process was asked to stop
            process.join()


def _work(
    made: Mapping[str, Scene],
    share: Iterable[tuple[int, Point]],
    work: Path,
    answers: Any,
    keep: Path | None,
) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    for number, point in share:
        folder = work / f"{number:05d}"
        scene, begun_sec = made[point.scene], _cpu_sec()
        verdict = judge(number, scene, play(scene, point, folder))
        verdict = replace(verdict, cpu_sec=_cpu_sec() - begun_sec)
        if keep is not None and not verdict.good:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, keep / folder.name, symlinks=True, ignore=_no_sockets)
        shutil.rmtree(folder)
        answers.send(verdict)
    answers.close()


def _cpu_sec() -> float:
    """Processor time so far of this process and of all that it has waited for."""
    mine, others = (
        resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "socket"]


def _received(pipes: list[Any]) -> Iterator[Verdict]:
    """Verdicts as they come, until each worker has ended."""
    while pipes:
        ready: list[Any] = multiprocessing.connection.wait(pipes)
        for pipe in ready:
            try:
                yield pipe.recv()
            except EOFError:
                pipes.remove(pipe)


def _said(verdicts: Iterator[Verdict], count: int) -> Iterator[Verdict]:
    begun = said = time.monotonic()
    for number, verdict in enumerate(verdicts, 1):
        if not verdict.good:
            print(f"point {verdict.number}: {verdict.broken}", file=sys.stderr)
        if time.monotonic() - said > SAY_SEC:
            said = time.monotonic()
            rate = number / (said - begun)
            print(f"{number} of {count} points, {rate:.1f} a second", file=sys.stderr)
        yield verdict


# ---------------------------------------------------------------------------------------------
# The table


def _show(
    result: Result, found: Sequence[Verdict], seed: int, prepared_sec: float, took_sec: float
) -> None:
    found = sorted(found, key=lambda verdict: verdict.number)
    cells: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in found:
        cells[verdict.point.phase, verdict.point.blow.kind].append(verdict)
    kinds = [kind for kind in Kind if any(key[1] == kind for key in cells)]
    rows = []
    for phase in [phase for phase in PHASES if any(key[0] == phase for key in cells)]:
        row = {kind.value: _cell(cells.get((phase, kind), [])) for kind in kinds}
        rows.append({"phase": phase, **row, "all": sum(len(cells[phase, kind]) for kind in kinds)})
    sums = {kind.value: sum(len(cells[phase, kind]) for phase in PHASES) for kind in kinds}
    rows.append({"phase": "all", **sums, "all": len(found)})
    result.table(f"Kills, seed {seed}", rows)
    hit = [verdict for verdict in found if verdict.hit]
    bad = sum(not verdict.good for verdict in found)
    rate = len(found) / took_sec if took_sec else 0.0
    result.say(
        f"{len(found)} points in {took_sec:.0f} s, {rate:.2f} a second, after {prepared_sec:.0f} s "
        f"of undisturbed runs; {len(hit)} were hit, {bad} do not hold"
    )
    cpu_sec = sum(verdict.cpu_sec for verdict in found) / len(found)
    load = os.getloadavg()[0]
    result.say(
        f"processor time of a point {cpu_sec:.2f} s; the machine's load at the end {load:.1f}"
    )
    woken = Counter(verdict.point.blow.kind for verdict in found if verdict.woken)
    result.say(
        f"VMs {sum(verdict.vms for verdict in found)}; zombies woken {woken[Kind.ZOMBIE]}, late "
        f"requests {woken[Kind.KILL_LATE]}; most steps repeated "
        f"{max((verdict.lost for verdict in found), default=0)}; objects that woken VMs left under "
        f"their own names {sum(verdict.leftovers for verdict in found)}"
    )


def _cell(found: Sequence[Verdict]) -> int | str | None:
    """The number of points that were hit; with those that do not hold, if any."""
    if not found:
        return None
    bad = sum(not verdict.good for verdict in found)
    return f"{len(found)} ({bad} bad)" if bad else len(found)
