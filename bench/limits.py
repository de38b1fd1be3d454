"""What many runs in one bucket and project use of Google's published limits, on paper."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.cloud.limits import ACCOUNTS, BINDINGS, ROLES
from outlast.costs import pricing
from outlast.loop.schedule import interval_sec
from outlast.spec.run_spec import Timeouts

COMMIT = ("checkpoint", "HEAD write", "rows", "page", "objects")
"""Requests that each commit makes; lists of objects find what it may delete."""
HEARTBEAT = ("heartbeat", "HEAD read", "stop request")
SNAPSHOTS_SEC = (0.0, 0.1, 1.0, 10.0)
"""Seconds for which a snapshot halts training, which decides how often there is one."""

WRITE, READ, LIST, DELETE = "write", "read", "list", "delete"
_OBJECTS = re.compile(r"/storage/v1/b/[^/]+/o(/|$)")
_READS = ("listManagedInstances", "listErrors", "testIamPermissions", "getIamPolicy")
"""Methods that change nothing although they are sent as POST."""
_KINDS = (
    ("HEAD", r"HEAD"),
    ("heartbeat", r"attempts/[^/]+/heartbeat\.json"),
    ("log", r"attempts/[^/]+/log/.*"),
    ("rows", r"metrics/.*"),
    ("record", r"(attempts|boots|records)/.*|END-.*"),
    ("checkpoint", r"t\d+/s.*"),
    ("stop request", r"STOP-.*"),
    ("page", r"pages/.*"),
    ("result", r"t\d+/result.*|results?/.*"),
)
"""Kinds of a run's objects by their path in the run."""


@dataclass(frozen=True)
class Asked:
    """Requests of one kind."""

    api: str
    """`storage`, `compute`, `metadata` or another API of Google's."""
    what: str
    """For storage the kind of object."""
    act: str
    """WRITE, READ, LIST or DELETE."""


def kinds(counted: Iterable[Mapping[str, Any]], *, of_vms: bool) -> Counter[Asked]:
    """The requests that a local cloud counted, by kind: those of its VMs or those of its user."""
    found: Counter[Asked] = Counter()
    for one in counted:
        if bool(one["vm"]) == of_vms:
            found[_asked(one["method"], one["path"], one["object"])] += one["count"]
    return found


def _asked(method: str, path: str, name: str | None) -> Asked:
    first = path.strip("/").partition("/")[0]
    if not (_OBJECTS.search(path) or name):
        reads = method == "GET" or path.endswith(_READS)
        api = {"computeMetadata": "metadata", "download": "storage"}.get(first, first)
        what = path.rpartition("/")[2] if ":" in path or path.endswith(_READS) else ""
        return Asked(api, what.rpartition(":")[2], READ if reads else WRITE)
    if not name:
        return Asked("storage", "objects", LIST if method == "GET" else WRITE)
    below = "/".join(name.split("/")[3:])
    kind = next((kind for kind, rule in _KINDS if re.fullmatch(rule, below)), "other")
    act = {"GET": READ, "DELETE": DELETE}.get(method, WRITE)
    if kind == "HEAD":
        kind = f"HEAD {act}"
    return Asked("storage", kind, act)


@dataclass(frozen=True)
class Measured:
    """What one run on the local cloud asked for."""

    up: Counter[Asked]
    """By the `outlast up` that created it."""
    boot: Counter[Asked]
    """By its VM until the first checkpoint."""
    steady: Counter[Asked]
    """By its VM in `seconds` of training."""
    end: Counter[Asked]
    """By its VM from there until it was gone."""
    seconds: float
    kept: int
    """Checkpoints that it kept."""
    gib: float
    """What it left in the bucket."""

    @property
    def commits(self) -> int:
        return self._writes("HEAD write")

    @property
    def heartbeats(self) -> int:
        return self._writes("heartbeat")

    def _writes(self, what: str) -> int:
        return self.steady[Asked("storage", what, WRITE)]

    def hourly(self, snapshot_sec: float = 0.0) -> dict[Asked, float]:
        """An hour of training at the default settings, on a VM that is young, with snapshots that
        take so long: what a commit or a heartbeat makes counts with those, the rest by time."""
        an_hour = {
            **dict.fromkeys(COMMIT, 3600 / interval_sec(snapshot_sec, 0.0) / self.commits),
            **dict.fromkeys(HEARTBEAT, 3600 / Timeouts.heartbeat / self.heartbeats),
        }
        by_time = 3600 / self.seconds
        return {one: n * an_hour.get(one.what, by_time) for one, n in self.steady.items()}


