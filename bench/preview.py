"""What a preview and an `up` cost, beside the least that the engine needs for as much.

    python -m bench.preview --rounds 10

**preview**: of this checkout's stack with nothing to change, over that of a program that imports
the same modules and declares nothing. **up**: of a new experiment, over that of a program with as
many plain resources and components. Both against one local cloud whose VMs have no processes; the
two take turns, so that what else the machine does falls on both. **cpu**: processor time of the
command and all that it started, the provider's apart. Exit codes: 0 both targets met, 1 one is not,
69 the bench could not run.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.result import Result, command_line
from bench.sites import scratch
from outlast.base.exits import DONE
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import EngineError, OperateError

FAILED, CANNOT = 1, 69
MOST_PREVIEW, MOST_UP = 1.4, 2.0
PYTHON = str(Path(sys.prefix))
IMPORTS = """
    import pulumi
    from pulumi_gcp import compute, projects, serviceaccount, storage

    compute.InstanceTemplate, projects.IAMMember, serviceaccount.Account, storage.Bucket
"""
PLAIN = """
    class Component(pulumi.ComponentResource):
        def __init__(self, name):
            super().__init__("bench:index:Component", name, {})
            self.register_outputs({})

    config = pulumi.Config()
    for number in range(config.require_int("components")):
        Component(f"component-{number}")
    for number in range(config.require_int("resources")):
        serviceaccount.Account(f"account-{number}", account_id=f"{pulumi.get_stack()}-{number}")
"""


@dataclass
class Project:
    """A folder with a program, and the engine's command line in it."""

    folder: Path
    env: Mapping[str, str]

    def pulumi(self, *args: str) -> str:
        return engine.run_engine(list(args), env=self.env, cwd=self.folder)

    def timed(self, *args: str) -> tuple[float, float]:
        """Wall and processor seconds of a command."""
        before, begun = _cpu(), time.perf_counter()
        self.pulumi(*args)
        return time.perf_counter() - begun, _cpu() - before


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.preview", __doc__)
    made.add_argument("--rounds", type=int, default=10, help="previews of each")
    made.add_argument("--ups", type=int, default=5, help="ups of each, every one of a new stack")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure as the flags say."""
    args, result = parser().parse_args(argv), Result("bench.preview", argv)
    try:
        with scratch(None) as work:
            rows = _measure(work, args.rounds, args.ups)
    except (OperateError, subprocess.SubprocessError) as error:
        print(f"preview: {error}", file=sys.stderr)
        return CANNOT
    result.table("Preview and up", rows)
    met = all(row["ratio"] <= row["target"] for row in rows)
    result.say(f"targets met: {'yes' if met else 'no'}")
    return result.end(args.json, DONE if met else FAILED)


def _measure(work: Path, rounds: int, ups: int) -> list[dict[str, Any]]:
    parts = engine.find_parts()
    cloud = clouds.start(work / "cloud", parts, guests=False, dies_with_us=True)
    try:
        path = os.environ.get("PATH", os.defpath)
        env = {**engine.scrubbed(), **cloud.variables(parts, work / "pulumi", path)}
        ours = _ours(work / "ours", env)
        empty = _plain(work / "empty", env, IMPORTS)
        floor = _plain(work / "floor", env, IMPORTS + PLAIN)
        for project in (ours, empty):
            project.pulumi("stack", "init", "dev")
            project.pulumi("up", "--yes", "--skip-preview", "-s", "dev")
        unchanged = ("preview", "-s", "dev", "--expect-no-changes")
        rows = [
            _row(
                "preview",
                MOST_PREVIEW,
                _in_turns(
                    rounds, lambda _: ours.timed(*unchanged), lambda _: empty.timed(*unchanged)
                ),
            )
        ]
        resources, components = _counts(ours)

        def up_ours(number: int) -> tuple[float, float]:
            stack = f"e{number}"
            shutil.copy2(ours.folder / "Pulumi.dev.yaml", ours.folder / f"Pulumi.{stack}.yaml")
            ours.pulumi("stack", "init", stack)
            ours.pulumi("config", "set", "-s", stack, "outlast:experiment", stack)
            return ours.timed("up", "--yes", "--skip-preview", "-s", stack)

        def up_floor(number: int) -> tuple[float, float]:
            stack = f"f{number}-plain"
            floor.pulumi("stack", "init", stack)
            floor.pulumi("config", "set", "-s", stack, "components", str(components))
            floor.pulumi("config", "set", "-s", stack, "resources", str(resources))
            return floor.timed("up", "--yes", "--skip-preview", "-s", stack)

        what = f"up of {resources} resources, {components} components"
        return [*rows, _row(what, MOST_UP, _in_turns(ups, up_ours, up_floor))]
    finally:
        cloud.stop()


Timed = Callable[[int], tuple[float, float]]


def _in_turns(rounds: int, first: Timed, second: Timed) -> list[tuple[float, float, float, float]]:
    """Wall and processor seconds of both, round by round; each begins every other one."""
    figures = []
    for number in range(rounds):
        if number % 2:
            other = second(number)
            figures.append((*first(number), *other))
        else:
            figures.append((*first(number), *second(number)))
    return figures


def _row(
    what: str, target: float, figures: Sequence[tuple[float, float, float, float]]
) -> dict[str, Any]:
    wall, cpu, floor_wall, floor_cpu = (
        statistics.median(column) for column in zip(*figures, strict=True)
    )
    ratios = [one[0] / one[2] for one in figures]
    return {
        "what": what,
        "rounds": len(figures),
        "ours s": round(wall, 2),
        "floor s": round(floor_wall, 2),
        "ratio": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        "ours cpu s": round(cpu, 2),
        "floor cpu s": round(floor_cpu, 2),
        "target": target,
    }


def _ours(folder: Path, env: Mapping[str, str]) -> Project:
    import yaml

    folder.mkdir(parents=True)
    definition = yaml.safe_load((engine.project() / "Pulumi.yaml").read_text())
    definition["main"] = "checkout"
    definition["runtime"]["options"]["virtualenv"] = PYTHON
    (folder / "checkout").symlink_to(engine.project(), target_is_directory=True)
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition, sort_keys=False))
    shutil.copy2(engine.project() / "Pulumi.dev.yaml", folder / "Pulumi.dev.yaml")
    return Project(folder, env)


def _plain(folder: Path, env: Mapping[str, str], program: str) -> Project:
    import yaml

    folder.mkdir(parents=True)
    definition = {
        "name": folder.name,
        "runtime": {"name": "python", "options": {"virtualenv": PYTHON}},
        "config": {"gcp:project": clouds.PROJECT, "gcp:zone": "europe-west4-a"},
    }
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    (folder / "__main__.py").write_text(textwrap.dedent(program))
    return Project(folder, env)


def _counts(ours: Project) -> tuple[int, int]:
    """Resources and components of the stack, the providers and the stack itself apart."""
    state = json.loads(ours.pulumi("stack", "export", "-s", "dev"))["deployment"]["resources"]
    made = [one for one in state if not one["type"].startswith("pulumi:")]
    if not made:
        raise EngineError("stack dev: has no resources after its up")
    custom = sum(bool(one.get("custom")) for one in made)
    return custom, len(made) - custom


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
