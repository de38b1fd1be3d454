"""The supervisor's entries, and its life: the table at boot, attempts, leaving.

    python -P -m outlast.supervisor vm                               on a VM, from its metadata
    python -m outlast.supervisor folder --run-dir DIR --socket PATH --trainer NAME --run ID
                                                              for a trainer on this computer, in a
                                                              folder or a bucket
    python -m outlast.supervisor fetch URL --into DIR      a result, or data, as a local path

Exit codes are those of outlast/base/exits.py: 0 the run has ended or this machine has no part in it
any more, 64 bad usage, 75 another machine is to go on, 76 fenced; 1 for a setup that failed and,
in a folder, for a run that failed.
"""

import argparse
import contextlib
import fcntl
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from outlast import protocol
from outlast.base import exits
from outlast.base.clock import SYSTEM_CLOCK
from outlast.base.console import crash_report, write_line, write_stderr
from outlast.base.exits import Reason, State
from outlast.base.places import local_ssds
from outlast.base.retry import Limits, Patience
from outlast.base.visible import one_line
from outlast.bucket import fetch as fetching
from outlast.bucket.boot import Act, Claim, Decision, silent_seconds
from outlast.bucket.data import Cache, DataError, user_cache
from outlast.bucket.fetch import deliver, place_of
from outlast.bucket.head import Fenced, Head, HeadError, HeadForbidden, Reading, read_head
from outlast.bucket.head import NotMember as TermRefused
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd, BootEnd, Layout
from outlast.bucket.records import read_record
from outlast.bucket.store import (
    PATIENT_READ_RETRY_SEC,
    Foreign,
    Store,
    StoreError,
    open_store,
    put_new,
)
from outlast.spec.identity import COMMAND
from outlast.supervisor.attempt import Attempt
from outlast.supervisor.code import SOURCE, Code, Workshop
from outlast.supervisor.door import Door
from outlast.supervisor.ending import END_RECORD_SEC, ended_head
from outlast.supervisor.environment import Builder
from outlast.supervisor.group import (
    LEAVE_PERMISSIONS,
    Member,
    Membership,
    NoGroup,
    NotMember,
    backoffs,
    find_group,
    leave_for_good,
)
from outlast.supervisor.health import Life
from outlast.supervisor.metadata import (
    NO_DEADLINE,
    NO_STACK,
    BadSpec,
    Machine,
    Metadata,
    MetadataError,
    Spec,
    Waits,
    parse_checkpoint_every,
    parse_spec,
    read_machine,
    rooted,
    this_computer,
)
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.process import (
    PARENT_POLL_SEC,
    CallingTrainer,
    Trainer,
    TrainerProcess,
    command_argv,
    trainer_argv,
    trainer_environment,
)
from outlast.supervisor.secrets import Mask, SecretReader, TrainerSecrets
from outlast.supervisor.site import MachineClock, Next, Outcome, Site
from outlast.supervisor.trainer_log import TrainerLog, drop_old_logs
from outlast.supervisor.webhook import Webhook

FAILED = 1
WATCH_SEC_MIN = 0.2
LAPTOP_FORBIDDEN_SEC = 5.0
"""A refusal by a bucket may be that of one moment, as when a token is renewed."""
LAPTOP_STOP_SEC = 30.0
WORK_PREFIX = "outlast-supervisor-"
KEEP_RESULT_SEC = 3600.0
"""A machine stays for so long whose command left more than can be kept by itself."""
KEEP_MARGIN_SEC = 120.0
"""A machine that is kept leaves so long before the run's limit."""
HEALTH_SIGN = "/run/outlast/sign"
"""Touched with each sign of progress; startup/boot.sh makes it where VMs are asked for their
health."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Boot:
    """This boot, for the record of an end without an attempt."""

    spec: Spec
    head_file: HeadFile
    site: Site
    records: bool
    """Whether this machine has boot records."""
    run_dir: str = ""
    """The run's folder or `gs://` path, where there is no VM."""


