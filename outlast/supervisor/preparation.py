"""Everything that an attempt does before its trainer starts: the permission to leave the group, the
checkpoint to resume from, the start record, the code.
"""

import contextlib
import importlib.metadata
import logging
import platform
from collections.abc import Mapping
from typing import Any

from outlast.base.exits import Reason
from outlast.base.retry import spreading
from outlast.bucket.layout import AttemptStart
from outlast.bucket.parts import is_done, own_step
from outlast.bucket.records import write_record
from outlast.bucket.restore import Fresh, Restored
from outlast.bucket.standing import content_of
from outlast.bucket.store import StoreError
from outlast.spec import changes
from outlast.supervisor.code import CodeRefused, CodeUnavailable
from outlast.supervisor.driver import wait_for_gpus
from outlast.supervisor.group import wait_for_permission
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.initial import InitError, take_over
from outlast.supervisor.kept_wheels import InHead
from outlast.supervisor.site import Next, Outcome

_log = logging.getLogger(__name__)

RECORDED_PACKAGES = ("outlast", "blake3", "google-cloud-storage", "numpy", "scikit-learn")


class Preparation:
    """The steps before an attempt's trainer starts, in this order: `allowed`, `restore`,
    `record_start`, `affordable`, `code`. Raises the errors of HEAD, the store and the disk."""

    def __init__(self, term: HeldTerm) -> None:
        self._spec = term.spec
        self._head_file = term.head_file
        self._site = term.site
        self._committer = term.committer
        self._jobs = term.jobs
        self._budget = term.budget
        self._rooms = term.rooms
        self._term = term.head_file.term

    def allowed(self) -> Outcome | None:
        """An outcome if this machine must not train: it may not leave its group, or its GPUs do not
        answer."""
        timeouts, clock = self._spec.timeouts, self._site.clock
        patience = spreading(clock, timeouts.iam_propagation, timeouts.backoff)
        if not wait_for_permission(self._site.group, patience):
            return Outcome(
                Next.IDLE,
                Reason.REFUSED,
                "this VM may not leave its group, so it must not train: the group would start the "
                "finished run again and again",
            )
        if self._spec.gpus:
            wrong = wait_for_gpus(
                self._spec.gpus, limit_sec=timeouts.driver_install, sleep=clock.sleep
            )
            if wrong is not None and not wrong.installed:
                self._head_file.fail(Reason.DRIVER, term=self._term)
                return Outcome(Next.LEAVE, Reason.DRIVER, wrong.why)
            if wrong is not None:
                return Outcome(Next.STOP, Reason.DRIVER, wrong.why)
        return None

    def restore(self) -> Restored | Outcome | None:
        """The checkpoint to resume from; None to start from scratch; an outcome if the checkpoint
        that the run starts from cannot be used."""
        self._rooms.clear()
        into = self._rooms.given[0] / "restored"
        found = self._committer.restore(into, place=self._rooms.choose)
        if isinstance(found, Fresh) and self._spec.init:
            try:
                found = self._take_over()
            except InitError as error:
                return self._unusable(str(error))
        restored = found if isinstance(found, Restored) else None
        if restored is not None:
            self._rooms.hand_over(restored.path)
        _log.info(f"term {self._term}: {_said(restored)}")
        return restored

    def record_start(self, restored: Restored | None) -> None:
        """Records the start of this attempt, and what was changed since its checkpoint."""
        spec, machine = self._spec.to_json(), self._site.machine
        spec["has_own_user"] = self._site.trainer_user is not None
        store, patience = self._head_file.store, self._head_file.patience
        before = self._content_before(restored)
        if before is not None:
            spec["before"] = before
            changed = changes.said(changes.between(before, self._spec.content))
            _log.info(f"term {self._term}: continues with changes: {changed}")
        start = AttemptStart(
            term=self._term,
            resume=self._spec.resume,
            placement=self._spec.placement,
            instance=machine.instance,
            instance_id=machine.instance_id,
            boot_id=machine.boot_id,
            zone=machine.zone,
            machine_type=machine.machine_type,
            image=machine.image,
            trainer=self._spec.trainer,
            spec=spec,
            versions=_versions(),
            step=restored.step if restored else 0,
            restored=restored.checkpoint.path if restored else None,
            time=patience(store.now),
        )
        path = self._head_file.layout.attempt_start(self._term)
        write_record(store, path, start, patience=patience)

    def affordable(self) -> Outcome | None:
        """An outcome if the run's budget is used up."""
        used_up = self._budget.begin()
        return self._jobs.finish_stopped(used_up, Reason.BUDGET) if used_up else None

    def code(self) -> Outcome | None:
        """Prepares the trainer's code and packages. Returns an outcome if that fails."""
        try:
            self._site.prepare_code(InHead(self._head_file))
        except CodeRefused as error:
            return self._unusable(str(error))
        except CodeUnavailable as error:
            return Outcome(Next.STOP, Reason.SETUP_FAILED, str(error))
        return None

    def _unusable(self, message: str) -> Outcome:
        """The outcome if the initial checkpoint or the code cannot be used: a retry would fail
        too."""
        if self._site.restarts:
            return self._jobs.finish_failed(Reason.USAGE, message, None)
        return Outcome(Next.STOP, Reason.USAGE, message)

    def _content_before(self, restored: Restored | None) -> Mapping[str, Any] | None:
        """The content that made the restored checkpoint, if this attempt has a different one; None
        if it is the same or not known."""
        if restored is None or not self._spec.content:
            return None
        store, layout = self._head_file.store, self._head_file.layout
        with contextlib.suppress(StoreError):
            before = content_of(store, layout, restored.checkpoint.term)
            if before and before != self._spec.content:
                return before
        return None

    def _take_over(self) -> Restored:
        return take_over(
            self._committer,
            self._spec.init,
            self._rooms.given[0] / "restored",
            place=self._rooms.choose,
            patience=self._head_file.patience,
            payer=self._site.data.payer,
        )


def _said(restored: Restored | None) -> str:
    if restored is None:
        return "starts from scratch"
    entry = restored.checkpoint
    if is_done(entry):
        return f"resumes after part {entry.part}"
    of = f" of part {entry.part}" if entry.part else ""
    return f"resumes at step {own_step(entry)}{of}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
