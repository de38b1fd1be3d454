"""Where runs are made: a folder of this machine, or VMs of a local cloud."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from bench.points import Phases, Point, Verdict, row_faults
from outlast.base.codec import format_time
from outlast.base.exits import DONE, INTERRUPTED
from outlast.bucket.head import Head, HeadError, read_head
from outlast.bucket.layout import (
    AttemptStart,
    Layout,
)
from outlast.bucket.records import read_record
from outlast.bucket.rows import read_rows
from outlast.bucket.store import Store, StoreError, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cli.rehearsal import seen
from outlast.spec import bundle as bundles
from outlast.spec import startup_script

ROOT = Path(__file__).resolve().parents[1]
PROBE = Path(__file__).with_name("probe")
RUN_SEC = 600.0
"""A run of a few seconds that has not ended after so long hangs."""
POLL_SEC = 0.1
ASKED = "asked"
"""Where a VM's probe asks for what only the cloud can do to it; the probe says so too."""
HAND_SEC = 0.005
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class BenchError(Exception):
    """A measurement could not be made; one sentence."""


@dataclass(frozen=True)
class Job:
    """What is trained."""

    trainer: str
    flags: tuple[str, ...]
    """Of the trainer, `--flag=value` each; no run folder among them."""
    checkpoint_every: str
    python: str = sys.executable


@dataclass(frozen=True)
class Baseline:
    """What an undisturbed run gave: the measure of all others."""

    digest: str
    rows: list[dict[str, Any]]
    phases: Phases
    seconds: float


class Site(Protocol):
    """A place for runs."""

    where: str

    def baseline(self) -> Baseline:
        """One undisturbed run. BenchError: it did not finish."""
        ...

    def inject(self, point: Point, baseline: Baseline) -> Verdict:
        """One run that is hit and resumed."""
        ...


@dataclass(frozen=True)
class Found:
    """What a finished run left in its bucket."""

    head: Head
    starts: list[AttemptStart]
    digest: str | None
    rows: list[dict[str, Any]]


def read_run(store: Store, layout: Layout) -> Found:
    """The run as a stranger reads it: HEAD, start records, result bytes and rows."""
    head = read_head(store, layout).head
    starts = [read_record(store, layout.attempt_start(n), AttemptStart) for n in terms(head)]
    result = seen.read_result(store, head)
    rows = read_rows(store, layout, head)
    return Found(head, [start for start in starts if start], result.digest, rows)


def terms(head: Head) -> range:
    return range(1, head.term + 1)


def measured(
    point: Point, baseline: Baseline, found: Found, plan: Path, before: int, why: str
) -> Verdict:
    """The verdict on a run that has ended; `before` is HEAD's step between blow and restart."""
    fired = json.loads((plan / "fired.json").read_bytes()) if _is_hit(plan) else None
    started = [start.step for start in found.starts]
    later = started[1:] if len(started) > 1 else started
    steps = 0 if fired is None else fired["steps"]
    if len(started) == 1 and (steps or before):
        later = [max(steps, before)]  # the blow did not keep the first attempt from finishing
    resumed = not why and bool(later) and later[-1] >= before
    duplicate, missing = row_faults([row["step"] for row in found.rows], len(baseline.rows))
    if found.rows != baseline.rows and not (duplicate or missing):
        why = why or "a row differs from the undisturbed run's"
    return Verdict(
        point=point,
        hit=fired is not None,
        resumed=resumed and not why,
        equal=found.digest == baseline.digest,
        lost=None if fired is None or not later else max(0, steps - later[0]),
        duplicate=duplicate,
        missing=missing,
        why=why if why or resumed else f"attempts began at steps {started}, HEAD was at {before}",
    )


def _is_hit(plan: Path) -> bool:
    return (plan / "fired.json").exists()


def make_plan(folder: Path, point: Point | None) -> Path:
    """The folder that the probe in a run's processes reads and writes."""
    folder.mkdir(parents=True)
    if point is not None:
        (folder / "plan.json").write_text(json.dumps(point.plan()))
    return folder


# ---------------------------------------------------------------------------------------------
# A folder