def supervise(boot: Boot) -> int:
    """From the table at boot to the end of this machine's part; the exit code."""
    spec, site, waits = boot.spec, boot.site, boot.spec.waits
    claim = Claim(spec.owner, spec.resume, spec.place, spec.deadline)
    took = False
    while True:
        # One for each term: a commit of the term before may still be under way in its thread.
        head_file = boot.head_file.fresh()
        try:
            decision = head_file.take_term(
                claim,
                still_member=lambda: _still_member(site, waits),
                wanted=site.wanted,
                forbidden_seconds=waits.iam,
                say=site.say,
            )
        except TermRefused as error:
            site.say(str(error))
            if not took:
                _record_boot_end(boot, Reason.FENCED, exits.FENCED, str(error))
            return exits.FENCED
        if decision.act is not Act.TAKE:
            return _go_away(boot, decision, took)
        if boot.records:  # in a folder nobody counts terms, and the attempt says where it begins
            site.say(decision.message)
        took = True
        outcome = Attempt(spec, head_file, site).run()
        match outcome.next:
            case Next.LEAVE:
                return _end_of_run(boot, outcome)
            case Next.STOP if boot.records:
                return exits.INTERRUPTED
            case Next.STOP | Next.AGAIN if not boot.records:
                return _end_in_folder(site, outcome)
            case Next.AGAIN:
                code = None
            case Next.IDLE:
                code = _wait_for_permission(boot, head_file)
            case Next.WATCH:
                code = _watch_successor(boot)
        if code is not None:
            return code


def _still_member(site: Site, waits: Waits) -> bool:
    """Whether this machine may take a term; waits while nobody can tell."""
    if isinstance(site.group, NoGroup):
        return True
    for wait_sec in backoffs(waits.backoff):
        answer = site.group.membership()
        if isinstance(answer, Member):
            return True
        if isinstance(answer, NotMember):
            site.say(answer.why)
            return False
        site.say(f"not known whether still a member ({answer.why}); asking again")
        site.clock.sleep(wait_sec)
    raise AssertionError("backoffs never end")


def _deliver(boot: Boot) -> bool:
    """The copy of the result that the user wants besides; each boot of a finished run tries.
    False where it is not there."""
    output = boot.spec.model_output_path
    if not output:
        return True
    try:
        head = boot.head_file.read().head
    except (HeadError, StoreError) as error:
        boot.site.say(f"model-output-path {output}: not written ({error})")
        return False
    store = boot.head_file.store
    return deliver(store, head, output, boot.site.work, boot.site.say, boot.head_file.patience)


def _go_away(boot: Boot, decision: Decision, took: bool) -> int:
    """This boot has no part in the run: say so, leave."""
    done = decision.head is not None and decision.head.state is State.DONE
    delivered = not done or _deliver(boot)
    if not boot.records:
        return _turn_away(boot, decision, delivered=delivered)
    boot.site.say(decision.message)
    if not took:
        reason = decision.reason or Reason.ENDED
        _record_boot_end(boot, reason, exits.DONE, decision.message)
    _leave(boot.site, boot.spec.waits)
    return exits.DONE


def _turn_away(boot: Boot, decision: Decision, *, delivered: bool) -> int:
    """Tell the waiting trainer of a folder why there is nothing to do."""
    site, head = boot.site, decision.head
    if decision.reason is Reason.OTHER_OWNER:
        return _refuse(site.door, _others_folder(boot, decision))
    if decision.reason in (Reason.LOST, Reason.UNREADABLE):
        return _refuse(site.door, _damaged_folder(boot, decision))
    if decision.act is Act.REFUSE or head is None or not head.state.ended:
        site.door.turn_away(protocol.Error(decision.message, "supervisor"))
        return FAILED
    code = exits.DONE if head.state is State.DONE and delivered else FAILED
    message = ended_head(head)
    if head.state is State.DONE:
        message = f"{message}; {_result_told(boot, head)}"
    site.door.turn_away(protocol.Ended(head.state.value, code, message))
    return code


