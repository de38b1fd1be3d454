"""Kills runs at seeded moments and looks at what the resumed ones came to.

    python -m bench.kill_matrix --trainer digits --points 300 --seed 1
    python -m bench.kill_matrix --trainer torch_cnn --python /opt/frameworks/bin/python --points 60
    python -m bench.kill_matrix --trainer digits --points 60 --peers --python …
    python -m bench.kill_matrix --forks --points 10000

An undisturbed run comes first: its result, its rows and how long its phases took are the measure.
Each point is then one run that is hit once (SIGKILL, SIGTERM, a notice) at a moment drawn from
the seed, and started again. With `--forks` no run starts an interpreter: attempts are forks, and
what happens to them happens at exact operations (bench/forks). Exit codes: 0 all hold, 1 something
does not, 64 bad usage, 69 the bench could not run.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import census_rows, peers
from bench.points import Verdict, as_json, draw, kinds, summary
from bench.result import Result, command_line
from bench.sites import Baseline, BenchError, CloudSite, FolderSite, Job, Site, local_cloud, scratch
from outlast import trainers
from outlast.base.exits import DONE, USAGE
from outlast.cli.errors import OperateError

PARALLEL = 2
FAILED = 1
CANNOT = 69
REDRAWS = 3
"""How often a fault that came after the run's end is drawn again."""
CLOUD_SHARE = 5
"""With `--where both` every so many-th point is on VMs, which take several times as long."""

FLAGS: dict[str, tuple[str, ...]] = {
    "dummy": ("--epochs=32", "--eval-every=4"),
    "digits": ("--limit-rows=900", "--epochs=96", "--eval-every=12", "--hidden=256,128"),
    "census": ("--epochs=200", "--eval-every=40", "--cv-iterations=4", "--threads=1"),
    "torch_cnn": ("--limit-rows=900", "--epochs=16", "--eval-every=2", "--threads=1"),
    "keras_mlp": ("--limit-rows=900", "--epochs=36", "--eval-every=4", "--threads=1"),
    "jax_mlp": ("--limit-rows=900", "--epochs=48", "--eval-every=8", "--threads=1"),
}
"""What cuts a trainer's run to about 4 s of training."""
EVERY = {"dummy": "80", "digits": "120", "census": "4", "torch_cnn": "40"}
EVERY |= {"keras_mlp": "80", "jax_mlp": "100"}
"""Steps between two checkpoints of it."""
FORKED = ("dummy", "digits", "parts", "overlapping")
"""What `--forks` trains, from bench/forks/programs.py."""
CENSUS_ROWS = 1200
DATA_FLAGS = ("--data", "--census-data-path")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.kill_matrix", __doc__)
    made.add_argument("--trainer", action="append", default=[], help="repeatable")
    made.add_argument("--points", type=int, default=30, help="blows for each trainer")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--only", type=int, help="this point alone, to look at it again")
    made.add_argument(
        "--forks",
        action="store_true",
        help=f"attempts are forks of one process; --trainer is one of {', '.join(FORKED)}, or all",
    )
    made.add_argument("--point", default="", help="with --forks: one point, as its matrix names it")
    made.add_argument("--where", choices=("folder", "cloud", "both"), default="both")
    made.add_argument(
        "--python", type=_program, default=sys.executable, help="interpreter of the trainer"
    )
    made.add_argument(
        "--image",
        type=Path,
        help="of the VMs; default: made of --python's environment, or that of `make setup`",
    )
    made.add_argument("--flags", default="", help="flags of the trainer, instead of the bench's")
    made.add_argument("--checkpoint-every", default="", help="instead of the bench's")
    made.add_argument("--peers", action="store_true", help="the peers' jobs too, in this run")
    made.add_argument("--peer", action="append", default=[], choices=list(peers.JOBS))
    made.add_argument("--peer-points", type=int, default=30)
    made.add_argument(
        "--peer-python", type=_program, default=sys.executable, help="interpreter of the peers"
    )
    made.add_argument("--parallel", type=int, default=PARALLEL)
    made.add_argument("--keep", type=Path, help="folder for the runs that failed, and all logs")
    return made


def _program(text: str) -> str:
    """A program as seen from any folder; a bare name is looked up in PATH, as a shell does."""
    return os.path.abspath(text) if os.sep in text else text


def main(argv: Sequence[str]) -> int:
    """Measure as the flags say."""
    args, result = parser().parse_args(argv), Result("bench.kill_matrix", argv)
    if args.forks or args.point:
        return _forks(args, result)
    unknown = [name for name in args.trainer if name not in trainers.names()]
    if unknown:
        known = ", ".join(trainers.names())
        print(f"trainer {unknown[0]!r}: unknown; known are {known}", file=sys.stderr)
        return USAGE
    verdicts: dict[str, list[Verdict]] = {}
    measures = [(name, _trainer) for name in args.trainer]
    measures += [(name, _peer) for name in args.peer or (peers.JOBS if args.peers else ())]
    missing = False
    with scratch(args.keep) as work:
        for name, measure in measures:
            try:
                verdicts[name] = measure(args, name, work / name)
            except (BenchError, OperateError) as error:  # of the others the figures are kept
                print(f"kill matrix: {name}: {error}", file=sys.stderr)
                missing = True
    lines = [line for name, found in verdicts.items() for line in summary(name, found)]
    result.table(f"Kill matrix, seed {args.seed}", lines)
    ours = [v for name in args.trainer for v in verdicts.get(name, ()) if v.hit]
    bad = [verdict for verdict in ours if not verdict.good]
    for verdict in bad:
        result.say(f"point {verdict.point.number}: {verdict.why or 'differs'}: {verdict}")
    every = {name: [as_json(verdict) for verdict in found] for name, found in verdicts.items()}
    in_part = missing or (args.trainer and not ours)
    code = FAILED if bad else CANNOT if in_part else DONE
    return result.end(args.json, code, verdicts=every)


