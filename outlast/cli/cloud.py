"""Starts, stops and controls the local cloud.

The local cloud is a separate program (`python -m outlast.localcloud`); nothing of it is imported
here. `endpoint.json` in its state folder has its address.
"""

import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlast.base.folders import PACKAGE
from outlast.base.http_client import RequestFailed, ask
from outlast.base.suggest import choices
from outlast.cli import endpoint
from outlast.cli.engine import (
    Parts,
    backend_variables,
    path_variable,
    scrubbed,
)
from outlast.cli.errors import CloudError, UsageError
from outlast.cli.terminal import say
from outlast.cloud.project import managed_bucket

PROJECT = endpoint.LOCAL_PROJECT
IMAGE_FAMILY = f"{PROJECT}/outlast"
"""The family that Pulumi.dev.yaml names; its image is the folder made by `make setup`."""
START_TIMEOUT_SEC = 60
STOP_TIMEOUT_SEC = 20
CALL_TIMEOUT_SEC = 30
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
RUNS = "local cloud on http://"
"""What a local cloud prints first once it runs."""
NOTE = "local cloud: "
"""Prefix of the log lines for the person who starts the cloud."""


@dataclass(frozen=True)
class Pace:
    """How much time a preempted VM of the local cloud gets."""

    notice_sec: float = 3
    """Seconds from the notice to SIGTERM."""
    grace_sec: float = 2
    """Seconds from SIGTERM to SIGKILL."""