def _refuse(door: Door, message: str) -> int:
    """Answer the waiting trainer of a folder that it asks for what cannot be."""
    door.turn_away(protocol.Ended("refused", exits.USAGE, message))
    return exits.USAGE


def _others_folder(boot: Boot, decision: Decision) -> str:
    """Why a folder is not this run's, for whoever named it."""
    own = boot.spec.trainer
    before = decision.head.owner.split("/") if decision.head is not None else []
    folder = f"run folder {boot.run_dir}"
    if len(before) == 3 and before[1] != own:
        return f"{folder}: belongs to a run of {before[1]}; give another --run-dir"
    if own == COMMAND:
        what, mine = "another command, or other data", "command and the data"
    else:
        what, mine = f"other flags, or another version of {own}", "flags"
    return (
        f"{folder}: belongs to another run ({what}); give another --run-dir, or the {mine} that "
        "it was begun with; if nothing in it is wanted, remove it"
    )


def _damaged_folder(boot: Boot, decision: Decision) -> str:
    """Why a run without a stack cannot be gone on with, and what mends it."""
    is_gone = decision.reason is Reason.LOST
    what = "is gone while attempts exist" if is_gone else "cannot be read as one"
    return (
        f"run folder {boot.run_dir}: its HEAD {what}; mend it: outlast repair {boot.run_dir}, or "
        "give another --run-dir to begin anew"
    )


def _result_told(boot: Boot, head: Head) -> str:
    end = head.end
    assert end is not None and end.result is not None
    remote = boot.run_dir.startswith("gs://")
    base = boot.head_file.store.url if remote else boot.run_dir.rstrip("/")
    return f"its result is in {base}/{end.result.path}"


def _end_of_run(boot: Boot, outcome: Outcome) -> int:
    site, waits = boot.site, boot.spec.waits
    done = outcome.reason is Reason.DONE
    delivered = not done or _deliver(boot)
    if not boot.records:
        if done:
            with contextlib.suppress(HeadError, StoreError):  # said where it matters
                head = boot.head_file.read().head
                site.say(f"the run is done; {_result_told(boot, head)}")
        return exits.DONE if done and delivered else FAILED
    keep_sec = waits.keep
    if outcome.reason is Reason.RESULT_TOO_LARGE:  # only this machine has the files
        keep_sec = max(keep_sec, KEEP_RESULT_SEC)
    if keep_sec > 0:
        keep_sec = min(keep_sec, _limit_in_sec(boot))
        site.say(f"the machine stays for {keep_sec:.0f} s")
        site.clock.sleep(keep_sec)
    _leave(site, waits)
    return exits.DONE


def _limit_in_sec(boot: Boot) -> float:
    """Seconds that a machine may stay idle before its limit ends it, which it leaves before."""
    try:
        left = boot.spec.deadline - boot.head_file.store.now()
    except StoreError:
        return 0.0
    return max(0.0, left.total_seconds() - KEEP_MARGIN_SEC)


def _end_in_folder(site: Site, outcome: Outcome) -> int:
    """The run stays open: the same command goes on with it."""
    # Of these the trainer knows nothing: it waits for its welcome still.
    if outcome.reason in (Reason.RESTORE_ERROR, Reason.HOST_ERROR, Reason.USAGE):
        site.door.turn_away(protocol.Error(outcome.message, "supervisor"), timeout_sec=1.0)
        return FAILED
    infrastructure = outcome.reason in exits.INFRASTRUCTURE_REASONS
    return exits.INTERRUPTED if infrastructure else FAILED


def _leave(site: Site, waits: Waits) -> None:
    def say(message: str) -> None:
        if message.startswith(Reason.STUCK_LEAVING):
            _say_stuck(site, message)
        else:
            site.say(message)

    leave_for_good(site.group, say, backoff_sec=waits.backoff, sleep=site.clock.sleep)


def _say_stuck(site: Site, message: str) -> None:
    site.say(message)
    site.webhook.post({"reason": Reason.STUCK_LEAVING.value, "message": message})


