"""What a save costs: how long training stands still, until it is durable, memory and requests.

    python -m bench.save_cost --mb 1 100 1000
    python -m bench.save_cost --mb 100 --peers --peer-python …

Every subject is a separate process; they take turns, `--rounds` times, and a figure is the median
over all saves of all rounds, with the least and the most beside it. The targets are ratios within
this run. Exit codes: 0 all targets met, 1 one is not, 69 the bench could not run.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.result import Result, command_line
from bench.sites import BUCKET, ROOT, BenchError, in_memory, local_cloud, scratch
from outlast.base.exits import DONE
from outlast.cli import engine
from outlast.cli.errors import OperateError

FAILED, CANNOT = 1, 69
HERE = Path(__file__).with_name("cost")
TREES, TREES_MB = "xgb_model=", 100
"""The largest model of trees; growing more takes minutes."""
PEERS = (
    "torch.save",
    "safetensors",
    "lightning async",
    "torch dcp async",
    "orbax async",
    "keras backup",
    TREES,
)
PROCESS_SEC = 300.0
BLOCKED_RATIO, BLOCKED_SEC = 1.2, 0.003
TRANSFER_RATIO, TRANSFER_MB = 0.8, 100
LOOP_SHARE = 0.01

Found = dict[str, list[float]]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.save_cost", __doc__)
    made.add_argument("--mb", type=float, nargs="+", default=[1, 100, 1000])
    made.add_argument("--saves", type=int, default=4, help="counted in each process")
    made.add_argument("--rounds", type=int, default=2)
    places = ("folder", "cloud")
    made.add_argument("--where", nargs="+", choices=places, default=list(places))
    made.add_argument("--peers", action="store_true")
    made.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    made.add_argument("--image", type=Path, help="of the VMs; default that of `make setup`")
    made.add_argument("--keep", type=Path, help="folder for what is saved, on the disk to measure")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.save_cost", argv)
    try:
        with scratch(args.keep) as work, contextlib.ExitStack() as stack:
            url = ""
            if "cloud" in args.where:
                url = stack.enter_context(local_cloud(work, work / "plans", args.image)).url
            found, failures = _measure(args, work, url)
            loop = _loop(work)
    except (BenchError, OperateError) as error:
        print(f"save cost: {error}", file=sys.stderr)
        return CANNOT
    for mb in args.mb:
        lines = [_line(name, found[mb, name]) for size, name in found if size == mb]
        result.table(f"A save of {mb:g} MB", lines)
    targets = [*_targets(args, found), _loop_target(loop)]
    result.table("Targets", targets)
    for said in failures:
        result.say(f"not measured: {said}")
    code = DONE if all(line["met"] for line in targets) else FAILED
    figures = [{"mb": mb, "subject": name, **f} for (mb, name), f in found.items()]
    return result.end(args.json, CANNOT if failures else code, figures=figures)


def _measure(
    args: argparse.Namespace, work: Path, url: str
) -> tuple[dict[tuple[float, str], dict[str, list[float]]], list[str]]:
    """Figures by size and subject, and the sentences of subjects that ended before they had any:
    one that fails takes nothing from the others."""
    found: dict[tuple[float, str], dict[str, list[float]]] = {}
    failures = []
    for mb in args.mb:
        for number in range(args.rounds):
            for name, command in _subjects(args, work, url, mb, number):
                try:
                    measures = run_subject(command, {"STORAGE_EMULATOR_HOST": url} if url else {})
                except BenchError as error:
                    failures.append(f"{name}, {mb:g} MB: {error}{_last_words(work / 'saved')}")
                    measures = {}
                into = found.setdefault((mb, name), defaultdict(list))
                for key, value in measures.items():
                    into[key] += value if isinstance(value, list) else [value]
                shutil.rmtree(work / "saved", ignore_errors=True)
    return found, failures


def _last_words(saved: Path) -> str:
    """What the supervisor of a subject that failed said at the end."""
    logs = [log.read_text().strip() for log in saved.glob("*/supervisor.log")]
    return "".join(f"; its supervisor: {log.splitlines()[-1]}" for log in logs if log)


def _subjects(
    args: argparse.Namespace, work: Path, url: str, mb: float, number: int
) -> list[tuple[str, list[str]]]:
    common = ["--mb", str(mb), "--saves", str(args.saves)]
    subjects = []
    for where in args.where:
        run = work / "saved" / where
        store = str(run) if where == "folder" else f"gs://{BUCKET}"
        if where == "cloud":
            _clear(url)
        bare = [sys.executable, "-m", "bench.cost.bare", *common, "--dir", str(run)]
        subjects.append((f"bare, {where}", [*bare, "--store", url if where == "cloud" else store]))
        ours = [sys.executable, "-m", "bench.cost.ours", *common, "--dir", str(run)]
        subjects.append((f"outlast, {where}", [*ours, "--store", store]))
    for name in _peers(args, mb):
        script = [args.peer_python, str(HERE / "peers.py"), *common, "--subject", name]
        subjects.append((name, [*script, "--dir", str(work / "saved" / "peer")]))
    return subjects if number % 2 == 0 else subjects[::-1]


def _peers(args: argparse.Namespace, mb: float) -> Sequence[str]:
    if not args.peers:
        return ()
    return [name for name in PEERS if name != TREES or mb <= TREES_MB]


def _clear(url: str) -> None:
    """The bucket of the runs before; each begins with no HEAD."""
    import requests

    session = requests.Session()
    session.trust_env = False
    answer = session.get(f"{url}/storage/v1/b/{BUCKET}/o").json()
    for item in answer.get("items", []):
        name = quote(item["name"], safe="")
        session.delete(f"{url}/storage/v1/b/{BUCKET}/o/{name}")


def run_subject(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    limit_sec: float = PROCESS_SEC,
) -> dict[str, Any]:
    """What a measured process reported; its scratch files lie in memory, as on a VM."""
    variables = {**engine.scrubbed(), **(environment or {}), "PYTHONPATH": str(ROOT)}
    folder = in_memory("bench-")
    variables["TMPDIR"] = str(folder)
    try:
        done = subprocess.run(
            command,
            env=variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_sec,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{' '.join(command)}: took over {limit_sec:.0f} s") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BenchError(f"{' '.join(command)}: {last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _loop(work: Path) -> Found:
    folder = work / "loop"
    command = [sys.executable, "-m", "bench.cost.ours", "--mb", "1", "--subject", "loop"]
    return run_subject([*command, "--dir", str(folder)], {})


def _line(name: str, figures: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "subject": name,
        "blocked ms": _spread(figures.get("blocked") or figures.get("copy"), 1000),
        "first ms": _spread(figures.get("blocked first"), 1000),
        "complete ms": _spread(figures.get("complete"), 1000),
        "commit ms": _spread(figures.get("commit"), 1000),
        "restore ms": _spread(figures.get("restore"), 1000),
        "memory MB": _spread(figures.get("memory"), 1),
        "beside MB": _spread(figures.get("memory beside"), 1),
        "requests": _spread(figures.get("requests"), 1),
        "objects": _spread(figures.get("objects"), 1),
    }


def _spread(values: Sequence[float] | None, factor: float) -> str | None:
    if not values:
        return None
    low, middle, high = min(values), statistics.median(values), max(values)
    if low == high:
        return f"{middle * factor:.4g}"
    return f"{middle * factor:.3g} ({low * factor:.3g}-{high * factor:.3g})"


def _targets(
    args: argparse.Namespace, found: dict[tuple[float, str], dict[str, list[float]]]
) -> list[dict[str, Any]]:
    lines = []
    for mb in args.mb:
        for where in args.where:
            bare, ours = found[mb, f"bare, {where}"], found[mb, f"outlast, {where}"]
            if not (bare and ours):
                continue
            copy = statistics.median(bare["copy"])
            blocked = statistics.median(ours["blocked"])
            allowed = max(BLOCKED_RATIO * copy, BLOCKED_SEC)
            text = f"{blocked * 1e3:.1f} ms, a copy {copy * 1e3:.1f}, allowed {allowed * 1e3:.1f}"
            lines.append(_target("blocked", mb, where, blocked / copy, text, blocked <= allowed))
            if mb < TRANSFER_MB:
                continue
            for key in ("commit", "restore"):
                plain, own = statistics.median(bare[key]), statistics.median(ours[key])
                if key == "commit":  # the upload begins once training continues
                    own -= blocked
                text = f"{mb / own:.0f} MB/s, bare {mb / plain:.0f} MB/s"
                met = plain / own >= TRANSFER_RATIO
                lines.append(_target(key, mb, where, plain / own, text, met))
        for name in _peers(args, mb):
            peer, ours = found[mb, name], found[mb, "outlast, folder"]
            if not (peer and ours):
                continue
            for key in ("blocked", "commit"):
                own, other = statistics.median(ours[key]), statistics.median(peer[key])
                text = f"{own * 1000:.1f} ms, theirs {other * 1000:.1f} ms"
                lines.append(
                    _target(f"{key}: ahead of {name}", mb, "folder", own / other, text, own < other)
                )
    return lines


def _loop_target(loop: Found) -> dict[str, Any]:
    bare, ours = statistics.median(loop["bare"]), statistics.median(loop["ours"])
    share = (ours - bare) / 0.001
    text = f"{(ours - bare) * 1e6:.1f} us more in a step of 1000 us"
    return _target("loop", None, "folder", share, text, share <= LOOP_SHARE)


def _target(
    name: str, mb: float | None, where: str, ratio: float, text: str, met: bool
) -> dict[str, Any]:
    line = {"target": name, "MB": "" if mb is None else f"{mb:g}", "where": where}
    return {**line, "ratio": f"{ratio:.3g}", "figures": text, "met": met}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