def _forks(args: argparse.Namespace, result: Result) -> int:
    from bench.forks import matrix  # it imports all that a run does

    return matrix.run(
        result,
        count=args.points,
        seed=args.seed,
        programs=args.trainer,
        point=args.point,
        only=args.only,
        workers=args.parallel,
        keep=args.keep,
        json_file=args.json,
    )


def _trainer(args: argparse.Namespace, name: str, work: Path) -> list[Verdict]:
    flags = tuple(args.flags.split()) or FLAGS.get(name, ())
    every = args.checkpoint_every or EVERY.get(name, "auto")
    if name == "census" and not any(flag.startswith(DATA_FLAGS) for flag in flags):
        rows = census_rows.write(work / "adult.data", CENSUS_ROWS)
        flags = (*flags, f"--data={rows.resolve()}")
    job = Job(name, flags, every, args.python)
    with contextlib.ExitStack() as stack:
        sites: dict[str, Site] = {}
        if args.where in ("folder", "both"):
            sites["folder"] = FolderSite(job, work)
        if args.where in ("cloud", "both"):
            plans = work / "plans"
            image = args.image or _image_with(args.python, work / "image")
            cloud = stack.enter_context(local_cloud(work, plans, image))
            sites["cloud"] = CloudSite(job, cloud, plans)
        return _inject_all(args, name, args.points, sites, kinds)


def _image_with(python: str, image: Path) -> Path | None:
    """A VM's image whose environment is that of the interpreter; None: that of `make setup`."""
    environment = Path(python).absolute().parent.parent
    if python == sys.executable or not (environment / "pyvenv.cfg").exists():
        return None
    (image / "opt/outlast").mkdir(parents=True, exist_ok=True)
    link = image / "opt/outlast/venv"
    link.unlink(missing_ok=True)
    link.symlink_to(environment, target_is_directory=True)
    return image


def _peer(args: argparse.Namespace, name: str, work: Path) -> list[Verdict]:
    site = peers.PeerSite(name, args.peer_python, work)
    return _inject_all(args, name, args.peer_points, {"folder": site}, peers.kinds)


def _inject_all(
    args: argparse.Namespace,
    name: str,
    points: int,
    sites: dict[str, Site],
    kinds_of: Callable[[str], Sequence[tuple[str, str]]],
) -> list[Verdict]:
    begun = time.monotonic()
    baselines = {where: site.baseline() for where, site in sites.items()}
    _say_baseline(name, baselines)
    both = len(sites) > 1
    places = ["cloud" if both and n % CLOUD_SHARE == CLOUD_SHARE - 1 else "" for n in range(points)]
    numbers = range(points) if args.only is None else [args.only]
    first = next(iter(sites))

    def inject(number: int) -> Verdict:
        where = places[number] if number < len(places) and places[number] else first
        verdict: Verdict | None = None
        index = _index_there(places, number, where) if both else number
        for redraw in range(REDRAWS):
            seed = args.seed + 1_000_003 * redraw
            point = draw(seed, index, where, baselines[where].phases, kinds_of(where))
            # Each try has its own number, which names the run's folder.
            point = replace(point, number=number + 100_000 * redraw)
            verdict = sites[where].inject(point, baselines[where])
            if verdict.hit:
                break
        assert verdict is not None
        if verdict.hit and not verdict.good and name not in peers.JOBS:
            print(f"{name} point {number}: {json.dumps(as_json(verdict))}", file=sys.stderr)
        return verdict

    with ThreadPoolExecutor(args.parallel) as pool:
        found = list(pool.map(inject, numbers))
    took = time.monotonic() - begun
    print(f"{name}: {len(found)} points in {took:.0f} s", file=sys.stderr)
    return found


def _index_there(places: Sequence[str], number: int, where: str) -> int:
    """How many points before this one are in its place, so that its phases take turns there."""
    mine = where if where == "cloud" else ""
    return sum(1 for place in places[:number] if place == mine)


def _say_baseline(name: str, baselines: dict[str, Baseline]) -> None:
    for where, baseline in baselines.items():
        phases: dict[str, Any] = {
            phase: f"{len(times)} x {sum(times) / len(times):.3f} s"
            for phase, times in baseline.phases.seconds.items()
        }
        in_words = ", ".join(f"{phase} {text}" for phase, text in phases.items())
        steps = f"{baseline.seconds:.1f} s, {baseline.phases.steps} steps"
        print(f"{name} undisturbed in {where}: {steps}; {in_words}", file=sys.stderr)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