@dataclass(frozen=True)
class LocalCloud:
    """A running local cloud."""

    state: Path
    pid: int
    port: int
    provider_port: int
    process: subprocess.Popen[bytes] | None = field(default=None, compare=False, repr=False)
    """Set if this process started it."""

    @property
    def poll_sec(self) -> float:
        """Seconds between two looks of a rehearsal."""
        return 0.2

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Calls its API; returns the answer's JSON, None for an empty answer.

        Raises CloudError if it refuses, with its message, or does not answer. Sends nothing if it
        has ended: another program may now use its port.
        """
        if not _is_cloud(self.pid, self.state):
            raise CloudError(f"local cloud {self.pid}: has ended; start one: outlast cloud start.")
        try:
            answer = ask(
                self.url + path,
                what=f"{method} {path}",
                method=method,
                body=body,
                timeout_sec=CALL_TIMEOUT_SEC,
                direct=True,
            )
            return answer.json() if answer.body else None
        except RequestFailed as error:
            if error.status:
                raise CloudError(error.words or str(error)) from None
            raise CloudError(
                f"local cloud at {self.url}: does not answer ({error}); start one: outlast cloud"
                " start."
            ) from None

    def vms(self) -> list[dict[str, Any]]:
        """The VMs that exist: name, id, group, zone, status, pid, boots, started."""
        return self.call("GET", "/_local/vms")

    def notes(self) -> list[str]:
        """What it has to say about the machines that its VMs are, oldest first."""
        return self.call("GET", "/_local/notes")

    def act(self, vm: str | None, action: str) -> str:
        """`kill`, `preempt`, `freeze` or `thaw` of one VM, by default the only one; returns its
        name. Raises UsageError for another name.
        """
        known = [one["name"] for one in self.vms()]
        if vm is None and len(known) != 1:
            raise UsageError(f"VM: say which; {choices('', known)}.")
        name: str = vm or known[0]
        if name not in known:
            raise UsageError(f"VM {name}: the local cloud has no such VM; {choices(name, known)}.")
        self.call("POST", f"/_local/vms/{quote(name, safe='')}/{action}")
        return name

    def group_size(self, group: str, place: str) -> int | None:
        """The target size of a group in a zone or region; None if there is no such group."""
        listed = self.call("GET", _groups(place))
        sizes = {item["name"]: item["targetSize"] for item in listed.get("items", [])}
        return sizes.get(group)

    def group_errors(self, group: str, place: str) -> list[str]:
        """Codes of what kept the group from creating VMs, oldest first."""
        listed = self.call("GET", f"{_groups(place)}/{group}/listErrors")
        return [item["error"]["code"] for item in listed.get("items", [])]

    def make_bucket(self, name: str, region: str) -> None:
        """Creates a bucket as the program does, so that its stack adopts it."""
        bucket = managed_bucket(name, region, {})
        self.call("POST", f"/storage/v1/b?project={PROJECT}", bucket)

    def play(self, scenario: Mapping[str, Any], *, target: str) -> None:
        """Starts a scenario for the experiment `target` only."""
        self.call("PUT", "/_local/scenario", {"document": scenario, "target": target})

    def played(self) -> dict[str, Any]:
        """The scenario: `log` is what has happened, `waiting` is what is still to come."""
        return self.call("GET", "/_local/scenario")

    def faults(self) -> list[dict[str, Any]]:
        """The current fault rules, with `seen` and `fired`."""
        return self.call("GET", "/_local/faults")

    def watch(self, history: object) -> None:
        """Nothing: the cloud itself sees how far each run is."""

    def has_bucket(self, bucket: str) -> bool:
        """Whether the bucket exists in it."""
        return bucket in [found["name"] for found in self.audit()["buckets"]]

    def audit(self) -> dict[str, Any]:
        """Everything that exists in it, by kind, and the live processes of its VMs."""
        return self.call("GET", "/_local/audit")

    def reset(self) -> None:
        """Ends every VM and forgets all that exists in it; the cloud keeps running."""
        self.call("POST", "/_local/reset")

    def variables(
        self, parts: Parts, home: Path, path: str, plugin: Path | None = None
    ) -> dict[str, str]:
        """The environment that makes `pulumi`, the program and client libraries use this cloud.

        The engine uses Google's provider `plugin` if it is given, otherwise the stand-in.
        """
        provider = {
            # The engine attaches to it instead of starting a plugin.
            "PULUMI_DEBUG_PROVIDERS": f"gcp:{self.provider_port}"
        }
        if plugin:
            # The plugin would list the regions at Google's own address.
            provider = {"PULUMI_GCP_SKIP_REGION_VALIDATION": "true"}
        return {
            **backend_variables(home),
            "PATH": path_variable(parts, path, plugin),
            **provider,
            "GOOGLE_OAUTH_ACCESS_TOKEN": "local",
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": f"{self.url}/compute/beta/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage/v1/",
            "GOOGLE_IAM_BETA_CUSTOM_ENDPOINT": f"{self.url}/iam/v1/",
            "GOOGLE_IAM_CREDENTIALS_CUSTOM_ENDPOINT": f"{self.url}/iamcredentials/v1/",
            "GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT": f"{self.url}/cloudresourcemanager/v1/",
            "GOOGLE_SECRET_MANAGER_CUSTOM_ENDPOINT": f"{self.url}/secretmanager/v1/",
            "STORAGE_EMULATOR_HOST": self.url,
            # So that gcloud does not reach a real project from this shell either.
            "CLOUDSDK_CONFIG": str(home / "gcloud"),
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": (
                f"{self.url}/cloudresourcemanager/"
            ),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM": f"{self.url}/iam/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"{self.url}/secretmanager/",
        }

    def stop(self) -> None:
        """Ends it and its VMs; returns when its process has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            handle = -1
        try:
            # The handle keeps referring to the cloud, even if another process gets its pid.
            if handle >= 0 and (self.process or _is_cloud(self.pid, self.state)):
                self._end(handle)
        finally:
            if handle >= 0:
                os.close(handle)
        if self.process:
            self.process.wait()

    def _end(self, handle: int) -> None:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        ended, _, _ = select.select([handle], [], [], STOP_TIMEOUT_SEC)
        if not ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            raise CloudError(f"local cloud {self.pid}: did not end in time and was killed.")


def _groups(place: str) -> str:
    """The path of the groups of a zone or region."""
    scope = "zones" if re.search("-[a-z]$", place) else "regions"
    return f"/compute/v1/projects/{PROJECT}/{scope}/{place}/instanceGroupManagers"