class FolderSite:
    """Runs in folders: `python -m outlast.trainers NAME --run-dir …`, as on a laptop."""

    where = "folder"

    def __init__(self, job: Job, work: Path) -> None:
        self._job = job
        self._work = work

    def baseline(self) -> Baseline:
        folder = self._work / "folder-baseline"
        plan = make_plan(folder / "plan", None)
        begun = time.monotonic()
        code = self._run(folder, plan)
        seconds = time.monotonic() - begun
        if code != DONE:
            raise BenchError(f"{self._job.trainer}: ended with {code}; see {folder / 'log'}")
        found = read_run(open_store(str(folder / "run")), Layout("", ""))
        assert found.digest is not None
        return Baseline(found.digest, found.rows, Phases.read(plan), seconds)

    def inject(self, point: Point, baseline: Baseline) -> Verdict:
        folder = self._work / f"folder-{point.number:04d}"
        plan = make_plan(folder / "plan", point)
        first = self._run(folder, plan)
        why = ""
        if point.kind == "SIGTERM" and _is_hit(plan) and first not in (INTERRUPTED, DONE, -15):
            why = f"the first attempt ended with {first}"
        layout = Layout("", "")
        store = open_store(str(folder / "run"))
        code = DONE
        before = _step_of(store, layout)
        if first != DONE:
            code = self._run(folder, None)
        if code != DONE:
            why = f"the second attempt ended with {code}"
        try:
            verdict = measured(point, baseline, read_run(store, layout), plan, before, why)
        except (HeadError, StoreError) as error:
            verdict = Verdict(point, _is_hit(plan), False, False, None, 0, 0, why or str(error))
        if verdict.good:
            shutil.rmtree(folder)
        return verdict

    def _run(self, folder: Path, plan: Path | None) -> int:
        job = self._job
        command = [job.python, "-m", "outlast.trainers", job.trainer, *job.flags]
        command += [f"--run-dir={folder / 'run'}", f"--checkpoint-every={job.checkpoint_every}"]
        return run_to_end(command, folder, {}, plan)


def run_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], plan: Path | None
) -> int:
    """The exit code of a command whose output goes to the folder's log; a hanging one is killed,
    with what it started. BenchError: it cannot be started."""
    paths = [str(ROOT)] if plan is None else [str(PROBE), str(ROOT)]
    variables = {**one_thread(), **environment, "PYTHONPATH": os.pathsep.join(paths)}
    variables["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    if plan is not None:
        variables["BENCH_PLAN"] = str(plan)
    with (folder / "log").open("ab") as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        except OSError as error:
            raise BenchError(f"{command[0]}: cannot be started ({error.strerror})") from None
        try:
            return process.wait(RUN_SEC)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return -1000


def one_thread() -> dict[str, str]:
    """This environment with arithmetic in one thread: runs beside each other stay alike."""
    return {**engine.scrubbed(), "HOME": os.environ.get("HOME", "/"), **_threads("1")}


def _threads(count: str) -> dict[str, str]:
    return dict.fromkeys(THREAD_VARIABLES, count)


def _step_of(store: Store, layout: Layout) -> int:
    try:
        return read_head(store, layout).head.step
    except (HeadError, StoreError):
        return 0


# ---------------------------------------------------------------------------------------------
# The local cloud

BUCKET = "bench"
ZONE = "europe-west4-a"
BASE = f"/compute/v1/projects/{clouds.PROJECT}"
IMAGE = f"projects/{clouds.PROJECT}/global/images/family/outlast"
"""Whose image is the folder that the cloud was given."""
DISK_GB = 20
GROUPS = f"{BASE}/zones/{ZONE}/instanceGroupManagers"
ACCOUNT = f"outlast-bench@{clouds.PROJECT}.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TIMEOUTS = {
    "heartbeat": 1,
    "failure_grace": 0.5,
    "backoff": 0.2,
    "iam_propagation": 5,
    "successor_silence": 60,
    "notice": 3,
    "stop": 2,
}


