"""The probes: each asks one of the assumptions about Google.

A probe asks Google's public API, or a VM of ten minutes at most, and answers *holds*, *does not
hold*, or *could not be asked*. Three assumptions are answered by the rehearsal's own run.
"""

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.base.exits import Reason
from outlast.bucket.store import Store, StoreError, put_new
from outlast.cli.errors import RehearsalError
from outlast.cli.rehearsal.google import budget, names
from outlast.cli.rehearsal.google.assumptions import ASSUMPTIONS, OF_THE_RUN, Answer, Outcome
from outlast.cli.rehearsal.google.preflight import meaning
from outlast.cli.rehearsal.rehearsal import Watcher
from outlast.cli.rehearsal.seen import Seen
from outlast.cloud import images
from outlast.cloud.compute import Compute, ComputeError, Json
from outlast.cloud.project import Project
from outlast.spec import permissions, startup_script

GROUP_LIMIT_SEC = 150.0
"""From the template of the group's VM to its run limit: two minutes of life on a slow day."""
GRACE_SEC = 90.0
"""What the platform may need to delete a VM at its limit."""
WATCH_SEC = 30.0
"""Seconds after that in which no VM may appear."""
BOOT_SEC = 300.0
"""Seconds for the answers of a VM after its permissions work."""
IAM_SEC = 420
"""Seconds for a new permission to work, which takes minutes (docs/assumptions.md)."""
POLL_SEC = 2.0

PREFIX, OTHER = "probe", "probe-other"
KNOWN = b"known"
PYTHONS = ("3.11", "3.12", "3.13")
_OF_A_GROUP = (
    *("distribution", "shape", "redistribution", "maxsurge", "maxunavailable"),
    *("replacementmethod", "changingzone", "onrepair", "updateonrepair"),
)
"""Words of the fields of a regional group, in lower case."""
_LINE = re.compile(r"outlast-probe ([a-z-]+)=(\S*)")


