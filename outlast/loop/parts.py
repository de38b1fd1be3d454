"""Named parts of a run: consecutive trainings of one program.

All parts share one connection and, on a laptop, one supervisor, which are kept between two parts.
On a laptop the end of the program completes the run if the exit code is 0 and every part that has
begun is done.
"""

import atexit
import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.base import exits
from outlast.base.console import flush_streams
from outlast.loop import exit_code, local, notes
from outlast.loop.errors import DoesNotFit, LoopError, NotHere
from outlast.loop.history import History
from outlast.loop.words import say
from outlast.protocol import Channel, Closed, Exit
from outlast.spec.result import PART_FILE, PART_RESULT

Key = tuple[str, str, str]
"""Distinguishes the runs of one program: trainer, run and folder, or the supervisor's socket."""

ENDED_SEC = 10.0
"""Seconds that the end of a program waits for its supervisor to record that the run stays open."""


@dataclass
class Program:
    """The parts of one run that this program trains."""

    model_output_path: str | None
    names: set[str] = field(default_factory=set)
    """The parts that have begun."""
    active: str | None = None
    """The part that is being trained."""
    unfinished: str | None = None
    """The part that was left before it was done."""
    refused: str | None = None
    """A part that was refused; the program may catch that error."""
    channel: Channel | None = None
    """The connection, between two parts."""
    supervisor: local.LocalSupervisor | None = None
    """The supervisor, between two parts on a laptop."""

    def keep(self, channel: Channel, supervisor: local.LocalSupervisor | None) -> None:
        """Note that the active part is done, and keep the connection for another one."""
        self.active, self.channel, self.supervisor = None, channel, supervisor

    def take(self) -> tuple[Channel, local.LocalSupervisor | None]:
        """The previous part's connection and supervisor, for the next part."""
        channel, supervisor = self.channel, self.supervisor
        assert channel is not None
        self.channel = self.supervisor = None
        return channel, supervisor

    def give_up(self, *, done: bool) -> None:
        """Note that an error closes the connection; ``done`` says whether the part is done
        anyway."""
        if not done:
            self.unfinished = self.active
        self.active = None


_programs: dict[Key, Program] = {}
_beginning = threading.Lock()
"""A program may begin parts in several threads, but only one may continue."""
_own: int | None = None
"""The process whose end completes its runs."""


def begin(key: Key, part: str, options: local.Options) -> Program:
    """Begin a part. NotHere if this program must not train it now, LoopError if the previous part
    has failed or the call differs from those of the previous parts."""
    with _beginning:
        program = _programs.setdefault(key, Program(options.model_output_path))
        try:
            _check(program, part, options)
        except LoopError:
            if not local.in_notebook():
                program.refused = part
                finish_at_exit()
            raise
        program.names.add(part)
        program.active, program.unfinished = part, None
        return program


def _check(program: Program, part: str, options: local.Options) -> None:
    if program.active is not None:
        raise NotHere(
            f"part {part!r}: part {program.active!r} is being trained; its `with` block has to end "
            "before another part begins"
        )
    if program.unfinished not in (None, part):
        raise LoopError(
            f"part {part!r}: part {program.unfinished!r} ended before it was done, and a part "
            "can begin when the one before it is done; let the error end the program"
        )
    if part in program.names and not local.in_notebook():
        raise NotHere(
            f"part {part!r}: this program has already begun a part of that name; give each of its "
            "trainings its own name"
        )
    if options.model_output_path != program.model_output_path:
        raise LoopError(
            f"model_output_path {options.model_output_path!r}: was {program.model_output_path!r} "
            "for the run's first part; it applies to the whole run"
        )


def refuse_unnamed(key: Key) -> None:
    """Raise NotHere if this program trains parts of the run, because then all of its trainings need
    a name."""
    if key in _programs:
        names = ", ".join(sorted(_programs[key].names))
        raise NotHere(
            f"outlast.train without part=: this program has trained parts of the run ({names}); "
            "give every training of the run a name, or one of them another run_dir="
        )


def finish_at_exit() -> None:
    """From now on, end this program's runs when it ends: on a laptop only the program knows how it
    ends, and after a refused part exit code 0 would hide the refusal."""
    global _own
    if _own is None:
        _own = os.getpid()
        exit_code.watch()
        atexit.register(_finish_all)


def _finish_all() -> None:
    if os.getpid() != _own:
        return  # a forked child
    codes = [_finish(program, exit_code.find()) for program in _programs.values()]
    if worst := max(codes, default=exits.DONE):
        flush_streams()
        os._exit(worst)  # too late for an exception


def _finish(program: Program, code: int | None) -> int:
    """End a run; return the program's exit code, which is not 0 if the run is not done or its
    result was not kept."""
    if program.unfinished is not None:
        # An unknown code is the program's own in this case, as after Ctrl-C.
        left, what, codes = program.unfinished, "is not", {exits.DONE}
    else:
        left, what, codes = program.refused, "was refused", {exits.DONE, None}
    if left is not None and code in codes:
        say(f"the run is not done, because its part {left!r} {what}; the same command continues it")
        return 1
    channel, supervisor = program.channel, program.supervisor
    if channel is None or supervisor is None:
        return exits.DONE
    program.channel = program.supervisor = None
    if code != exits.DONE:
        channel.close()
        how = "did not reach its end, and did not call sys.exit(0)"
        how = how if code is None else f"ended with exit code {code}"
        say(f"the run stays open, because its program {how}; the same command continues it")
        supervisor.wait(ENDED_SEC)
        return exits.DONE
    try:
        channel.send(Exit(exits.DONE))
        if ended := supervisor.wait_for_commit(lambda: False):
            say(
                f"the run is not done: its supervisor ended with exit code {ended}, and its "
                "message is above; the same command tries again"
            )
        return ended or exits.DONE
    except KeyboardInterrupt:
        say("ended before the run's result was kept; the same command finishes it")
        return exits.INTERRUPTED
    except Closed:
        say(
            "the supervisor was lost before the run's result was kept; the same command finishes it"
        )
        return exits.INTERRUPTED
    finally:
        channel.close()


# The end of a part.


@dataclass(frozen=True)
class Record:
    """The trainer's record of a part's end."""

    step: int
    why: str
    history: dict[str, Any]
    """The result of ``History.summary``; the evaluations are in files beside the record."""


def write(folder: Path, result: Path, step: int, why: str, history: History) -> Path:
    """Write the folder of a finished part: its record and ``result``, which is moved there."""
    temporary = folder.with_name(f"tmp-{folder.name}")
    temporary.mkdir()
    history.write(temporary)
    body = {"step": step, "why": why, "history": history.summary()}
    text = json.dumps(body, allow_nan=False, separators=(",", ":"))
    (temporary / PART_FILE).write_text(text + "\n", encoding="utf-8")
    os.replace(result, temporary / PART_RESULT)
    os.replace(temporary, folder)
    return folder


def read(folder: Path) -> Record:
    """Read a record that ``write`` wrote; DoesNotFit for anything else."""
    try:
        body = json.loads((folder / PART_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DoesNotFit(f"{PART_FILE}: no end of a part ({error!r})") from None
    if (
        type(body) is not dict
        or body.keys() != {"step", "why", "history"}
        or not notes.is_count(body["step"])
        or type(body["why"]) is not str
    ):
        raise DoesNotFit(f"{PART_FILE}: no end of a part, with its step, why and history")
    history = notes.check(body["history"], ("evaluations", "best"), PART_FILE)
    return Record(body["step"], body["why"], history)