def _wait_for_permission(boot: Boot, head_file: HeadFile) -> int | None:
    """This machine may neither train nor leave an open run: a successor would have to train.

    None once it may, or the run has ended, so that the table is gone through again.
    """
    site, waits = boot.site, boot.spec.waits
    needed = " and ".join(LEAVE_PERMISSIONS)
    for wait_sec in backoffs(waits.backoff):
        if isinstance(answer := site.group.membership(), NotMember):
            site.say(answer.why)
            return exits.FENCED
        if site.group.may_leave() is True:
            site.say("permission to leave the group has come")
            return None
        try:
            head_file.check(term=head_file.term)
        except Fenced:
            return _watch_successor(boot)
        except (HeadForbidden, StoreError) as error:
            site.say(f"waiting for permission: {error}")
        except HeadError:
            return None  # the table at boot says what to do about it
        _say_stuck(site, f"{Reason.STUCK_LEAVING}: may not leave, so trains not; grant {needed}")
        site.clock.sleep(wait_sec)
    raise AssertionError("backoffs never end")


def _watch_successor(boot: Boot) -> int | None:
    """Fenced: None once nobody works at the higher term, so that the table is gone through again.

    Its holder may be a VM that the group began to create and never counted: that one goes, and
    this one is whom the group keeps.
    """
    site, waits, head_file = boot.site, boot.spec.waits, boot.head_file
    if not boot.records:
        return exits.FENCED
    look_sec = max(WATCH_SEC_MIN, min(waits.beat, waits.silent / 4))
    said = False
    while True:
        if isinstance(site.group, NoGroup) or not _still_member(site, waits):
            return exits.FENCED
        if not said:
            site.say("fenced, and still a member of the group: watching the higher term")
            said = True
        try:
            reading = head_file.read()
            if reading.head.state.ended:
                return None  # the table at boot says what to do about it
            over = _is_over(head_file.store, head_file.layout, reading, waits.silent)
        except HeadError:
            return None
        except StoreError as error:
            site.say(f"watching: {error}")
            over = ""
        if over:
            site.say(f"the higher term {over}")
            return None
        site.clock.sleep(look_sec)


def _is_over(store: Store, layout: Layout, reading: Reading, limit_sec: float) -> str:
    """Why nobody works at HEAD's term any more; empty while somebody may. Raises StoreError."""
    term = reading.head.term
    if end := read_record(store, layout.attempt_end(term), AttemptEnd):
        return f"has ended ({end.reason})"
    silent_sec = silent_seconds(store, layout, term, reading.object.updated)
    return f"has given no sign for {silent_sec:.0f} s" if silent_sec >= limit_sec else ""


def _record_boot_end(boot: Boot, reason: Reason, code: int, message: str) -> None:
    if reason not in exits.BOOT_REASONS:
        raise ValueError(f"reason {reason}: is none of a boot's end; see exits.BOOT_REASONS")
    if not boot.records:
        return
    store, layout = boot.head_file.store, boot.head_file.layout
    machine = boot.site.machine
    try:
        end = BootEnd(
            instance_id=machine.instance_id,
            boot_id=machine.boot_id,
            reason=reason,
            step="decide",
            exit=code,
            message=message,
            time=store.now(),
        )
        path = layout.boot_end(machine.instance_id, machine.boot_id)
        put_new(store, path, end.to_json(), patience=boot.head_file.patience.within(END_RECORD_SEC))
    except StoreError as error:
        boot.site.say(f"the end of this boot was not recorded: {error}")


# ---------------------------------------------------------------------------------------------
# On a VM


class SetupFailed(Exception):
    """This machine cannot run the supervisor as it must be run."""


def check_origin(bundle: Path, trainer: str | None) -> None:
    """Nothing but the bundle may be trained: refuse code that was found anywhere else. Without a
    trainer a command is, which has its own ways."""
    trained = ("outlast.loop",) if trainer is None else ("trainers", f"trainers.{trainer}")
    for name in ("outlast", "outlast.supervisor", *trained):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError) as error:
            raise SetupFailed(f"module {name}: cannot be imported ({error})") from None
        if spec is None or spec.origin is None:
            raise SetupFailed(f"module {name}: is not in the bundle {bundle}; run pulumi up again")
        origin = Path(spec.origin).resolve()
        if not origin.is_relative_to(bundle.resolve()):
            raise SetupFailed(
                f"module {name}: comes from {origin}, must come from the bundle {bundle}; take it "
                "out of the image"
            )