class Probes:
    """Asks the assumptions in one project, and keeps the answers."""

    def __init__(
        self,
        compute: Compute,
        project: Project,
        store: Store,
        zone: str,
        image: str,
        watcher: Watcher,
    ) -> None:
        self._compute = compute
        self._project = project
        self._store = store
        self._zone = zone
        self._image = image
        self._watcher = watcher
        self._answers: dict[str, Answer] = {}
        self._group_until: datetime | None = None
        self.limit_sec, self.watch_sec = GROUP_LIMIT_SEC, WATCH_SEC

    def ask(self) -> None:
        """Asks everything that needs no run. Creates VMs; `Leftovers` deletes what is left.
        Raises RehearsalError if the credentials are refused.
        """
        for name, probe in (
            ("image-fits", self._ask_image),
            ("soft-delete-off", self._ask_bucket),
            ("old-template", self._start_group),
            ("regional-group", self._ask_regional),
            ("e2-must-migrate", self._ask_e2),
            ("spot-notice", self._ask_vm),
            ("run-limit", self._watch_limit),
        ):
            try:
                probe()
            except ComputeError as error:
                if error.status == 401:
                    raise RehearsalError(meaning(self._project.project, error)) from None
                self._unasked(name, error)
            except StoreError as error:
                self._unasked(name, error)

    def _unasked(self, name: str, error: Exception) -> None:
        """Notes why a probe stopped, unless it has answered before that."""
        if name not in self._answers:
            self._answer(name, None, str(error))

    def ask_run(self, seen: Seen) -> None:
        """Answers what the run has shown."""
        hit = {fault.do: seen.attempt_of(fault) for fault in seen.effective}
        preempted, deleted = hit.get("preempt"), hit.get("delete")
        if preempted is None or preempted.reason is Reason.DONE:
            self._answer("simulated-preemption", None, "no attempt was preempted")
        else:
            found = f"attempt {preempted.term} ended as {preempted.reason}"
            held = preempted.reason is Reason.PREEMPTED
            self._answer("simulated-preemption", held, found)
        later = next((a for a in seen.run.attempts if deleted and a.term > deleted.term), None)
        if deleted is None or later is None:
            self._answer("deleted-vm", None, "no VM was deleted, or no attempt came after it")
        else:
            found = f"{deleted.instance}, then {later.instance}"
            self._answer("deleted-vm", deleted.instance == later.instance, found)
        if seen.run.head is None or not seen.run.head.state.ended:
            self._answer("leaving", None, "the run has not ended")
        else:
            sizes = ", ".join(str(size) for size in seen.sizes.values())
            held = all(size == 0 for size in seen.sizes.values())
            self._answer("leaving", held, f"group sizes {sizes}")

    def answers(self, *, with_run: bool) -> list[Answer]:
        """One answer for each assumption, in the list's order."""
        asked = [name for name in ASSUMPTIONS if with_run or name not in OF_THE_RUN]
        unasked = "an earlier step failed"
        return [
            self._answers.get(name) or Answer(ASSUMPTIONS[name], Outcome.UNASKED, unasked)
            for name in asked
        ]

    def _answer(self, name: str, held: bool | None, seen: str) -> None:
        outcome = {True: Outcome.HOLDS, False: Outcome.FAILS, None: Outcome.UNASKED}[held]
        self._answers[name] = Answer(ASSUMPTIONS[name], outcome, seen)
        self._watcher.say(f"assumption {name}: {outcome} ({seen})")

    # The API alone

    def _ask_image(self) -> None:
        found = images.resolve(self._image, self._project.project)
        if isinstance(found, images.Unknown):
            self._answer("image-fits", None, found.why)
        elif isinstance(found, images.ImageMissing):
            self._answer("image-fits", False, found.why)
        else:
            held = found.usable and found.size_gb <= names.DISK_GB
            self._answer("image-fits", held, f"{found.name}, {found.size_gb} GB, {found.state}")

    def _ask_bucket(self) -> None:
        found = self._project.bucket(names.bucket_of(self._project.project)) or {}
        seconds = (found.get("softDeletePolicy") or {}).get("retentionDurationSeconds", "0")
        self._answer("soft-delete-off", int(seconds) == 0, f"{seconds} s")

    def _ask_regional(self) -> None:
        name = f"{names.PROBE}-regional"
        group = {
            "name": name,
            "baseInstanceName": name,
            "targetSize": 0,
            "versions": [{"instanceTemplate": _template(2)}],
            "distributionPolicy": {"targetShape": "ANY"},
            "updatePolicy": {**_update_policy(4), "instanceRedistributionType": "NONE"},
            "instanceLifecyclePolicy": {
                "defaultActionOnFailure": "REPAIR",
                "forceUpdateOnRepair": "YES",
                "onRepair": {"allowChangingZone": "YES"},
            },
        }
        path = f"regions/{names.region_of(self._zone)}/instanceGroupManagers"
        self._accepted("regional-group", path, group, _OF_A_GROUP)
        self._compute.order("DELETE", f"{path}/{name}", limit_sec=BOOT_SEC)

    def _ask_e2(self) -> None:
        name = f"{names.PROBE}-e2"
        body = self._vm(name, spot=False) | {
            "scheduling": {
                "provisioningModel": "STANDARD",
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
                **_limit(),
            }
        }
        path = f"zones/{self._zone}/instances"
        try:
            self._compute.order("POST", path, body, limit_sec=BOOT_SEC)
        except ComputeError as error:
            about = "onHostMaintenance" in str(error) or "maintenance" in str(error).lower()
            self._answer("e2-must-migrate", True if about else None, str(error))
        else:
            self._compute.order("DELETE", f"{path}/{name}", limit_sec=BOOT_SEC)
            self._answer("e2-must-migrate", False, "it was created")

    def _accepted(
        self, name: str, path: str, body: Mapping[str, Any], about: tuple[str, ...]
    ) -> None:
        """Answers that a call is accepted, or that it is refused because of a field that `about`
        names. Any other refusal says nothing about the assumption. Raises ComputeError in both
        cases.
        """
        try:
            self._compute.order("POST", path, body, limit_sec=BOOT_SEC)
        except ComputeError as error:
            said = str(error).lower()
            refused = error.status == 400 and any(word in said for word in about)
            self._answer(name, False if refused else None, str(error))
            raise
        self._answer(name, True, "accepted")

    # A VM

    def _ask_vm(self) -> None:
        project = self._project
        email = project.create_account(names.PROBE, "Outlast: probe of a rehearsal")
        bucket = names.bucket_of(project.project)
        for path in (f"{PREFIX}/known", OTHER):
            put_new(self._store, path, KNOWN)
        project.grant(
            bucket,
            {
                "role": "roles/storage.objectUser",
                "members": [f"serviceAccount:{email}"],
                "condition": {
                    "title": "outlast-own-prefix",
                    "expression": permissions.below(bucket, PREFIX),
                },
            },
        )
        body = self._vm(names.PROBE, spot=True) | {
            "serviceAccounts": [
                {"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
            ],
            "metadata": _metadata(
                {
                    "startup-script": startup_script.read("probe.sh"),
                    "enable-guest-attributes": "TRUE",
                    "block-project-ssh-keys": "TRUE",
                    "outlast-probe-bucket": bucket,
                    "outlast-probe-prefix": PREFIX,
                    "outlast-probe-other": OTHER,
                    "outlast-probe-wait": str(IAM_SEC),
                }
            ),
        }
        path = f"zones/{self._zone}/instances"
        self._accepted("spot-notice", path, body, ("notice", "scheduling", "maxrunduration"))
        found = self._read_vm(f"{path}/{names.PROBE}")
        self._judge_vm(found)
        self._judge_attributes(f"{path}/{names.PROBE}", found)
        self._compute.order("DELETE", f"{path}/{names.PROBE}", limit_sec=BOOT_SEC)

    def _read_vm(self, path: str) -> dict[str, str]:
        """The VM's answers so far, once it has given the last one or its time is up."""
        deadline = time.monotonic() + IAM_SEC + BOOT_SEC
        found: dict[str, str] = {}
        while "end" not in found and time.monotonic() < deadline:
            time.sleep(POLL_SEC)
            answer = self._compute.find(f"{path}/serialPort")
            if answer is None:
                break  # Its run limit has come.
            found = dict(_LINE.findall(str(answer.get("contents") or "")))
        return found

    def _judge_vm(self, found: Mapping[str, str]) -> None:
        if not found:
            for name in ("first-boot", "preempted-flag", "absent-object", "own-prefix"):
                self._answer(name, None, "the VM wrote no answer to its serial port")
            return
        python, venv = found.get("python", "none"), found.get("venv", "none")
        held = python in PYTHONS and venv == "ok"
        self._answer("first-boot", held, f"Python {python}, virtual environment {venv}")
        flag = found.get("preempted", "none")
        self._answer("preempted-flag", flag in ("FALSE", "TRUE"), flag)
        if found.get("known") != "200":
            seen = f"status {found.get('known', 'none')} for its own object after {IAM_SEC} s"
            self._answer("absent-object", None, seen)
            self._answer("own-prefix", None if "known" not in found else False, seen)
            return
        absent = found.get("absent", "none")
        held = {"404": True, "403": False}.get(absent)
        self._answer("absent-object", held, f"status {absent}")
        statuses = [found.get(key, "none") for key in ("list", "list-all", "other")]
        seen = "list {}, list everything {}, another object {}".format(*statuses)
        seen += f"; permitted after {found.get('granted-sec', '?')} s"
        self._answer("own-prefix", statuses == ["200", "403", "403"], seen)

    def _judge_attributes(self, path: str, found: Mapping[str, str]) -> None:
        try:
            answer = self._compute.call(
                "GET", f"{path}/getGuestAttributes?queryPath=outlast-probe/"
            )
        except ComputeError as error:
            self._answer("guest-attributes", False if found else None, str(error))
            return
        items = (answer.get("queryValue") or {}).get("items") or ()
        read = {str(one["key"]): str(one["value"]) for one in items}
        same = bool(found) and {key: read.get(key) for key in found} == dict(found)
        self._answer("guest-attributes", same, f"{len(read)} of {len(found)} answers")

    # A group

    def _start_group(self) -> None:
        """Creates a group with one VM, gives it another template, and deletes the first."""
        until = (datetime.now(UTC) + timedelta(seconds=self.limit_sec)).replace(microsecond=0)
        scheduling = {
            **_spot(),
            "instanceTerminationAction": "DELETE",
            "terminationTime": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        for number in (1, 2):
            self._create_template(number, scheduling)
        name = f"{names.PROBE}-group"
        path = f"zones/{self._zone}/instanceGroupManagers"
        body: Json = {
            "name": name,
            "baseInstanceName": name,
            "targetSize": 1,
            "versions": [{"name": "trainer", "instanceTemplate": _template(1)}],
            "updatePolicy": _update_policy(1),
        }
        self._compute.order("POST", path, body, limit_sec=BOOT_SEC)
        if not self._has_vm_before(until):
            self._answer("old-template", None, "the group got no VM before its run limit")
            self._answer("run-limit", None, "the group got no VM before its run limit")
            return
        self._group_until = until
        versions = [{"name": "trainer", "instanceTemplate": _template(2)}]
        self._compute.order("PATCH", f"{path}/{name}", {"versions": versions}, limit_sec=BOOT_SEC)
        try:
            self._compute.order("DELETE", _template(1), limit_sec=BOOT_SEC)
        except ComputeError as error:
            used = "in use" in str(error).lower() or "already being used" in str(error).lower()
            self._answer("old-template", False if used else None, str(error))
        else:
            self._answer("old-template", True, "it was deleted")

    def _create_template(self, number: int, scheduling: Mapping[str, Any]) -> None:
        name = _template(number).rpartition("/")[2]
        vm = self._vm(name, spot=True)
        # In a template, types are bare names. Source: machineType of InstanceProperties in the
        # discovery document compute v1 of 6 November 2026.
        disk = vm["disks"][0]
        disk["initializeParams"]["diskType"] = names.DISK_TYPE
        properties = {
            **{key: vm[key] for key in ("labels", "disks", "networkInterfaces")},
            "machineType": budget.PROBE_TYPE,
            "scheduling": scheduling,
        }
        body = {"name": name, "properties": properties}
        operation = self._compute.call("POST", "global/instanceTemplates", body, timeout_sec=60)
        link = str(operation["selfLink"])
        held = f"/projects/{self._project.project}/" in link
        if "operation-paths" not in self._answers:
            shown = link.partition("/projects/")[2].replace(self._project.project, "PROJECT")
            self._answer("operation-paths", held, shown)
        deadline = time.monotonic() + BOOT_SEC
        while self._compute.find(_template(number)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SEC)

    def _group_vms(self) -> list[Json]:
        listed = self._compute.listed(f"zones/{self._zone}/instances")
        return [one for one in listed if one["name"].startswith(f"{names.PROBE}-group-")]

    def _has_vm_before(self, until: datetime) -> bool:
        """Whether the group's VM runs before a time."""
        while datetime.now(UTC) < until:
            if any(one["status"] == "RUNNING" for one in self._group_vms()):
                return True
            time.sleep(POLL_SEC)
        return False

    def _watch_limit(self) -> None:
        """Looks whether the group's VM is deleted at its limit, and whether another one comes."""
        until = self._group_until
        if until is None:
            return
        self._watcher.say(f"waiting for the run limit of the probe's group, {until:%H:%M:%S} UTC")
        left = self._group_vms()
        last = until + timedelta(seconds=GRACE_SEC)
        while left and datetime.now(UTC) < last:
            time.sleep(POLL_SEC)
            left = self._group_vms()
        late = (datetime.now(UTC) - until).total_seconds()
        if late < 0:
            self._answer("run-limit", None, f"its VM was gone {-late:.0f} s before the limit")
            return
        if left:
            self._answer("run-limit", False, f"its VM still exists {late:.0f} s after the limit")
            return
        deadline = time.monotonic() + self.watch_sec
        while time.monotonic() < deadline:
            if came := self._group_vms():
                self._answer("run-limit", False, f"{came[0]['name']} came after the limit")
                return
            time.sleep(POLL_SEC)
        self._answer("run-limit", True, f"no VM {late + self.watch_sec:.0f} s after the limit")

    def _vm(self, name: str, *, spot: bool) -> Json:
        """The body of a probe's VM."""
        zone = f"zones/{self._zone}"
        labels = {names.LABEL: names.VALUE}
        return {
            "name": name,
            "labels": labels,
            "machineType": f"{zone}/machineTypes/{budget.PROBE_TYPE}",
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {
                        "sourceImage": self._image,
                        "diskSizeGb": str(names.DISK_GB),
                        "diskType": f"{zone}/diskTypes/{names.DISK_TYPE}",
                        "labels": labels,
                    },
                }
            ],
            "networkInterfaces": [
                {
                    "network": "global/networks/default",
                    "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
                }
            ],
            "scheduling": {
                **(_spot() if spot else {"provisioningModel": "STANDARD"}),
                **_limit(),
            },
        }


def _spot() -> Json:
    """The scheduling of a Spot VM as `components/vm_template.py` declares it."""
    return {
        "provisioningModel": "SPOT",
        "preemptible": True,
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptionNoticeDuration": {"seconds": "120"},
    }


def _limit() -> Json:
    seconds = str(budget.PROBE_MINUTES * 60)
    return {"instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": seconds}}


def _update_policy(unavailable: int) -> Json:
    """That of a stack's group, in which so many VMs may be missing at a time."""
    return {
        "type": "OPPORTUNISTIC",
        "minimalAction": "REPLACE",
        "replacementMethod": "RECREATE",
        "maxSurge": {"fixed": 0},
        "maxUnavailable": {"fixed": unavailable},
    }


def _template(number: int) -> str:
    return f"global/instanceTemplates/{names.PROBE}-{number}"


def _metadata(values: Mapping[str, str]) -> Json:
    return {"items": [{"key": key, "value": value} for key, value in values.items()]}
