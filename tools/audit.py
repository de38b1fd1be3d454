"""Looks up each locked package in a database of known vulnerabilities: `make audit`.

    .venv/bin/python tools/audit.py      needs .venv-audit, which `make audit` makes

It runs pip-audit, which asks the database of OSV (https://osv.dev). Ends with

    0    each package was looked up, and nothing is known against it
    1    something is known; it is printed
    3    not audited: the database or pip-audit did not answer as it should

Whatever is not an answer about every package counts as *not audited*. So does a database that
knows nothing against a package that is known to be vulnerable, for an empty answer of a proxy
would look the same. `make` itself ends with 2 after each of 1 and 3, and prints the code.

Audits what requirements/*.txt and bench/requirements.txt lock, on all systems and Pythons. Not
audited: the engine (tools/engine, Go) and Google's provider plugin.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench/requirements.txt"
CLEAN, VULNERABLE, NOT_AUDITED = 0, 1, 3
DATABASE = "https://api.osv.dev/v1/query"
"""pip-audit also knows the package index's own list, but an index's mirror may leave that out."""
KNOWN_AS_VULNERABLE = ("jinja2", "2.4.1")
"""The example of OSV's documentation (https://google.github.io/osv.dev/post-v1-query/,
2026-11-30)."""
DOUBTS = ("ERROR", "WARNING:pip_audit._service")
"""How lines of pip-audit begin that make an answer worthless: it warns of entries of the database
that it cannot read, and leaves them out."""
LIMIT_SEC = 1800

Pins = dict[tuple[str, str], list[str]]
"""(name, version) to the files that lock it."""


class NotAudited(Exception):
    """One sentence: what did not answer, and what to do."""


@dataclass(frozen=True)
class Finding:
    """A vulnerability of a locked package."""

    package: str
    files: Sequence[str]
    names: Sequence[str]
    fixed: Sequence[str]

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed)}" if self.fixed else "no version with a fix"
        return f"{self.package} ({', '.join(self.files)}): {', '.join(self.names)}; {fixed}"


def locked(files: Sequence[Path]) -> Pins:
    """What the files lock. Raises NotAudited for a line that is not `NAME==VERSION`."""
    found: Pins = {}
    for file in files:
        for line in file.read_text().replace("\\\n", " ").splitlines():
            words = line.partition(" #")[0].partition(" --hash=")[0].strip()
            if not words or words.startswith("#"):
                continue
            found.setdefault(_pin(file, words), []).append(file.name)
    return found


def _pin(file: Path, words: str) -> tuple[str, str]:
    try:
        wanted = Requirement(words)
        (version,) = [one.version for one in wanted.specifier if one.operator == "=="]
    except (InvalidRequirement, ValueError):
        raise NotAudited(
            f"{file.name}: {words!r} is not NAME==VERSION; lock it again: make lock"
        ) from None
    return canonicalize_name(wanted.name), version


def layers(pins: Pins) -> Iterator[list[tuple[str, str]]]:
    """The pins in groups that have each name once, as pip-audit wants them."""
    left = sorted(pins)
    while left:
        group = dict(reversed(left))
        yield sorted(group.items())
        left = [pin for pin in left if group[pin[0]] != pin[1]]


class Auditor:
    """pip-audit, as a program of an interpreter."""

    def __init__(self, python: Path, database: str) -> None:
        self._python, self._database = python, database

    def known(self, pins: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """What is known against each of the pins. Raises NotAudited unless all were looked up."""
        with tempfile.TemporaryDirectory(prefix="outlast-audit-") as folder:
            # Without markers: pip-audit leaves out what this system or Python does not install.
            asked = Path(folder) / "pins.txt"
            asked.write_text("".join(f"{name}=={version}\n" for name, version in pins))
            # An answer that was kept for long would hide what is known since.
            argv = [str(self._python), "-m", "pip_audit", "--requirement", str(asked)]
            argv += ["--no-deps", "--disable-pip", "--format", "json", "--desc", "off"]
            argv += ["--vulnerability-service", "osv", "--osv-url", self._database]
            argv += ["--progress-spinner", "off", "--cache-dir", f"{folder}/cache"]
            try:
                done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_SEC)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotAudited(f"pip-audit: {error}; call make audit again") from None
        answered = _answers(done.stdout)
        lacking = ["==".join(pin) for pin in pins if pin not in answered]
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        doubts = [line for line in lines if line.startswith(DOUBTS)]
        if done.returncode not in (CLEAN, VULNERABLE) or lacking or doubts:
            said = (doubts or lines or [f"it ended with {done.returncode}"])[-1][-400:]
            about = f" about {lacking[0]} and {len(lacking) - 1} more" if lacking else ""
            raise NotAudited(
                f"{self._database}: pip-audit got no whole answer{about}: {said}; "
                "call make audit where this address can be reached"
            )
        return answered


def _answers(text: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What pip-audit printed, by pin; what it skipped is left out."""
    try:
        return {
            (canonicalize_name(one["name"]), one["version"]): list(one["vulns"])
            for one in json.loads(text)["dependencies"]
            if "skip_reason" not in one
        }
    except (ValueError, KeyError, TypeError):
        return {}


def audit(auditor: Auditor, pins: Pins) -> list[Finding]:
    """What is known against the pins. Raises NotAudited unless that is certain."""
    if not pins:
        raise NotAudited("requirements: no locked package was found; lock them: make lock")
    if not auditor.known([KNOWN_AS_VULNERABLE])[KNOWN_AS_VULNERABLE]:
        name, version = KNOWN_AS_VULNERABLE
        raise NotAudited(
            f"the database says that nothing is known against {name} {version}, which is wrong, so "
            "its other answers are worth nothing; look at what answers at its address"
        )
    found = []
    for group in layers(pins):
        for (name, version), problems in auditor.known(group).items():
            files = pins[name, version]
            found += [
                Finding(
                    f"{name} {version}",
                    files,
                    [str(one["id"]), *map(str, one.get("aliases", []))],
                    [str(fix) for fix in one.get("fix_versions", [])],
                )
                for one in problems
            ]
    return found


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/audit.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--database", default=DATABASE, help=f"its query address, else {DATABASE}")
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-audit/bin/python", help="with pip-audit"
    )
    parser.add_argument("files", nargs="*", type=Path, help="lock files, else all of the checkout")
    asked = parser.parse_args(argv)
    files = asked.files or [*sorted((ROOT / "requirements").glob("*.txt")), BENCH]
    try:
        pins = locked(files)
        found = audit(Auditor(asked.python, asked.database), pins)
    except NotAudited as error:
        print(f"not audited: {error}", file=sys.stderr)
        return NOT_AUDITED
    for finding in found:
        print(finding)
    print(f"{len(pins)} locked packages looked up; known vulnerabilities: {len(found)}")
    return VULNERABLE if found else CLEAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