def run_vm(stop: "Stop") -> int:
    """The whole life on a VM."""
    life = Life(rooted(HEALTH_SIGN) if rooted(HEALTH_SIGN).exists() else None)
    mask = Mask()
    say = _serial_say(life, mask)
    metadata = Metadata()
    try:
        attributes = metadata.attributes()
        spec = parse_spec(attributes)
        machine = read_machine(metadata)
        bundle_dir = os.environ.get("OUTLAST_BUNDLE_DIR", "")
        if not bundle_dir:
            raise SetupFailed("OUTLAST_BUNDLE_DIR: is not set; the startup script sets it")
        bundle = Path(bundle_dir)
        group = find_group(metadata, attributes)
    except (MetadataError, SetupFailed, ValueError) as error:
        say(f"setup-failed: {error}")
        # Stderr's last line becomes the message of the boot's end, which the shell writes.
        return exits.USAGE if isinstance(error, BadSpec) else FAILED
    notices = Notices(spec.waits, metadata)
    stop.connect(notices)
    notices.start()
    site = _vm_site(spec, machine, group, notices, bundle, say, life, mask)
    store = open_store(
        f"gs://{spec.bucket}",
        stall_sec=spec.waits.store,
        read_retry_sec=PATIENT_READ_RETRY_SEC,
    )
    layout = Layout(spec.prefix, spec.run)
    patience = _vm_patience(spec, site.clock, say)
    boot = Boot(spec, HeadFile(store, layout, patience=patience), site, records=True)
    try:
        check_origin(bundle, spec.trainer if _is_bundled(spec, bundle) else None)
    except SetupFailed as error:
        say(f"setup-failed: {error}")
        _record_boot_end(boot, Reason.SETUP_FAILED, FAILED, str(error))
        return FAILED
    try:
        code = supervise(boot)
    except Interrupted:
        say("stopped; nothing was left to finish")
        code = exits.INTERRUPTED
    except StoreError as error:
        # The shell records it, counts the boots in a row that came to nothing, and powers off.
        say(f"{store.url}: {error}")
        return FAILED
    finally:
        site.webhook.close()
    power_off(say)
    return code