def find(state: Path) -> LocalCloud | None:
    """The local cloud of this state folder; None if none is running."""
    try:
        kept = json.loads((state / "endpoint.json").read_bytes())
        found = LocalCloud(state, int(kept["pid"]), int(kept["port"]), int(kept["provider_port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_cloud(found.pid, state) else None


def start(
    state: Path,
    parts: Parts,
    *,
    port: int = 0,
    pace: Pace = Pace(),  # noqa: B008 - frozen
    guest_env: Mapping[str, str] | None = None,
    guests: bool = True,
    guest_images: Mapping[str, Path] | None = None,
    dies_with_us: bool,
) -> LocalCloud:
    """Starts a local cloud; returns when it is ready.

    `dies_with_us`: it ends when this process does, in any way; otherwise it runs in a separate
    session until it is stopped. Without `guests`, VMs come and go, but nothing runs on them. With
    `guest_images`, by project and family, VMs are machines of QEMU. Raises CloudError, with the
    reason, if one is already running there or it does not start.
    """
    if (running := find(state)) is not None:
        raise CloudError(
            f"local cloud {running.pid}: is already running at {running.url} on {state}; "
            "stop it first (outlast cloud stop)."
        )
    try:
        fresh = not state.exists()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(state):
            raise CloudError(f"state {state}: is a link, or another user's; name another folder.")
        log = state / "cloud.log"
        new_log = not log.exists()
        sink = open(os.open(log, LOG_FLAGS, 0o600), "ab")  # noqa: SIM115 - closed below
        said_before = sink.tell()
    except OSError as error:
        raise CloudError(f"state {state}: {error.strerror}; name another folder.") from None
    command = [parts.python, "-m", "outlast.localcloud", "serve", "--state", str(state)]
    command += ["--port", str(port), "--project", PROJECT]
    images = guest_images or {IMAGE_FAMILY: parts.image}
    for family, folder in images.items():
        command += ["--image", f"{family}={folder}"]
    if guest_images:
        command += ["--guest", "vm"]
    command += ["--notice-sec", str(pace.notice_sec), "--grace-sec", str(pace.grace_sec)]
    for name, value in (guest_env or {}).items():
        command += ["--guest-env", f"{name}={value}"]
    if not guests:
        command.append("--no-guests")
    if dies_with_us:
        command += ["--parent-pid", str(os.getpid())]
    with sink:
        # A separate session in both cases: we handle Ctrl-C and stop it in order.
        process = subprocess.Popen(
            command,
            cwd=PACKAGE.parent,
            env={**scrubbed(), **_token()},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_SEC
    try:
        # Files of an earlier cloud, or of one started at the same moment, belong to another
        # process: leave them alone.
        while (found := find(state)) is None or found.pid != process.pid:
            if process.poll() is not None:
                why = _last_line(log, said_before)
                if (
                    new_log and not (state / "lock").exists()
                ):  # It was refused, so leave the folder as it was.
                    log.unlink(missing_ok=True)
                if fresh and not any(state.iterdir()):
                    state.rmdir()
                raise CloudError(f"local cloud: did not start: {why}")
            if time.monotonic() > deadline:
                raise CloudError(f"local cloud: not ready in {START_TIMEOUT_SEC} s; see {log}.")
            time.sleep(0.02)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    for line in _lines_of(log, said_before):
        if line.startswith(NOTE):
            say(line, err=True)
    return replace(found, process=process)


TOKEN_VARIABLE = "OUTLAST_REHEARSAL"
"""Set in every process that a rehearsal starts, so that its end finds all of them."""


def _token() -> dict[str, str]:
    value = os.environ.get(TOKEN_VARIABLE)
    return {TOKEN_VARIABLE: value} if value else {}


def _is_own(state: Path) -> bool:
    """Whether this is the user's own folder and not a link."""
    found = state.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_cloud(pid: int, state: Path) -> bool:
    """Whether this pid is this user's cloud on this folder, and not a later process with the same
    pid.
    """
    try:
        if not _is_own(state) or Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return False
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        served = command[command.index(b"--state") + 1]
        folder = Path(os.readlink(f"/proc/{pid}/cwd"), os.fsdecode(served))
        return b"outlast.localcloud" in command and b"serve" in command and folder.samefile(state)
    except (OSError, ValueError, IndexError):
        return False


def _lines_of(log: Path, start: int) -> list[str]:
    return log.read_bytes()[start:].decode(errors="replace").strip().splitlines()


def _last_line(log: Path, start: int) -> str:
    """The last line of a log from a byte on, without those of a cloud that runs: of two that start
    on one folder, the other may have written last."""
    lines = [line for line in _lines_of(log, start) if not line.startswith((RUNS, NOTE))]
    return (
        lines[-1]
        if lines
        else f"it printed nothing; see: {sys.executable} -m outlast.localcloud serve"
    )
