"""How soon a VM trains: from a baked image, and from a stock one that installs everything first.

    python -m bench.image_boot
    python -m bench.image_boot --rounds 5

A recipe with the trainers in it is baked once, as `pulumi up` does it. Then a VM of that image and
one of a stock image take turns, in a group of one each. The stock VM makes its environment from
`requirements/vm.txt` and the package index that pip finds here (PIP_* reaches the VMs), as a new
VM does: with nothing in its cache. A figure is the time from the VM's boot, as the platform tells
it, to the first moment of the trainer's process; the median of the rounds counts.
Exit codes: 0 the target is met, 1 it is not, 64 bad usage, 69 the bench could not run.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from bench.result import Result, command_line
from bench.sites import (
    ACCOUNT,
    BUCKET,
    DISK_GB,
    POLL_SEC,
    ROOT,
    ZONE,
    BenchError,
    CloudSite,
    Job,
    local_cloud,
    make_plan,
    scratch,
)
from outlast.base.exits import DONE, USAGE
from outlast.bucket.layout import Layout
from outlast.cli.cloud import PROJECT, LocalCloud
from outlast.cli.errors import OperateError
from outlast.cloud import bake, builder, recipe
from outlast.cloud.compute import ComputeError
from outlast.cloud.credentials import TOKEN_VARIABLE

FAILED, CANNOT = 1, 69
LEAST = 5.0
"""Times the baked image's figure that the stock one's must be."""
START_SEC = 900.0
FAMILY = "bench-boot"
STOCK = "projects/debian-cloud/global/images/family/debian-13"
JOB = Job("dummy", (), "auto")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.image_boot", __doc__)
    made.add_argument(
        "--rounds", type=int, default=3, help="how often each is measured (%(default)s)"
    )
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep the cloud and its VMs' logs")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    args, result = parser().parse_args(argv), Result("bench.image_boot", argv)
    if args.rounds < 1:
        print(f"image boot: --rounds {args.rounds}: must be 1 or more", file=sys.stderr)
        return USAGE
    try:
        with scratch(args.keep) as work:
            seconds = measure(work, args.rounds)
    except (BenchError, OperateError, bake.BakeError, ComputeError, recipe.RecipeError) as error:
        print(f"image boot: {error}", file=sys.stderr)
        return CANNOT
    lines = [
        {
            "VM from": what,
            "rounds": len(found),
            "boot to trainer s": round(statistics.median(found), 2),
            "least": round(min(found), 2),
            "most": round(max(found), 2),
        }
        for what, found in seconds.items()
    ]
    ratio = statistics.median(seconds["stock image"]) / statistics.median(seconds["baked image"])
    result.table("Boot to trainer", lines)
    result.say(f"stock over baked: {ratio:.1f} times; at least {LEAST:g}: {_word(ratio >= LEAST)}")
    return result.end(args.json, DONE if ratio >= LEAST else FAILED, lines=lines, times=ratio)


def measure(work: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by what the VM was made from."""
    nothing = work / "image"
    nothing.mkdir()
    pip = {key: text for key, text in os.environ.items() if key.startswith("PIP_")}
    pip.pop("PIP_CACHE_DIR", None)  # each VM has its own, and it is empty
    plans = work / "plans"
    found: dict[str, list[float]] = {"baked image": [], "stock image": []}
    with local_cloud(work, plans, nothing, pip) as cloud:
        site = CloudSite(JOB, cloud, plans)
        baked = baked_image(cloud, site.bundle)
        for number in range(rounds):
            _say(f"round {number + 1} of {rounds}")
            for what, image, more in (
                ("baked image", baked, {"outlast-delivery": "image"}),
                ("stock image", STOCK, {}),
            ):
                layout = Layout("experiments/boot", f"{what.split()[0]}-{number}")
                plan = make_plan(plans / site.group(layout), None)
                site.raise_group(layout, image=image, more=more)
                found[what].append(boot_to_trainer(cloud, site.group(layout), plan))
                site.drop_group(layout)
                _wait(lambda: not cloud.vms(), "the VM does not go")
    return found


def baked_image(cloud: LocalCloud, bundle: tuple[str, str]) -> str:
    """The image of a recipe that has the trainers in it."""
    os.environ[TOKEN_VARIABLE] = "local"
    name, sha256 = bundle
    checked = recipe.check(
        {"family": FAMILY, "trainers": True, "diskGb": DISK_GB},
        base=STOCK,
        project=PROJECT,
        zone=ZONE,
    )
    order = builder.Order(
        {"managed-by": "outlast", "project": "bench", "stack": "boot"},
        service_account=ACCOUNT,
        bundle=f"gs://{BUCKET}/{name}",
        bundle_sha256=sha256,
        endpoint=f"{cloud.url}/compute/beta/",
    )
    link = bake.bake(recipe.read(checked, ROOT, bundle_sha256=sha256), order)
    return link.partition("/v1/")[2]


def boot_to_trainer(cloud: LocalCloud, group: str, plan: Path) -> float:
    """Seconds from the boot of the group's first VM to its trainer's process."""
    begun: dict[str, str] = {}
    trainer = plan / "pids" / "trainer"

    def started() -> bool:
        for vm in cloud.vms():
            if vm["group"] == group and vm["started"]:
                begun.setdefault(vm["id"], vm["started"])
        if len(begun) > 1:
            raise BenchError(
                f"{group}: its first VM ended before it trained; see what it said with --keep DIR"
            )
        return trainer.exists() and bool(begun)

    _wait(started, f"{group}: no trainer")
    (boot,) = begun.values()
    return trainer.stat().st_mtime - datetime.fromisoformat(boot).timestamp()


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SEC
    while not done():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} within {START_SEC:g} s")
        time.sleep(POLL_SEC)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _word(met: bool) -> str:
    return "yes" if met else "no"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