def storage(hourly: Mapping[Asked, float], *acts: str) -> float:
    """Requests to storage of these acts."""
    return sum(n for one, n in hourly.items() if one.api == "storage" and one.act in acts)


def hours(measured: Measured) -> list[dict[str, Any]]:
    """The requests of one run by kind."""
    rows = []
    hourly = measured.hourly()
    for one in sorted({*measured.boot, *measured.steady, *measured.end}, key=str):
        row = {"api": one.api, "kind": one.what or "-", "act": one.act}
        row |= {"boot": measured.boot[one], "training": measured.steady[one]}
        rows.append({**row, "end": measured.end[one], "an hour": round(hourly.get(one, 0.0), 1)})
    return rows


# ---------------------------------------------------------------------------------------------
# Limits


@dataclass(frozen=True)
class Limit:
    """A limit, and what each run takes of it."""

    what: str
    most: float
    each: float
    page: str
    remedy: str
    grows: bool = True
    """Whether more runs take more of it."""

    def row(self, runs: int) -> dict[str, Any]:
        used = self.each * runs if self.grows else self.each
        breaks = math.floor(self.most / self.each) if self.grows and self.each else None
        return {
            "limit": self.what,
            "most": self.most,
            "each": round(self.each, 4),
            f"share at {runs}": f"{used / self.most:.0%}",
            "holds runs": breaks,
            "then": self.remedy,
            "page": self.page,
        }


_RATE = '"Request rate and access distribution guidelines" of Cloud Storage, read 2026-12-01'
_STORAGE = '"Quotas & limits" of Cloud Storage, read 2026-12-01'
_IAM = '"Quotas and limits" of IAM, read 2026-12-01'
_COMPUTE = (
    '"Compute Engine rate quotas", read 2026-12-01 in a form with numbers; its newest one leaves'
    " them to the project's page Quotas"
)
_ADVICE = '"Best practices for IAM Conditions", read in November 2026'
_TEMPLATES = "answers of projects.get in public reports: 100 for a young project, 300, 2,500"
_MORE = "ask for more"
_SHARED = "outlast:serviceAccount, or trials of a sweep, which share one"


