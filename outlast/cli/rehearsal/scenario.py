"""Loads scenarios, named ones or your own.

The local cloud reads and checks the file (`python -m outlast.localcloud check`) and prints JSON.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.base.exits import Reason
from outlast.base.folders import PACKAGE
from outlast.base.suggest import did_you_mean
from outlast.cli.engine import Parts, scrubbed
from outlast.cli.errors import RehearsalError, UsageError
from outlast.cli.rehearsal.guarantees import GUARANTEES, NEEDS_BASELINE
from outlast.cli.rehearsal.seen import Ending

FOLDER = PACKAGE / "localcloud" / "scenarios"
"""Holds the named scenarios."""
DEFAULT = "storm"
"""The default scenario."""
OF_COMMANDS = "command-storm"
"""The default for a command, which has no total of steps."""
WITHIN_SEC = 300.0
"""Seconds after `up` until a run must have ended."""
CHECK_SEC = 60


@dataclass(frozen=True)
class Scenario:
    """A checked scenario."""

    name: str
    about: str
    stack: Mapping[str, Any]
    """Settings that override the stack's, by full key."""
    end: Ending
    within_sec: float
    guarantees: tuple[str, ...]
    document: Mapping[str, Any]
    """The whole scenario, in the local cloud's form."""

    @property
    def needs_baseline(self) -> bool:
        """Whether a baseline run is needed beside it."""
        return not NEEDS_BASELINE.isdisjoint(self.guarantees)

    def check_moments(self, command: bool) -> None:
        """Raises UsageError if a command runs and an event is planned at a share of all steps."""
        for place, event in enumerate(self.document.get("events") or ()):
            share = event["when"].get("share")
            if command and share is not None:
                raise UsageError(
                    f"scenario {self.name}: events[{place}].when.share {share:g}: never happens,"
                    f" since a command has no total of steps; play {OF_COMMANDS}, or name commits"
                    " instead."
                )

    def moved(self, zone: str, to: str) -> "Scenario":
        """The same scenario, with one zone replaced by another."""
        text = json.dumps(self.document).replace(json.dumps(zone), json.dumps(to))
        return replace(self, document=json.loads(text))


def default_of(settings: Mapping[str, Any]) -> str:
    """The default scenario for a stack with these settings."""
    return OF_COMMANDS if settings.get("outlast:command") else DEFAULT


def find(name: str) -> Path:
    """The file of a named scenario, or the file itself. Raises UsageError if neither exists."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        if not path.is_file():
            raise UsageError(f"scenario {name}: no such file; give the path of a scenario file.")
        return path.resolve()
    named = FOLDER / f"{name}.yaml"
    if not named.is_file():
        hint = did_you_mean(name, names(), "outlast rehearse --list shows them all.")
        raise UsageError(f"scenario {name!r}: does not exist; {hint}")
    return named


def names() -> list[str]:
    """The names of the named scenarios."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def listed() -> list[tuple[str, str]]:
    """Each named scenario with its sentence."""
    import yaml

    return [
        (
            name,
            " ".join(str(yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["about"]).split()),
        )
        for name in names()
    ]


def read(path: Path, parts: Parts) -> Scenario:
    """Checks a scenario file. Raises UsageError that says what is wrong and where."""
    command = [parts.python, "-m", "outlast.localcloud", "check", str(path)]
    done = subprocess.run(
        command,
        cwd=PACKAGE.parent,
        env=scrubbed(),
        capture_output=True,
        text=True,
        timeout=CHECK_SEC,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        said = lines[-1].removeprefix("rehearsal: ")
        kind = UsageError if done.returncode == UsageError.exit_code else RehearsalError
        raise kind(said)
    return of(json.loads(done.stdout))


def of(document: Mapping[str, Any]) -> Scenario:
    """Parses the document that the local cloud printed. Raises UsageError if it asks for an unknown
    guarantee, reason or setting.
    """
    name = document["name"]
    expect = document.get("expect") or {}
    asked = tuple(expect.get("guarantees") or ())
    for place, guarantee in enumerate(asked):
        if guarantee not in GUARANTEES:
            hint = did_you_mean(guarantee, GUARANTEES, f"known are {', '.join(GUARANTEES)}.")
            raise UsageError(
                f"scenario {name}: expect.guarantees[{place}] {guarantee!r}: is not a guarantee; "
                + hint
            )
    stack = document.get("stack") or {}
    _check_settings(name, stack)
    end = expect.get("end") or {}
    reason = end.get("reason")
    if reason is not None and reason not in list(Reason):
        hint = did_you_mean(reason, Reason, f"known are {', '.join(Reason)}.")
        raise UsageError(f"scenario {name}: expect.end.reason {reason!r}: is not a reason; {hint}")
    return Scenario(
        name=name,
        about=" ".join(str(document.get("about") or "").split()),
        stack=stack,
        end=Ending(str(end.get("state", "done")), reason),
        within_sec=float(expect.get("within_sec") or WITHIN_SEC),
        guarantees=asked,
        document=document,
    )


def _check_settings(name: str, stack: Mapping[str, Any]) -> None:
    """Raises UsageError if the scenario sets a key that is not a setting."""
    from outlast.settings import keys

    known = [f"outlast:{key}" for key in keys.declared()]
    for key in stack:
        if key.startswith("outlast:") and key not in known:
            hint = did_you_mean(key, known, "docs/configuration.md has them all.")
            raise UsageError(f"scenario {name}: stack.{key}: is not a setting of Outlast; {hint}")
