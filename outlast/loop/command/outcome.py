"""Decides after a command's end what is kept and what becomes the result."""

import contextlib
import time

from outlast.base import codec
from outlast.loop.command import results
from outlast.loop.command.command import Command
from outlast.loop.command.errors import NoOutput, ResultTooLarge
from outlast.loop.command.folders import Folders
from outlast.loop.command.handover import Handover
from outlast.loop.command.listing import look
from outlast.loop.command.saves import Saves
from outlast.loop.command.work import (
    FILES_AT_END_MAX,
    Produced,
    TooMuch,
    WorkFolder,
    size_text,
)
from outlast.loop.errors import CheckpointFailed, LoopError
from outlast.loop.local import STOP_SEC
from outlast.loop.session import Session
from outlast.loop.words import say
from outlast.protocol import Welcome
from outlast.spec.result import METRICS_FILE

HAND_OVER_SEC = 30.0
"""Seconds after a failure to hand over a checkpoint that was waiting."""


class Outcome:
    """Examines what a command has left in its folders and hands it over."""

    def __init__(
        self,
        command: Command,
        places: Folders,
        session: Session,
        welcome: Welcome,
        saves: Saves,
        handover: Handover,
        workplace: WorkFolder,
        *,
        is_local: bool,
    ) -> None:
        """``is_local``: the output goes to a person, who gets to know what the run resumes from."""
        self._command = command
        self._places = places
        self._session = session
        self._welcome = welcome
        self._saves = saves
        self._handover = handover
        self._workplace = workplace
        self._is_local = is_local
        self._saved_at_exit: object = None
        self._result_at_exit: object = None
        """Its result when the command had exited; None if there was none."""

    def note_exit(self) -> None:
        """Note that the command has exited; processes that it started may still be running."""
        self._saved_at_exit = self._saved_now()
        self._result_at_exit = self._result_now()

    @property
    def has_changed(self) -> bool:
        """Whether anything was saved or written since ``note_exit``."""
        return (
            self._saved_now() != self._saved_at_exit or self._result_now() != self._result_at_exit
        )

    def hand_over_last(self) -> None:
        """After a failure, hand over the last checkpoint from before it."""
        with contextlib.suppress(CheckpointFailed):  # the command's own failure matters more
            until_sec = time.monotonic() + HAND_OVER_SEC
            self._handover.finish(self._saves.step, until_sec)
            if self._is_local:  # so that a person sees what the run resumes from
                self._session.wait_committed(max(0.0, until_sec - time.monotonic()))
        self._handover.drop()

    def continues(self) -> str:
        """What the next attempt starts from, as the end of a sentence."""
        session = self._session
        if self._welcome.restore is not None or session.commit_sec is not None or session.busy:
            return "the same command resumes from its last checkpoint"
        if not look(self._places.checkpoint, self._command.kinds).chosen().state:
            return "it had written no checkpoint, so the same command starts from scratch"
        how = f"it holds still for {self._command.quiet_sec:g} s, or outlast mark says so"
        rule = "" if self._saves.said else f" (CHECKPOINT_DIR is once {how})"
        return f"no checkpoint was complete yet{rule}, so the same command starts from scratch"

    def complete(self, at_work: str | None) -> None:
        """Complete the run. The last checkpoint goes first, because the upload of a result may be
        interrupted. ``at_work`` names the processes that the command left at work, if any."""
        if at_work is not None and not self._says_its_end:
            self._saves.take_last(saved=False)
            self.hand_over_last()
            raise LoopError(self._left_at_work(at_work))
        for sentence in results.tidy_result(self._places.result, without=self._places.data):
            say(sentence)
        try:
            produced = self._workplace.produced()
        except TooMuch:
            self.hand_over_last()
            raise ResultTooLarge(self._too_many()) from None
        has_result = bool(look(self._places.result).files)
        limit = int(self._command.result_gb_max * 10**9)
        is_large = produced.size > limit
        # On a laptop the files stay in place.
        if has_result and (is_large or self._command.cwd is not None):
            if is_large and self._command.cwd is None:
                say(
                    f"the working folder has {size_text(produced.size)} of new files beside "
                    f"RESULT_DIR; only models among them are kept, not {produced.largest()}"
                )
            produced = produced.models
        from_checkpoint = not has_result and not produced.is_output
        allowed = self._command.allow_no_output
        self._saves.take_last(saved=True, ended=True, is_result=from_checkpoint, even_old=allowed)
        had_ended = self._saves.had_ended and bool(look(self._places.checkpoint).files)
        has_output = self._saves.has_new or has_result or produced.is_output or had_ended
        try:
            if not has_output and not allowed:
                raise NoOutput(self._no_output())
            if produced.size > limit:
                raise ResultTooLarge(self._too_large(produced, limit))
        except LoopError:
            self.hand_over_last()
            raise
        if self._handover.is_waiting:
            self._session.wait_committed(STOP_SEC)
            self._handover.finish(self._saves.step, time.monotonic() + HAND_OVER_SEC)
            self._handover.drop()
        self._make_result(produced, with_checkpoint=not has_result)
        self._session.complete(self._saves.step, self._places.result, 0)

    @property
    def _says_its_end(self) -> bool:
        """Whether a result existed when the command exited and is unchanged since."""
        return self._result_at_exit is not None and self._result_now() == self._result_at_exit

    def _saved_now(self) -> object:
        return look(self._places.checkpoint, self._command.kinds).state

    def _result_now(self) -> object:
        """The contents of RESULT_DIR, or else the new files in the working folder (only models, if
        there are any). None if there are none."""
        found = look(self._places.result)
        if found.files or found.links:
            return found.files, found.links
        with contextlib.suppress(TooMuch):
            produced = self._workplace.produced()
            if produced.is_output:
                return produced.models.files or produced.files
        return None

    def _no_output(self) -> str:
        resumed = self._welcome.restore is not None
        since = " since it resumed" if resumed else ""
        reason = "it had finished before" if resumed else "the command should leave nothing"
        return (
            f"the command exited with 0 and left nothing{since}: no new checkpoint, RESULT_DIR is "
            f"empty, and its working folder has no new file. If {reason}, allow that "
            "(--allow-no-output, outlast:allowNoOutput)"
        )

    def _left_at_work(self, named: str) -> str:
        return (
            "the command exited with 0 while its background processes were still working:"
            f" {named}. Let "
            "it wait for them (wait), or write its result into RESULT_DIR before it exits"
        )

    def _too_large(self, produced: Produced, limit: int) -> str:
        size = size_text(produced.size)
        return (
            f"the new files in the working folder {self._places.cwd} have {size}, more than the "
            f"{size_text(limit)} that become a result automatically: {produced.largest()}. Let the "
            "command write the files to keep into RESULT_DIR, or raise the limit (--result-gb, "
            "outlast:resultGb)"
        )

    def _too_many(self) -> str:
        return (
            f"the working folder {self._places.cwd} holds more than {FILES_AT_END_MAX} files, too "
            "many to become a result automatically; let the command write the files to keep into"
            " RESULT_DIR, and unpack data elsewhere"
        )

    def _make_result(self, produced: Produced, *, with_checkpoint: bool) -> None:
        """Make the result from files outside RESULT_DIR."""
        own = self._command.source is not None
        last = look(self._places.checkpoint, self._command.kinds).chosen()
        if with_checkpoint and last.files:
            say("RESULT_DIR is empty: the files of CHECKPOINT_DIR become the result")
            keeps = bool(self._command.checkpoint_dir) and not own
            results.add_checkpoint(
                self._places.result, self._places.checkpoint, last, move=not keeps
            )
        if produced.files:
            results.add_work(self._places.result, self._places.cwd, produced, move=own)
            names = ", ".join(list(produced.files)[:3]) + (", …" if len(produced.files) > 3 else "")
            say(f"new files in the working folder become the result: {names}")
        if produced.data:
            say(f"new files in {', '.join(produced.data)} are data, and left out of the result")
        results.tidy_result(self._places.result, without=self._places.data)
        if not look(self._places.result).files:
            say("the result holds no file of the command")
            no_metrics = codec.canonical_json({"step": []}) + b"\n"
            (self._places.result / METRICS_FILE).write_bytes(no_metrics)
        for kind, glob in self._saves.unmatched_globs:
            say(f"glob {glob!r} ({kind}): matched no file of CHECKPOINT_DIR")
