"""Mutants of the named scenarios: the same code with one safeguard removed.

Each is a change of a few lines of the source. In a copy of the checkout that has it, the mutant's
scenario must find the guarantee broken; one that stays green under its mutant tests nothing.
A scenario with several faults may have several mutants.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKED = (".venv", "outlast/cli/hosts")
"""What a copy has of the checkout itself: made by `make setup`, and untouched by a mutant."""
LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv*", ".outlast", "hosts", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
)


@dataclass(frozen=True)
class Edit:
    """A text that is there once, and what stands there instead."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """ValueError: the text is not there just once; the source has changed."""
        path = root / self.file
        text = path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}: holds {found} times, must hold once:\n{self.old}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Mutant:
    """One safeguard less."""

    breaks: str
    """The guarantee that the scenario must find broken."""
    about: str
    edits: tuple[Edit, ...]


def copy_of_checkout(to: Path) -> Path:
    """A copy that runs: `PYTHONPATH` set to it, its commands come from it."""
    shutil.copytree(ROOT, to, ignore=LEFT_OUT, symlinks=True)
    for name in LINKED:
        (to / name).symlink_to(ROOT / name, target_is_directory=True)
    return to


OLDEST = Edit(
    "outlast/bucket/commit.py",
    "        for checkpoint in self._newest_first(head, lost):\n            try:\n"
    "                manifest, found = self._reader.read(checkpoint, into, place)\n",
    "        for checkpoint in reversed(list(self._newest_first(head, lost))):\n            try:\n"
    "                manifest, found = self._reader.read(checkpoint, into, place)\n",
)
_ONLY_SAID = Mutant(
    "warning-answered",
    "a warning of maintenance is only said",
    (
        Edit(
            "outlast/supervisor/trainer_loop.py",
            "                self._maintenance_at = time.monotonic()\n",
            "",
        ),
    ),
)
MUTANTS: Mapping[str, tuple[Mutant, ...]] = {
    "baseline": (
        Mutant(
            "no-boot-after-end",
            "a finished run powers its VM off and leaves it in the group",
            (
                Edit(
                    "outlast/supervisor/jobs.py",
                    'return Outcome(Next.LEAVE, Reason.DONE, f"done at step ',
                    'return Outcome(Next.STOP, Reason.DONE, f"done at step ',
                ),
            ),
        ),
    ),
    "storm": (
        Mutant(
            "notice-loses-nothing",
            "a notice stops the trainer without a last snapshot",
            (
                Edit(
                    "outlast/supervisor/shutdown.py",
                    "wanted = found.plan.new\n",
                    "wanted = False\n",
                ),
            ),
        ),
    ),
    "no-notice": (
        Mutant(
            "resumed",
            "a restore that finds no checkpoint starts from scratch in silence",
            (
                Edit(
                    "outlast/bucket/commit.py",
                    "        head = self._head_file.held(self.term)\n        if not head.kept:\n",
                    "        head = self._head_file.held(self.term)\n        if True:\n",
                ),
            ),
        ),
    ),
    "daily-preemption": (
        Mutant(
            "same-bytes",
            "the trainer forgets its optimiser's memory in its state",
            (Edit("trainers/dummy.py", '        "velocity": state.velocity,\n', ""),),
        ),
    ),
    "stockout": (
        Mutant(
            "no-failure-counted",
            "a term that ended without a word counts as the user's failure",
            (
                Edit(
                    "outlast/bucket/boot.py",
                    "head, placement=claim.placement, term=head.term + 1, ",
                    "head, failures=head.failures + 1, placement=claim.placement, "
                    "term=head.term + 1, ",
                ),
            ),
        ),
    ),
    "quota": (
        Mutant(
            "committed-kept",
            "a restore takes the oldest checkpoint that is kept",
            (OLDEST,),
        ),
    ),
    "command-storm": (
        Mutant("committed-kept", "a restore takes the oldest checkpoint that is kept", (OLDEST,)),
    ),
    "zombie": (
        Mutant(
            "head-never-goes-back",
            "a commit swaps whatever HEAD is there, without a look at its term",
            (
                Edit(
                    "outlast/bucket/headfile.py",
                    "written = self.store.put(self.layout.head, data, "
                    "if_generation_match=generation)",
                    "written = self.store.put(self.layout.head, data)",
                ),
                Edit(
                    "outlast/supervisor/heartbeat.py",
                    "                self._head_file.check(term=self._term)\n",
                    "",
                ),
            ),
        ),
    ),
    "flaky-storage": (
        Mutant(
            "only-faults-end-attempts",
            "a call that the store refuses for a moment is not repeated, nor is the commit",
            (
                Edit(
                    "outlast/supervisor/on_vm.py",
                    "Limits(silent_sec=timeouts.silence, ",
                    "Limits(silent_sec=0.0, ",
                ),
            ),
        ),
        Mutant(
            "stalls-retried",
            "an answer that does not come is waited for without end",
            (
                Edit(
                    "outlast/bucket/store/gcs.py",
                    "self._timeout: Any = (stall_sec, 2 * stall_sec)",
                    "self._timeout: Any = (None, None)",
                ),
            ),
        ),
    ),
    "death-in-boot": (
        Mutant(
            "resumed",
            "the group leaves a VM that has died as it is",
            (
                Edit(
                    "components/healing_group.py",
                    '"default_action_on_failure": "REPAIR"',
                    '"default_action_on_failure": "DO_NOTHING"',
                ),
            ),
        ),
    ),
    "gpu-lost": (
        Mutant(
            "no-failure-counted",
            "a trainer's death is judged at once, though the machine may be about to stop",
            (
                Edit(
                    "outlast/supervisor/verdict.py",
                    "self.due = now + self._grace_sec\n",
                    "self.due = now\n",
                ),
            ),
        ),
        Mutant(
            "reason-recorded",
            "a trainer that had to stop is judged by its exit code",
            (
                Edit(
                    "outlast/supervisor/verdict.py",
                    "        if leaving.reason is Reason.LIMIT:\n"
                    "            return self._fail(link, Reason.LIMIT, ",
                    "        reason, _ = self._cause(link)\n"
                    "        if reason is not Reason.INTERRUPTED:\n"
                    "            return self._fail(link, reason, ",
                ),
            ),
        ),
    ),
    "death-in-setup": (
        Mutant(
            "each-step-once",
            "each boot counts those before it, also those that were cut off",
            (
                Edit(
                    "startup/boot.sh",
                    "  step::run record-boot boot::record\n",
                    "  step::run record-boot boot::record\n"
                    "  if boots::find_unattempted; then boot::count_unattempted; fi\n"
                    "  boot::leave_if_hopeless\n",
                ),
                Edit("startup/boot.sh", "((count >= MAX_NO_PROGRESS))", "((count >= 2))"),
            ),
        ),
    ),
    "never-started": (
        Mutant(
            "gives-up",
            "the third boot in a row gives up",
            (Edit("startup/boot.sh", "((count >= MAX_NO_PROGRESS))", "((count >= 3))"),),
        ),
    ),
    "storage-gone": (
        Mutant(
            "no-vm-left",
            "a silence of storage makes no boot leave",
            (
                Edit(
                    "startup/lib.sh",
                    "  elif http::is_undecided && [[ -z $LAST_WORDS ]]; then",
                    "  elif false; then",
                ),
            ),
        ),
    ),
    "hung-trainer": (
        Mutant(
            "retries-as-set",
            "a hang does not count as the trainer's own failure",
            (
                Edit(
                    "outlast/base/exits.py",
                    "frozenset({Reason.USER_FAILED, Reason.OUT_OF_MEMORY, Reason.STALLED})",
                    "frozenset({Reason.USER_FAILED, Reason.OUT_OF_MEMORY})",
                ),
            ),
        ),
    ),
    "out-of-memory": (
        Mutant(
            "failure-recorded",
            "the record of an end does not say why",
            (
                Edit(
                    "outlast/supervisor/attempt.py",
                    "                message=outcome.message,\n                stderr=",
                    '                message="",\n                stderr=',
                ),
            ),
        ),
    ),
    "user-error": (
        Mutant(
            "retries-as-set",
            "one retry more than was asked for",
            (
                Edit(
                    "outlast/bucket/headfile.py",
                    "return counted.failures <= retries\n",
                    "return counted.failures <= retries + 1\n",
                ),
            ),
        ),
    ),
    "failed-self-removal": (
        Mutant(
            "no-boot-after-end",
            "a VM that may not leave its group powers off all the same",
            (
                Edit(
                    "outlast/supervisor/group.py",
                    "        if isinstance(answer, Left):\n"
                    '            _log.info(f"left the group: {answer.why}")\n'
                    "            return answer\n",
                    "        if isinstance(answer, Left | Refused):\n"
                    '            _log.info(f"left the group: {answer.why}")\n'
                    "            return Left(answer.why)\n",
                ),
            ),
        ),
    ),
    "maintenance": (_ONLY_SAID,),
    "maintenance-moved": (_ONLY_SAID,),
    "zone-failover": (
        Mutant(
            "changes-zone",
            "a regional group recreates a lost VM in its own zone only",
            (
                Edit(
                    "components/healing_group.py",
                    '"on_repair": {"allow_changing_zone": "YES"}',
                    '"on_repair": {"allow_changing_zone": "NO"}',
                ),
            ),
        ),
    ),
    "burst-fails": (
        Mutant(
            "no-boot-after-end",
            "a run that failed powers its VM off and leaves it in the group",
            (
                Edit(
                    "outlast/supervisor/jobs.py",
                    "self._committer.finish(State.FAILED, reason, exit=exit_code)\n"
                    "        return Outcome(Next.LEAVE, reason, message)",
                    "self._committer.finish(State.FAILED, reason, exit=exit_code)\n"
                    "        return Outcome(Next.STOP, reason, message)",
                ),
            ),
        ),
    ),
    "exit-0-on-sigterm": (
        Mutant(
            "done-means-done",
            "exit code 0 means done, also after a stop",
            (
                Edit(
                    "outlast/loop/command/runner.py",
                    "        if self._stop is not None:\n            return self._end_stopped",
                    "        if self._stop is not None and code != exits.DONE:\n"
                    "            return self._end_stopped",
                ),
            ),
        ),
    ),
}
"""By the scenario's name."""