def _vm_site(
    spec: Spec,
    machine: Machine,
    group: Membership,
    notices: Notices,
    bundle: Path,
    say: Say,
    life: Life,
    mask: Mask,
) -> Site:
    shared = rooted("/dev/shm")
    work = shared / "outlast" if shared.is_dir() else rooted("/run/outlast/work")
    # Where memory has no room for two snapshots: local SSDs, and then the boot disk.
    ssds = local_ssds(rooted)
    more = [*(ssd / "outlast" for ssd in ssds), rooted("/var/lib/outlast/snapshots")]
    for place in (work, *more):
        shutil.rmtree(place, ignore_errors=True)  # an earlier supervisor's
        place.mkdir(parents=True)
    door = Door(rooted("/run/outlast/supervisor.sock"), mask=mask)
    logs = rooted("/var/log/outlast")

    clock = MachineClock(notices, life.sign)
    patience = _vm_patience(spec, clock, say)
    home = rooted("/var/lib/outlast")
    code = Code()
    reader = SecretReader(
        Metadata(), clock, say, forbidden_sec=spec.waits.iam, backoff_sec=spec.waits.backoff
    )
    secrets = TrainerSecrets(reader, spec.secret_env, mask)

    def prepare_code() -> None:
        nonlocal code
        store = open_store(f"gs://{spec.bucket}", stall_sec=spec.waits.store)
        kept = Layout(spec.prefix, spec.run).environments
        baked = rooted("/opt/outlast/user-venv")
        builder = Builder(
            home,
            store,
            kept,
            logs / "pip-user.log",
            patience,
            say,
            baked,
            token=reader.metadata.token,
            email=reader.metadata.email,
            secret=functools.partial(reader.read, "gitSecret"),
            forbidden_sec=spec.waits.iam,
        )
        workshop = Workshop(
            bundle, home, secrets, builder, clock, say, backoff_sec=spec.waits.backoff
        )
        code = workshop.prepare(spec.git)

    @functools.cache
    def log_of(term: int) -> TrainerLog:
        drop_old_logs(logs)
        return TrainerLog(logs / f"trainer-{term:06d}.log")

    def log_dir_of(term: int) -> Path:
        return logs / f"files-{term:06d}"

    def make_trainer(term: int) -> Trainer:
        argv = _trainer_argv(spec, code)
        own = {"RUN_ID": spec.run, "ATTEMPT": str(term), "LOG_DIR": str(log_dir_of(term))}
        return TrainerProcess(
            argv,
            folder=work / "cwd",
            environment={
                **trainer_environment(door.socket_path, bundle),
                **own,
                **secrets.environment,
            },
            log=log_of(term),
            mask=mask,
        )

    return Site(
        machine=machine,
        group=group,
        notices=notices,
        door=door,
        work=work,
        make_trainer=make_trainer,
        log_of=log_of,
        clock=clock,
        say=say,
        webhook=_webhook(spec, reader, mask),
        log_dir_of=log_dir_of,
        data=Cache(
            ssds[0] / "outlast-data" if ssds else rooted("/var/lib/outlast"), patience=patience
        ),
        places=tuple(more),
        sign=life.sign,
        prepare_code=prepare_code,
        mask=mask,
    )


def _webhook(spec: Spec, reader: SecretReader, mask: Mask) -> Webhook:
    if not spec.webhook_secret:
        return Webhook(spec.webhook, reader.say)
    # Its wait is no sign of life of this machine's training.
    return Webhook.of_secret(spec.webhook_secret, replace(reader, clock=SYSTEM_CLOCK), mask)


def _vm_patience(spec: Spec, clock: MachineClock, say: Say) -> Patience:
    """With storage: for as long as a permission needs to spread, and 15 minutes of silence."""
    return Patience(clock.unsigned, limits=Limits(forbidden_sec=spec.waits.iam), say=say)


def _is_bundled(spec: Spec, bundle: Path) -> bool:
    """Whether the trainer is one of the bundle's own."""
    return spec.command is None and spec.git is None and not (bundle / SOURCE).is_dir()


def _trainer_argv(spec: Spec, code: Code) -> list[str]:
    """The trainer's command. The environment that was made of the user's own requirements is the
    trainer's interpreter, or comes first on a command's PATH."""
    if spec.command is not None:
        return command_argv(
            spec.command,
            home=rooted("/var/lib/outlast/command"),
            quiet_sec=spec.quiet_sec,
            data=spec.data,
            more=spec.command_options,
            source=code.source,
            folder=code.folder,
            programs=code.programs,
        )
    python = spec.trainer_python or (str(code.programs / "python") if code.programs else "")
    trainer = spec.trainer if code.source is None else code.source / code.folder / spec.trainer
    return trainer_argv(trainer, spec.argv(), python=python, processes=spec.processes)


def power_off(say: Say) -> None:
    """Ask the system to power the machine off; it may be going down already."""
    say("powering off")
    try:
        subprocess.run(["poweroff"], stdin=subprocess.DEVNULL, timeout=30.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"poweroff: {error}")


