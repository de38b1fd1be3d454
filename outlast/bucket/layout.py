"""The object names of a run in the bucket, and the records in them.

Paths are object names relative to the store's root, without a slash at the start. All times are
server times. Standard library only: the trainer's side and the operator's side both import it.
"""

import dataclasses
import os
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from outlast.base.codec import Record
from outlast.base.exits import Reason, State
from outlast.base.names import (
    Digest,
    Host,
    Id,
    Label,
    RunName,
    Zone,
    check_file_names,
    check_object_name,
)
from outlast.base.numbers import Ordinal, Seconds, Size, Steps
from outlast.spec.metrics import Last
from outlast.spec.result import HEAD_FILE
from outlast.spec.sweep_rules import NAME_PATTERN, Measured, prefix_of

EXPERIMENT_PATTERN = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")

DEVELOPMENT = "dev-"
"""What the names of development runs begin with; no other run's name does."""

WHY_CHARS_MAX = 1000
"""More than the longest name of a metric and what is said about it."""

_TERM_DIGITS = 6
_STEP_DIGITS = 12
_PIECE_DIGITS = 6
_TERM_FOLDER = re.compile(r"(?P<folder>t(?P<term>[0-9]{6,9})/(?:s[0-9]{12,15}-[0-9a-z]+|result)/)")


_PAGE = re.compile(r"t(?P<term>[0-9]{6,9})/(?P<digest>[0-9a-f]{32})\.json")


# ---------------------------------------------------------------------------------------------
# Paths


