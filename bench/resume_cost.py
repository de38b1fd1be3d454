"""What a resume costs beside its restore, and how much memory a training with checkpoints takes.

    python -m bench.resume_cost --mb 1000 --torch-python .venv-bench/bin/python

**Verification**: each subject is a process that saves a state, and then resumes from its files
three times. Target: at most 0.3 times the restore (from the store into the arrays) for up to
1,000 arrays, 2 times for 100,000 small ones.

**Peak memory**: of the trainer's process and of its snapshots, which lie in memory as on a VM,
above the peak of the same training without checkpoints; target: at most 1.1 times the state. Exit
codes: 0 all targets met, 1 one is not, 69 the bench could not run.
"""

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.result import Result, command_line
from bench.save_cost import CANNOT, FAILED, run_subject
from bench.sites import ROOT, BenchError, in_memory, scratch
from outlast.base.exits import DONE
from outlast.cli import engine

SMALL, SMALL_MB = 100_000, 10.0
SHARE, SHARE_SMALL, STATES = 0.3, 2.0, 1.1
STEPS, STEPS_RESUMED = 3, 5
PROCESS_SEC = 600.0
HERE = Path(__file__).with_name("cost")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.resume_cost", __doc__)
    made.add_argument("--mb", type=float, default=1000, help="of the state of large arrays")
    made.add_argument("--peak-mb", type=float, default=500)
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--torch-python", default="", help="interpreter that has torch; else none")
    made.add_argument("--keep", type=Path, help="folder for what is saved")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.resume_cost", argv)
    try:
        with scratch(args.keep) as work:
            resumes = _resumes(args, work)
            peaks = [
                line
                for subject in ("numpy", *(["torch"] if args.torch_python else []))
                for line in _peaks(args, work, subject)
            ]
    except BenchError as error:
        print(f"resume cost: {error}", file=sys.stderr)
        return CANNOT
    result.table("A resume", resumes)
    result.table(f"\nPeak of memory, {args.peak_mb:g} MB of state", peaks)
    met = all(line["met"] for line in [*resumes, *peaks])
    return result.end(args.json, DONE if met else FAILED)


def _resumes(args: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    lines = []
    for count, mb, target in (
        (10, args.mb, SHARE),
        (1000, args.mb, SHARE),
        (SMALL, SMALL_MB, SHARE_SMALL),
    ):
        found: dict[str, list[float]] = {"fetch": [], "load": [], "check": []}
        for number in range(args.rounds):
            folder = work / f"resume-{count}-{number}"
            command = [sys.executable, "-m", "bench.cost.resume", "--mb", str(mb)]
            command += ["--subject", str(count), "--dir", str(folder), "--store", str(folder)]
            for key, values in run_subject(command, limit_sec=PROCESS_SEC).items():
                found[key] += values
            shutil.rmtree(folder, ignore_errors=True)
        fetch, load, check = (statistics.median(found[key]) for key in found)
        lines.append(
            {
                "arrays": count,
                "MB": f"{mb:g}",
                "files ms": f"{fetch * 1e3:.0f}",
                "state ms": f"{load * 1e3:.0f}",
                "verification ms": f"{check * 1e3:.0f}",
                "ratio": f"{check / (fetch + load):.2f}",
                "target": target,
                "met": check <= target * (fetch + load),
            }
        )
    return lines


def _peaks(args: argparse.Namespace, work: Path, subject: str) -> list[dict[str, Any]]:
    python = args.torch_python if subject == "torch" else sys.executable
    folder = work / f"peak-{subject}"
    bare = _peak([python, subject, str(args.peak_mb), "-", str(STEPS)], expected=0)
    lines = []
    for label, steps in (("from the start", STEPS), ("resumed", STEPS_RESUMED)):
        peak = _peak([python, subject, str(args.peak_mb), str(folder), str(steps)], expected=9)
        share = (peak - bare) / args.peak_mb
        lines.append(
            {
                "training": f"{subject}, {label}",
                "bare MB": f"{bare:.0f}",
                "with checkpoints MB": f"{peak:.0f}",
                "more, in states": f"{share:.2f}",
                "target": STATES,
                "met": share <= STATES,
            }
        )
    return lines


def _peak(words: Sequence[str], *, expected: int) -> float:
    """MB of one training at its peak, its snapshots in memory among them."""
    python, *rest = words
    folder = in_memory("bench-peak-")
    variables = {**engine.scrubbed(), "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [python, str(HERE / "peak.py"), *rest]
    peak = 0.0
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, env=variables, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + PROCESS_SEC
        try:
            while process.poll() is None and time.monotonic() < deadline:
                peak = max(peak, _anonymous_mb(process.pid) + _files_mb(folder))
                time.sleep(0.003)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
    deadline = time.monotonic() + 30
    while any(folder.glob("*/*")) and time.monotonic() < deadline:  # its supervisor ends by itself
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
    if process.returncode != expected:
        raise BenchError(f"{' '.join(command)}: {last}")
    return peak


def _anonymous_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _files_mb(folder: Path) -> float:
    """What the files below a folder take, each once."""
    blocks: dict[int, int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found = path.stat()
            if path.is_file():
                blocks[found.st_ino] = found.st_blocks * 512
    return sum(blocks.values()) / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