def _serial_say(life: Life, mask: Mask) -> Say:
    """One line to stderr and, on its own, to the serial port; who speaks gets on."""
    serial = rooted("/dev/ttyS0")

    def say(message: str) -> None:
        life.sign()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{now} info supervisor {one_line(mask.text(message))}\n"
        write_stderr(line)
        with contextlib.suppress(OSError):
            # Without O_CREAT: a machine without a serial port shall not get a file of its name.
            descriptor = os.open(serial, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(descriptor, line.encode(errors="backslashreplace"))
            finally:
                os.close(descriptor)

    return say


# ---------------------------------------------------------------------------------------------
# In a folder


def run_folder(stop: "Stop", options: argparse.Namespace) -> int:
    """The supervisor of a trainer on this computer; it ends when its trainer has gone."""
    parent = os.getppid()

    def say(message: str) -> None:
        write_line(f"outlast: {message}")

    spec = Spec(
        prefix="",
        run="",
        resume=0,
        place=0,
        owner=f"{NO_STACK}{options.trainer}/{options.run}",
        trainer=options.trainer,
        deadline=NO_DEADLINE,
        checkpoint_every=parse_checkpoint_every(options.checkpoint_every),
        init=options.init,
        model_output_path=options.model_output_path,
        waits=replace(Waits(), stop=LAPTOP_STOP_SEC, verdict=0.0, iam=0.0),
    )
    notices = Notices(spec.waits)
    stop.connect(notices)
    clock = MachineClock(notices)
    patience = Patience(clock, limits=Limits(forbidden_sec=LAPTOP_FORBIDDEN_SEC), say=say)
    door = Door(options.socket)
    try:
        where, layout = place_of(options.run_dir)
        if where == options.run_dir:
            _set_aside(Path(where), spec.owner, say)
        store = open_store(where, read_retry_sec=PATIENT_READ_RETRY_SEC)
    except (DataError, StoreError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError):
            why = error.strerror or error
            message = f"run folder {options.run_dir}: {why}; give another --run-dir"
        code = _refuse(door, message)
        door.close()
        return code
    _watch_parent(parent, clock)
    _drop_left_work()
    work, held = _make_work()
    try:
        site = Site(
            machine=this_computer(),
            group=NoGroup(),
            notices=notices,
            door=door,
            work=work,
            make_trainer=lambda term: CallingTrainer(parent),
            log_of=lambda term: None,
            clock=clock,
            say=say,
            webhook=Webhook("", say),
            run_id=options.run,
            restarts=False,
            wanted=lambda: os.getppid() == parent,
            data=Cache(user_cache(), patience=patience.fresh()),
        )
        head_file = HeadFile(store, layout, patience=patience)
        return supervise(Boot(spec, head_file, site, records=False, run_dir=options.run_dir))
    except Interrupted:
        return exits.INTERRUPTED
    except (StoreError, OSError) as error:
        if isinstance(error, Foreign):
            return _refuse(door, f"run folder {options.run_dir}: {error}")
        # A full or read-only disk, mostly; the trainer hears it instead of silence.
        if not door.turn_away(protocol.Error(str(error), "supervisor"), timeout_sec=1.0):
            say(str(error))
        return FAILED
    finally:
        door.close()
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def _watch_parent(parent: int, clock: MachineClock) -> None:
    """End this process, from a thread, once the trainer that started it has gone before there was
    an attempt: a supervisor that waits for a store would take the run from its user's next try.
    Nothing is lost by it. An attempt sees to its trainer's end itself."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SEC)
        if not clock.training:
            os._exit(exits.INTERRUPTED)  # it may be deep in a request, and hear nothing

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _set_aside(run_dir: Path, owner: str, say: Say) -> None:
    """Moves away what another run has left of itself, where that never came to a checkpoint and
    nobody works on it: mostly a first try with a slip in it. Of any other run nothing is moved."""
    if not (run_dir / Layout("", "").head).is_file():
        return
    store, layout = open_store(str(run_dir), reading=True), Layout("", "")
    try:
        reading = read_head(store, layout)
        over = _is_over(store, layout, reading, Waits().silent)
    except (HeadError, StoreError, ValueError):
        return  # the table at boot says what is wrong
    head = reading.head
    if head.owner == owner or head.state.ended or head.chain or not over:
        return
    aside = run_dir.with_name(f"{run_dir.name}.{head.owner.rpartition('/')[2]}-{head.nonce[:6]}")
    run_dir.rename(aside)
    say(f"run folder {run_dir}: held another run, without a checkpoint; that is in {aside} now")


def _make_work() -> tuple[Path, int]:
    """A folder for snapshots, and the descriptor that holds its lock for as long as we live."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            held = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # without locks nobody clears anything away
                fcntl.flock(held, fcntl.LOCK_EX)
            # Another supervisor may have cleared it away before it was locked.
            if work.exists():
                return work, held
            os.close(held)


def _drop_left_work() -> None:
    """Clears away the folders of this user's supervisors that were killed: nobody locks them."""
    for work in Path(tempfile.gettempdir()).glob(f"{WORK_PREFIX}*"):
        with contextlib.suppress(OSError):
            left = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(left).st_uid == os.getuid():
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(work, ignore_errors=True)
            finally:
                os.close(left)


# ---------------------------------------------------------------------------------------------
# Entry


class Stop:
    """SIGTERM and SIGINT, from the first moment on; told to the notices once there are any."""

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._early = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def connect(self, notices: Notices) -> None:
        self._notices = notices
        if self._early:
            notices.handle_signal(signal.SIGTERM, None)

    def _handle(self, number: int, frame: object) -> None:
        if self._notices is None:
            self._early = True
        else:
            self._notices.handle_signal(number, None)


def parser() -> argparse.ArgumentParser:
    """The command line of both entries."""
    top = argparse.ArgumentParser(
        prog="python -m outlast.supervisor", description="The supervisor."
    )
    entries = top.add_subparsers(dest="entry", required=True)
    entries.add_parser("vm", help="on a VM, from its metadata")
    folder = entries.add_parser("folder", help="for a trainer on this computer")
    folder.add_argument("--run-dir", required=True, help="folder or gs:// path of the run")
    folder.add_argument("--socket", type=Path, required=True, help="where to listen")
    folder.add_argument("--trainer", required=True, help="name of the trainer, for the records")
    folder.add_argument("--run", required=True, help="name of the run; another one is refused")
    folder.add_argument(
        "--checkpoint-every", default="auto", help="auto, 30s or steps; default %(default)s"
    )
    folder.add_argument("--init", default="", help="another run's checkpoint to begin with")
    folder.add_argument("--model-output-path", default="", help="where the result goes besides")
    fetch = entries.add_parser("fetch", help="get a finished run's result, or data")
    fetch.add_argument("url", help="a run's folder, gs://BUCKET/experiments/NAME/RUN, or data")
    fetch.add_argument("--into", type=Path, required=True, help="cache folder; prints the path in")
    fetch.add_argument(
        "--kind",
        choices=("auto", "data", "result"),
        default="auto",
        help="what it is; auto: a result where a run is",
    )
    fetch.add_argument("--json", action="store_true", help="answer as JSON, refusals too")
    return top


def main(argv: Sequence[str]) -> int:
    """Run one entry in a thread of its own: the main thread is left to signal handlers."""
    try:
        options = parser().parse_args(argv)
    except SystemExit as error:
        return exits.USAGE if error.code else exits.DONE
    if options.entry == "fetch":
        return fetching.main(options.url, options.kind, options.into, as_json=options.json)
    # Any thread may be the one that a signal interrupts, but only the main thread runs handlers:
    # it waits on a descriptor that a signal in whatever thread makes readable.
    wakes, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    stop = Stop()
    stop.install()
    codes: list[int] = []
    ended = threading.Event()

    def live() -> None:
        try:
            codes.append(run_vm(stop) if options.entry == "vm" else run_folder(stop, options))
        except BadSpec as error:
            write_line(f"outlast: {error}")
            codes.append(exits.USAGE)
        except BaseException as error:
            # Before the main thread hears of it: that ends the process at once.
            write_stderr(crash_report(error))
        finally:
            ended.set()
            with contextlib.suppress(BlockingIOError):  # full of signals is readable, too
                wake.send(b"\0")

    threading.Thread(target=live, name="supervisor").start()
    while not ended.is_set():
        wakes.recv(4096)
    return codes[0] if codes else FAILED


def leave(code: int) -> NoReturn:
    """End the process now: threads that wait for a store or a metadata server must not keep it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or None
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