def limits(measured: Measured) -> Iterator[Limit]:
    """All limits that runs meet, with what a run takes while training, at its boot and its end."""
    hourly = measured.hourly()
    writes, reads = storage(hourly, WRITE, DELETE) / 3600, storage(hourly, READ, LIST) / 3600
    gradual = "Cloud Storage grows with the load: at most twice as much in 20 minutes"
    yield Limit("bucket: writes and deletions a second at first", 1000, writes, _RATE, gradual)
    yield Limit("bucket: reads and lists a second at first", 5000, reads, _RATE, gradual)
    head = hourly[Asked("storage", "HEAD write", WRITE)] / 3600
    heartbeat = hourly[Asked("storage", "heartbeat", WRITE)] / 3600
    own = "each run has its own"
    yield Limit("one object: writes of HEAD a second", 1, head, _STORAGE, own, grows=False)
    yield Limit("one object: heartbeats a second", 1, heartbeat, _STORAGE, own, grows=False)
    steady = _of(hourly, "compute", READ) / 60
    yield Limit("Compute: reads a minute, training", 1500, steady, _COMPUTE, _MORE)
    again = "VMs ask again, with pauses"
    for when, counted in (("boot", measured.boot), ("end", measured.end)):
        for act, named in ((READ, "reads"), (WRITE, "changes")):
            each = _of(counted, "compute", act)
            what = f"Compute: {named} a minute, if all {when} in the same one"
            yield Limit(what, 1500, each, _COMPUTE, again)
    for act, named in ((READ, "reads"), (WRITE, "changes")):
        each = _of(measured.up, "compute", act)
        what = f"Compute: {named} a minute, if all are brought up in the same one"
        yield Limit(what, 1500, each, _COMPUTE, "the provider asks again, with pauses")
    storms = storage(measured.boot, WRITE, DELETE) / 60, storage(measured.boot, READ, LIST) / 60
    what = "bucket: {} a second, if all boot in the same minute"
    yield Limit(what.format("writes and deletions"), 1000, storms[0], _RATE, again)
    yield Limit(what.format("reads and lists"), 5000, storms[1], _RATE, again)
    yield Limit("project: service accounts", ACCOUNTS, 1, _IAM, _SHARED)
    yield Limit("project: custom roles", ROLES, 1, _IAM, "a foundation, whose role all share")
    yield Limit("project's policy: principals", 1500, 1, _IAM, _SHARED)
    yield Limit("bucket's policy: principals, each time named", 1500, 2, _STORAGE, _SHARED)
    yield Limit("bucket's policy: conditional bindings, advised", BINDINGS, 2, _ADVICE, _SHARED)
    yield Limit("project: instance templates", 100, 1, _TEMPLATES, _MORE)


def _of(counted: Mapping[Asked, float], api: str, act: str) -> float:
    return sum(n for one, n in counted.items() if one.api == api and one.act == act)


def shares(measured: Measured, runs: int) -> list[dict[str, Any]]:
    """Each limit with its share; what breaks first comes first."""
    rows = [one.row(runs) for one in limits(measured) if one.each]
    return sorted(rows, key=lambda row: row["holds runs"] or math.inf)


# ---------------------------------------------------------------------------------------------
# Costs


def costs(measured: Measured, runs: int, region: str, state_gib: float) -> list[dict[str, Any]]:
    """Dollars a month of requests and storage, by how long a snapshot halts training."""
    month = pricing.storage_gib_month(region)
    stored = None if month is None else round(runs * month * measured.kept * state_gib)
    rows = []
    for snapshot_sec in SNAPSHOTS_SEC:
        hourly = measured.hourly(snapshot_sec)
        classes = storage(hourly, WRITE, LIST), storage(hourly, READ)
        dollars = pricing.requests(*classes) * pricing.HOURS_A_MONTH * runs
        writes = storage(hourly, WRITE, DELETE) / 3600
        rows.append(
            {
                "snapshot s": snapshot_sec,
                "commit every s": round(interval_sec(snapshot_sec, 0.0), 1),
                "writes/s": round(writes * runs),
                "reads/s": round(storage(hourly, READ, LIST) * runs / 3600),
                "runs at 1,000 writes/s": math.floor(1000 / writes),
                "requests $ a month": round(dollars),
                "a run": round(dollars / runs, 2),
                f"{measured.kept} checkpoints of {state_gib:g} GiB, $ a month": stored,
            }
        )
    return rows


def numbered(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same with the number of each page."""
    named = [row["page"] for row in rows]
    found = list(dict.fromkeys(named))
    return [{**row, "page": f"[{found.index(row['page']) + 1}]"} for row in rows]


def pages(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The pages by their numbers."""
    found = dict.fromkeys(row["page"] for row in rows)
    return [f"[{number}] {page}" for number, page in enumerate(found, 1)]


def first(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence: what breaks first."""
    one = rows[0]
    return f"breaks first: {one['limit']}, beyond {one['holds runs']} runs; {one['then']}"