@dataclass(frozen=True)
class Layout:
    """Object names of one run: `<prefix>/<run>/…`; both are empty for a run in a folder."""

    prefix: str
    run: str

    def __post_init__(self) -> None:
        for field in ("prefix", "run"):
            value = getattr(self, field)
            if value != value.strip("/"):
                raise ValueError(f"{field} {value!r}: must not start or end with a slash")

    def _path(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, self.run, *parts) if part)

    @property
    def root(self) -> str:
        """The run's own prefix, ending in a slash; empty for a run in a folder."""
        path = self._path()
        return f"{path}/" if path else ""

    @property
    def head(self) -> str:
        return self._path(HEAD_FILE)

    @property
    def pruning(self) -> str:
        """Exists while `outlast prune` deletes the run."""
        return self._path("PRUNING")

    @property
    def boots(self) -> str:
        """Prefix of all boot records and boot ends."""
        return self._path("boots/")

    def boot(self, instance_id: str, boot_id: str) -> str:
        return self._path("boots", f"{instance_id}-{boot_id}.json")

    def boot_end(self, instance_id: str, boot_id: str) -> str:
        return self._path("boots", f"{instance_id}-{boot_id}.end.json")

    @property
    def attempts(self) -> str:
        """Prefix of all attempts; anything below it shows that the run once had a HEAD."""
        return self._path("attempts/")

    def attempt(self, term: int) -> str:
        """Prefix of one attempt's records."""
        return self._path("attempts", f"{_padded(term, _TERM_DIGITS)}/")

    def attempt_start(self, term: int) -> str:
        return self.attempt(term) + "start.json"

    def attempt_end(self, term: int) -> str:
        return self.attempt(term) + "end.json"

    def heartbeat(self, term: int) -> str:
        return self.attempt(term) + "heartbeat.json"

    def log_piece(self, term: int, index: int) -> str:
        return self.attempt(term) + f"log/{_padded(index, _PIECE_DIGITS)}.log"

    def log_file(self, term: int, name: str) -> str:
        """A file that the term's trainer left in LOG_DIR."""
        return self.attempt(term) + f"logs/{check_object_name(name)}"

    @property
    def records(self) -> str:
        """Prefix of the blocks of old attempts' records."""
        return self._path("records/")

    def records_block(self, number: int) -> str:
        return self._path("records", f"{_padded(number, _PIECE_DIGITS)}.json")

    @property
    def rows(self) -> str:
        """Prefix of all terms' pieces of rows."""
        return self._path("metrics/")

    def metrics(self, term: int) -> str:
        """Prefix of one term's pieces of rows."""
        return self._path("metrics", f"t{_padded(term, _TERM_DIGITS)}/")

    def metrics_piece(self, term: int, index: int, after: int | None = None) -> str:
        """A piece of rows; with `after`, rows of later steps in the pieces before are void."""
        voids = "" if after is None else f".after-{_padded(after, _STEP_DIGITS)}"
        return self.metrics(term) + f"{_padded(index, _PIECE_DIGITS)}{voids}.jsonl"

    @property
    def terms(self) -> str:
        """Prefix of all terms' snapshots and results; `folder_of` says whose each object is."""
        return self._path("t")

    def term(self, term: int) -> str:
        """Prefix of one term's snapshots and result."""
        return self._path(f"t{_padded(term, _TERM_DIGITS)}/")

    def snapshot(self, term: int, step: int, nonce: str) -> str:
        """Prefix of one checkpoint's objects, ending in a slash."""
        return self.term(term) + f"s{_padded(step, _STEP_DIGITS)}-{nonce}/"

    def manifest(self, term: int, step: int, nonce: str) -> str:
        return self.snapshot(term, step, nonce) + "MANIFEST.json"

    def result(self, term: int) -> str:
        """Prefix of one term's result files, ending in a slash."""
        return self.term(term) + "result/"

    def result_manifest(self, term: int) -> str:
        return self.result(term) + "RESULT.json"

    @property
    def pages(self) -> str:
        """Prefix of all pages of old entries of HEAD."""
        return self._path("pages/")

    def page(self, term: int, digest: str) -> str:
        """A page that the term wrote, named by the BLAKE3 of its bytes, so it never changes."""
        return self._path("pages", f"t{_padded(term, _TERM_DIGITS)}", f"{digest[:32]}.json")

    def page_of(self, path: str) -> tuple[int, str] | None:
        """(term, start of the digest) of a page; None for any other object."""
        match = _PAGE.fullmatch(path.removeprefix(self.pages))
        if match is None or not path.startswith(self.pages):
            return None
        return int(match["term"]), match["digest"]

    def end(self, resume: int) -> str:
        return self._path(f"END-r{resume}.json")

    def stop_request(self, resume: int) -> str:
        """Where `outlast stop` asks the VM of this resume for a checkpoint and the run's end."""
        return self._path(f"STOP-r{resume}.json")

    def data_listing(self, size: int, crc32c: str) -> str:
        """List of a data folder's files with sizes and checksums, named by the folder's
        fingerprint.
        """
        return self._path("data", f"{size}-{crc32c.translate(str.maketrans('+/', '-_', '='))}.json")

    def bundle(self, sha256: str) -> str:
        """Object name of a bundle, which the experiment's runs share."""
        return "/".join(part for part in (self.prefix, "bundles", f"{sha256}.zip") if part)

    @property
    def environments(self) -> str:
        """Prefix of the kept packages, which the experiment's runs share."""
        return "/".join(part for part in (self.prefix, "environments/") if part)

    def folder_of(self, path: str) -> tuple[int, str] | None:
        """(term, folder) of a snapshot's or result's object; None for any other object.

        The folder ends in a slash, as in `snapshot` and `result`.
        """
        match = _TERM_FOLDER.match(path.removeprefix(self.root))
        if match is None or not path.startswith(self.root):
            return None
        return int(match["term"]), self.root + match["folder"]

    def is_of_snapshot(self, path: str) -> bool:
        """Whether it is a snapshot's object, so not a result's."""
        place = self.folder_of(path)
        return place is not None and place[1] != self.result(place[0])


@dataclass(frozen=True)
class SweepLayout:
    """Object names of one sweep: `sweeps/<name>/…`. Its trials create them, each once."""

    name: str

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise ValueError(f"sweep {self.name[:80]!r}: is not a sweep's name")

    @property
    def prefix(self) -> str:
        """Without a slash at the end, as an IAM condition names it."""
        return prefix_of(self.name)

    @property
    def values(self) -> str:
        """Prefix of all values."""
        return f"{self.prefix}/rungs/"

    @property
    def decisions(self) -> str:
        """Prefix of all decisions."""
        return f"{self.prefix}/decisions/"

    def values_at(self, rung: int) -> str:
        """Prefix of the values that have arrived at a rung."""
        return f"{self.values}{_padded(rung, _STEP_DIGITS)}/"

    def value(self, rung: int, run: str) -> str:
        return f"{self.values_at(rung)}{run}.json"

    def decision(self, rung: int, run: str) -> str:
        return f"{self.decisions}{_padded(rung, _STEP_DIGITS)}/{run}.json"