class CloudSite:
    """Runs on VMs of a local cloud: boot script, supervisor and self-healing group as they are;
    only the engine is left out, and what it would send is sent here."""

    where = "cloud"

    def __init__(self, job: Job, cloud: clouds.LocalCloud, plans: Path) -> None:
        self._job = job
        self._cloud = cloud
        self._plans = plans
        os.environ["STORAGE_EMULATOR_HOST"] = cloud.url
        os.environ.pop("GCE_METADATA_HOST", None)
        self.bundle = self._put_bundle()

    def baseline(self) -> Baseline:
        layout = Layout(f"experiments/{self._job.trainer}", "baseline")
        plan, begun = make_plan(self._plans / self.group(layout), None), time.monotonic()
        self.raise_group(layout)
        self._wait_for_end(layout)
        seconds = time.monotonic() - begun
        found = read_run(self.store(), layout)
        self.drop_group(layout)
        if found.digest is None:
            raise BenchError(f"{self._job.trainer} on a VM: ended {found.head.state}")
        return Baseline(found.digest, found.rows, Phases.read(plan), seconds)

    def inject(self, point: Point, baseline: Baseline) -> Verdict:
        layout = Layout(f"experiments/{self._job.trainer}", f"p{point.number:04d}")
        plan = make_plan(self._plans / self.group(layout), point)
        store, why, before = self.store(), "", 0
        self.raise_group(layout)
        try:
            first = 0
            for head in self._heads(layout, store):
                first = first or (head.term if head else 0)
                if head and head.term <= first and not head.state.ended:
                    before = max(before, head.step)
                if head and head.state.ended:
                    break
            verdict = measured(point, baseline, read_run(store, layout), plan, before, why)
        except (BenchError, HeadError, StoreError) as error:
            verdict = Verdict(point, _is_hit(plan), False, False, None, 0, 0, str(error))
        self.drop_group(layout)
        return verdict

    def store(self) -> Store:
        """The bucket; one client a thread, for connections are no two threads'."""
        return open_store(f"gs://{BUCKET}")

    def group(self, layout: Layout) -> str:
        return f"{self._job.trainer.replace('_', '-')}-{layout.run}"

    def raise_group(
        self, layout: Layout, *, image: str = IMAGE, more: Mapping[str, str] | None = None
    ) -> None:
        """Template and group of size 1, as the components declare them; `more` of the metadata."""
        name = self.group(layout)
        disk = {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": image,
                "diskSizeGb": str(DISK_GB),
            },
        }
        metadata = {**self._metadata(layout), **(more or {})}
        items = [{"key": key, "value": text} for key, text in metadata.items()]
        properties = {
            "machineType": "n2-standard-2",
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "scheduling": {
                "provisioningModel": "SPOT",
                "preemptible": True,
                "automaticRestart": False,
                "instanceTerminationAction": "DELETE",
            },
            "serviceAccounts": [{"email": ACCOUNT, "scopes": [SCOPE]}],
            "metadata": {"items": items},
        }
        template = {"name": name, "properties": properties}
        self._cloud.call("POST", f"{BASE}/global/instanceTemplates", template)
        group = {
            "name": name,
            "baseInstanceName": name,
            "targetSize": 1,
            "versions": [{"instanceTemplate": f"global/instanceTemplates/{name}"}],
            "updatePolicy": {
                "type": "OPPORTUNISTIC",
                "minimalAction": "REPLACE",
                "replacementMethod": "RECREATE",
                "maxSurge": {"fixed": 0},
                "maxUnavailable": {"fixed": 1},
            },
            "instanceLifecyclePolicy": {"forceUpdateOnRepair": "YES"},
        }
        self._cloud.call("POST", GROUPS, group)

    def drop_group(self, layout: Layout) -> None:
        with contextlib.suppress(clouds.CloudError):
            self._cloud.call("DELETE", f"{GROUPS}/{self.group(layout)}")

    def _metadata(self, layout: Layout) -> dict[str, str]:
        job, (name, sha256) = self._job, self.bundle
        pairs = [flag.removeprefix("--").partition("=") for flag in job.flags]
        python = {} if job.python == sys.executable else {"outlast-trainer-python": job.python}
        return {
            "startup-script": startup_script.read("boot.sh"),
            "outlast-bucket": BUCKET,
            "outlast-prefix": layout.prefix,
            "outlast-run": layout.run,
            "outlast-resume": "0",
            "outlast-placement": "0",
            "outlast-owner": f"bench/{layout.run}",
            "outlast-bundle": name,
            "outlast-bundle-sha256": sha256,
            "outlast-trainer": job.trainer,
            "outlast-deadline": format_time(
                (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
            ),
            "outlast-checkpoint-every": job.checkpoint_every,
            "outlast-timeouts": json.dumps(TIMEOUTS),
            **{f"outlast-arg-{flag}": value or "true" for flag, _, value in pairs},
            **python,
        }

    def _wait_for_end(self, layout: Layout) -> Head:
        for head in self._heads(layout, self.store()):
            if head is not None and head.state.ended:
                return head
        raise AssertionError("heads never end")

    def _heads(self, layout: Layout, store: Store) -> Iterator[Head | None]:
        """HEAD, again and again; BenchError after RUN_SEC."""
        until = time.monotonic() + RUN_SEC
        while time.monotonic() < until:
            try:
                yield read_head(store, layout).head
            except (HeadError, StoreError):
                yield None
            time.sleep(POLL_SEC)
        raise BenchError(f"{self.group(layout)}: did not end in {RUN_SEC:.0f} s")

    def _put_bundle(self) -> tuple[str, str]:
        """The checkout's bundle with the probe in it; (object, sha256)."""
        import hashlib
        import io

        buffer = io.BytesIO(bundles.pack(ROOT))
        with zipfile.ZipFile(buffer, "a") as archive:
            for file in sorted(PROBE.glob("*.py")):
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
        data = buffer.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        name = f"bundles/{sha256}.zip"
        with contextlib.suppress(StoreError):
            open_store(f"gs://{BUCKET}").put(name, data, if_generation_match=0)
        return name, sha256


@contextlib.contextmanager
def local_cloud(
    work: Path, plans: Path, image: Path | None = None, more: Mapping[str, str] | None = None
) -> Iterator[clouds.LocalCloud]:
    """A local cloud with a bucket and a service account that may do what a run's may.

    Its VMs begin with `image`, a folder; by default the one that `make setup` made. `more` is
    of their environment.
    """
    if image is None:
        parts = engine.find_parts()
    else:
        parts = engine.Parts("", None, str(image), "", sys.executable)
    (plans / ASKED).mkdir(parents=True, exist_ok=True)
    guest = {"BENCH_PLANS": str(plans), **_threads("1"), **(more or {})}
    pace = clouds.Pace(notice_sec=TIMEOUTS["notice"], grace_sec=TIMEOUTS["stop"])
    cloud = clouds.start(work / "cloud", parts, guest_env=guest, pace=pace, dies_with_us=True)
    try:
        uniform = {"uniformBucketLevelAccess": {"enabled": True}}
        # What is deleted is gone: kept for a week, the saves of 1000 MB would fill the disk.
        gone = {"retentionDurationSeconds": 0}
        bucket = {"name": BUCKET, "location": "EUROPE-WEST4", "iamConfiguration": uniform}
        bucket["softDeletePolicy"] = gone
        cloud.call("POST", f"/storage/v1/b?project={clouds.PROJECT}", bucket)
        account = {"accountId": ACCOUNT.partition("@")[0], "serviceAccount": {"displayName": "b"}}
        cloud.call("POST", f"/iam/v1/projects/{clouds.PROJECT}/serviceAccounts", account)
        member = [f"serviceAccount:{ACCOUNT}"]
        roles = ("roles/storage.objectUser", "roles/compute.instanceAdmin.v1")
        policy = {"bindings": [{"role": role, "members": member} for role in roles]}
        path = f"/cloudresourcemanager/v1/projects/{clouds.PROJECT}:setIamPolicy"
        cloud.call("POST", path, {"policy": policy})
        with _hand(cloud, plans / ASKED):
            yield cloud
    finally:
        try:
            cloud.stop()
        except OperateError as error:  # what was measured before it still counts
            print(error, file=sys.stderr)


@contextlib.contextmanager
def _hand(cloud: clouds.LocalCloud, asked: Path) -> Iterator[None]:
    """Does to VMs what the probes inside of them ask for: files `VM.verb`, gone when it is done."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(HAND_SEC):
            for wish in asked.iterdir():
                vm, _, verb = wish.name.rpartition(".")
                with contextlib.suppress(OperateError):  # of a VM that has gone meanwhile
                    cloud.act(vm, verb)
                wish.unlink()

    thread = threading.Thread(target=serve, name="hand", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_memory(prefix: str) -> Path:
    """A new folder in memory, where this machine has one for it."""
    shared = Path("/dev/shm")  # noqa: S108
    return Path(tempfile.mkdtemp(prefix=prefix, dir=shared if shared.is_dir() else None))


@contextlib.contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """A folder for the runs: `keep`, or one that is removed if nothing is left to look at."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()  # jobs run elsewhere
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