def _padded(number: int, digits: int) -> str:
    if number < 0:
        raise ValueError(f"number {number}: must not be negative in an object name")
    return f"{number:0{digits}d}"


# ---------------------------------------------------------------------------------------------
# Records


@dataclass(frozen=True)
class BootRecord(Record):
    """`boots/<instance-id>-<boot-id>.json`: the first act of every boot; the shell writes it."""

    instance_id: Id
    boot_id: Id
    instance: Host
    zone: Zone
    resume: Ordinal
    placement: Ordinal
    time: datetime


@dataclass(frozen=True)
class BootEnd(Record):
    """`boots/….end.json`: the end of a boot that never held the term."""

    instance_id: Id
    boot_id: Id
    reason: Reason
    step: str
    """The startup step that it reached, such as `fetch-bundle`."""
    exit: int
    message: str
    time: datetime


@dataclass(frozen=True)
class AttemptStart(Record):
    """`attempts/000003/start.json`, written once the term is taken and the state restored."""

    term: Ordinal
    resume: Ordinal
    placement: Ordinal
    instance: Host
    instance_id: Id
    boot_id: Id
    zone: Zone
    machine_type: str
    image: str
    trainer: str
    spec: dict[str, Any]
    """The requested arguments, bundle, checkpoint interval and limits."""
    versions: dict[str, str]
    step: Steps
    """Step of the restored checkpoint; 0 for a fresh start."""
    restored: str | None
    """Path of the restored checkpoint; None for a fresh start."""
    time: datetime


@dataclass(frozen=True)
class AttemptEnd(Record):
    """`attempts/000003/end.json`; an attempt without one was lost with its VM at the last
    heartbeat.
    """

    term: Ordinal
    reason: Reason
    state: State
    """State of the run when the attempt left it."""
    exit: int | None
    """The trainer's exit code; None if no trainer ended."""
    step: Steps
    """The trainer's last step."""
    committed: Steps | None
    """Step of this attempt's last checkpoint; None if it committed nothing."""
    message: str
    stderr: tuple[str, ...]
    """Last lines of the trainer's stderr."""
    staged_sec: Seconds
    """Seconds that the trainer waited for data."""
    time: datetime
    repeats: bool = False
    """Whether the next machine will probably end in the same way: the store or a disk refused, or
    the supervisor crashed.
    """
    metrics: dict[str, Last] = dataclasses.field(default_factory=dict)
    """The last value of each metric in this attempt's rows."""


@dataclass(frozen=True)
class Heartbeat(Record):
    """`attempts/000003/heartbeat.json`, rewritten at most every `heartbeat` seconds."""

    term: Ordinal
    step: Steps
    total: Steps | None
    """Total steps of the run; None until the trainer has said."""
    phase: str
    rate: Seconds | None
    """Steps a second since the heartbeat before; None if not measured."""
    committed: Steps | None
    """Step of this attempt's last checkpoint; None if it committed nothing so far."""
    seconds_to_commit: Seconds | None
    """Seconds from the start record to this attempt's first commit; later used to judge terms
    without progress.
    """
    rows: tuple[dict[str, Any], ...]
    """The last rows, newest last."""
    time: datetime
    commit_sec: Seconds | None = None
    """Seconds of this attempt's last commit; None if it committed nothing so far."""
    warnings: tuple[str, ...] = ()
    """Warnings of the trainer."""
    metrics: dict[str, Last] = dataclasses.field(default_factory=dict)
    """The last value of each metric in this attempt's rows."""
    failure: str = ""
    """Why the trainer ended, while the verdict is held back because the machine may be stopping."""
    stderr: tuple[str, ...] = ()
    """The last lines of that trainer's stderr."""
    part: Label = dataclasses.field(default="", metadata={"omit": True})
    """The part that is being trained. Steps count through all parts, except in rows."""
    before: Steps = dataclasses.field(default=0, metadata={"omit": True})
    """Steps of the parts before it."""


@dataclass(frozen=True)
class ManifestObject:
    """One object of a checkpoint: a file, or a part of a large one."""

    name: str
    size: Size
    crc32c: str
    blake3: Digest
    generation: Size
    file: str | None = None
    """The file that it is a part of; None if it is the whole file `name`."""
    offset: Size = 0
    """Offset of its first byte in the file."""


@dataclass(frozen=True)
class Manifest(Record):
    """`MANIFEST.json` of one checkpoint; HEAD's chain names its BLAKE3."""

    run: str
    term: Ordinal
    step: Steps
    tags: tuple[Label, ...]
    rows: Size
    """Number of this term's rows up to the step, all flushed before."""
    objects: tuple[ManifestObject, ...]
    part: Label = dataclasses.field(default="", metadata={"omit": True})
    """As in HEAD's chain, like the next field."""
    before: Steps = dataclasses.field(default=0, metadata={"omit": True})

    def __post_init__(self) -> None:
        for entry in self.objects:
            check_object_name(entry.name)
        check_file_names(self.files(), "Manifest.objects")
        for file, parts in self.files().items():
            at = 0
            for part in parts:
                if part.offset != at:
                    raise ValueError(
                        f"Manifest.objects {part.name!r}: begins at byte {part.offset} of {file}, "
                        f"the parts before it end at {at}"
                    )
                at += part.size

    def files(self) -> dict[str, tuple[ManifestObject, ...]]:
        """The objects of each file, ordered by offset."""
        found: dict[str, list[ManifestObject]] = {}
        for entry in self.objects:
            found.setdefault(entry.file or entry.name, []).append(entry)
        return {
            file: tuple(sorted(parts, key=lambda part: part.offset))
            for file, parts in found.items()
        }


@dataclass(frozen=True)
class EndCopy(Record):
    """`END-r<resume>.json`: a copy of HEAD's end for people; no reader needs it."""

    run: str
    resume: Ordinal
    term: Ordinal
    state: State
    reason: Reason
    exit: int | None
    step: Steps
    result: str | None
    digest: Digest | None
    started: datetime
    why: str = dataclasses.field(default="", metadata={"omit": True})
    """Why the run ended before its last step."""


@dataclass(frozen=True)
class RungValue(Record):
    """`sweeps/<name>/rungs/<step>/<run>.json`: a trial's metric when it reached a rung. The same
    bytes whenever the trial passes the rung again; the first object counts.
    """

    run: RunName
    rung: Steps
    step: Steps
    """Step of `value`, at most the rung's."""
    value: float | None
    """The metric's last value; None if it is not finite."""
    best: float | None
    """Its best finite value so far; None if there is none."""
    mean: float | None
    """The average of its finite values so far; None if there is none."""

    @property
    def measured(self) -> Measured:
        """As the rules compare it."""
        return Measured(self.value, self.best, self.mean)


class Choice(StrEnum):
    """What a trial does after a rung."""

    STOP = "stop"
    CONTINUE = "continue"


@dataclass(frozen=True)
class RungDecision(Record):
    """`sweeps/<name>/decisions/<step>/<run>.json`: what a trial decided at a rung. It is written
    once, never changes, and binds every later attempt of the same resume.
    """

    run: RunName
    rung: Steps
    choice: Choice
    resume: Ordinal
    """The resume of the attempt that decided; `outlast resume` continues a trial all the same."""
    rules: dict[str, Any]
    """The setting `outlast:sweep` of that attempt."""
    own: float | None
    """The trial's number that was compared; None if it is not finite."""
    bar: float | None
    """What it must not be worse than; None if nothing was compared, or if that is not finite."""
    others: tuple[RungValue, ...]
    """The values that had arrived before the trial's own, in that order."""
    why: str
    """A clause for people, which HEAD repeats."""

    def __post_init__(self) -> None:
        if len(self.why) > WHY_CHARS_MAX:
            raise ValueError(f"RungDecision.why {self.why[:80]!r}…: is longer than a clause")


@dataclass(frozen=True)
class StopRequest(Record):
    """`STOP-r<resume>.json`, created once by `outlast stop`: a VM at work takes a checkpoint and
    ends the run as stopped; a VM that boots ends it at once. It is one whatever it contains.
    """

    resume: Ordinal
    seconds: Seconds
    """How long the VM may take."""
    time: datetime


def is_run_path(where: str | Path) -> bool:
    """Whether a run is named by where it is, and not by its experiment."""
    text = os.fspath(where)
    if isinstance(where, Path) or os.sep in text or text.startswith("gs://"):
        return True
    return any((Path(text) / kept).exists() for kept in (HEAD_FILE, "attempts"))
