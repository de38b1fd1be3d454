"""The supervisor on a VM, from its metadata to the power-off."""

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from outlast.base import exits
from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.console import write_stderr
from outlast.base.exits import Reason
from outlast.base.log import log_to
from outlast.base.retry import CODE_TRIES, LIBRARY_WITHIN_SEC, Limits, Patience
from outlast.base.scratch_space import local_ssds
from outlast.base.visible import one_line
from outlast.bucket.data import Cache
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import (
    StoreError,
    open_store,
)
from outlast.spec.run_spec import OWN, BadSpec, RunSpec, argv
from outlast.supervisor.code import SOURCE, Code, CodeRefused, CodeSetup
from outlast.supervisor.environment import Builder
from outlast.supervisor.group import (
    Membership,
    find_group,
)
from outlast.supervisor.health import Life
from outlast.supervisor.kept_wheels import Recorded
from outlast.supervisor.life import FAILED, Boot, record_boot_end, supervise
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import Machine, Metadata, MetadataError, read_machine, rooted
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.process import (
    Trainer,
    TrainerProcess,
    command_argv,
    trainer_argv,
    trainer_environment,
)
from outlast.supervisor.secrets import Mask, SecretReader, TrainerSecrets
from outlast.supervisor.site import MachineClock, Site
from outlast.supervisor.stop import Stop
from outlast.supervisor.trainer_log import TrainerLog, drop_old_logs
from outlast.supervisor.trainer_user import TrainerUser, TrainerUserRefused
from outlast.supervisor.webhook import Webhook

_log = logging.getLogger(__name__)

HEALTH_SIGN = "/run/outlast/sign"
"""File touched with each sign of progress; startup/boot.sh creates it if VMs have health checks."""
COMMAND_HOME = "/var/lib/outlast/command"
"""Working folder of a command."""


class SetupFailed(Exception):
    """This machine cannot run the supervisor correctly."""


def check_origin(bundle: Path, trainer: str | None) -> None:
    """Raises SetupFailed if the code comes from anywhere but the bundle. ``trainer`` is None for a
    command, whose code may come from elsewhere."""
    trained = (
        ("outlast.loop",)
        if trainer is None
        else ("outlast.trainers", f"outlast.trainers.{trainer}")
    )
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
                f"module {name}: comes from {origin}, must come from the bundle {bundle}; remove "
                "it from the image"
            )


def run_vm(stop: Stop) -> int:
    """Runs from the metadata to the power-off; returns the exit code."""
    life = Life(rooted(HEALTH_SIGN) if rooted(HEALTH_SIGN).exists() else None)
    mask = Mask()
    _log_to_serial(life, mask)
    metadata = Metadata()
    try:
        attributes = metadata.attributes()
        spec = RunSpec.from_metadata(attributes)
        machine = read_machine(metadata)
        bundle_dir = os.environ.get("OUTLAST_BUNDLE_DIR", "")
        if not bundle_dir:
            raise SetupFailed("OUTLAST_BUNDLE_DIR: is not set; the startup script sets it")
        bundle = Path(bundle_dir)
        group = find_group(metadata, attributes)
    except (MetadataError, SetupFailed, ValueError) as error:
        _log.info(f"setup-failed: {error}")
        # The shell writes the last line of stderr into the record of the boot's end.
        return exits.USAGE if isinstance(error, BadSpec) else FAILED
    notices = Notices(spec.timeouts, metadata)
    stop.connect(notices)
    notices.start()
    clock = MachineClock(notices, life.sign)
    store = open_store(
        f"gs://{spec.bucket}",
        stall_sec=spec.timeouts.storage,
        read_retry_sec=LIBRARY_WITHIN_SEC,
    )
    head_file = HeadFile(store, Layout(spec.prefix, spec.run), patience=_vm_patience(spec, clock))
    site = _vm_site(spec, machine, group, notices, bundle, life, mask, clock)
    boot = Boot(spec, head_file, site, records=True)
    try:
        check_origin(bundle, spec.trainer if _is_bundled(spec, bundle) else None)
    except SetupFailed as error:
        _log.info(f"setup-failed: {error}")
        record_boot_end(boot, Reason.SETUP_FAILED, exits.USAGE, str(error))
        return exits.USAGE  # the same on every VM of this template
    try:
        code = supervise(boot)
    except Interrupted:
        _log.info("stopped; nothing was left to finish")
        code = exits.INTERRUPTED
    except StoreError as error:
        # The shell records it, counts the boots in a row without progress, and powers off.
        _log.info(f"{store.url}: {error}")
        return FAILED
    finally:
        boot.announcements.close()
    power_off()
    return code


def _vm_site(
    spec: RunSpec,
    machine: Machine,
    group: Membership,
    notices: Notices,
    bundle: Path,
    life: Life,
    mask: Mask,
    clock: MachineClock,
) -> Site:
    shared = rooted("/dev/shm")  # noqa: S108 - mkdir below refuses what another user puts there
    work = shared / "outlast" if shared.is_dir() else rooted("/run/outlast/work")
    # For snapshots if memory has no room for two: local SSDs, then the boot disk.
    ssds = local_ssds(rooted)
    more = [*(ssd / "outlast" for ssd in ssds), rooted("/var/lib/outlast/snapshots")]
    for place in (work, *more):
        shutil.rmtree(place, ignore_errors=True)  # left by an earlier supervisor
        place.mkdir(parents=True)
    user = _trainer_user(spec)
    listener = Listener(rooted("/run/outlast/supervisor.sock"), mask=mask, user=user)
    logs = rooted("/var/log/outlast")

    patience = _vm_patience(spec, clock)
    home = rooted("/var/lib/outlast")
    code = Code()
    for_code = _code_patience(spec, clock)
    reader = SecretReader(Metadata(), for_code)
    secrets = TrainerSecrets(reader, spec.secret_env, mask)

    def prepare_code(recorded: Recorded) -> None:
        nonlocal code
        if user is not None:
            try:
                user.prepare(f"{reader.metadata.base}/instance/id")
            except TrainerUserRefused as error:
                raise CodeRefused(str(error)) from None
        store = open_store(f"gs://{spec.bucket}", stall_sec=spec.timeouts.storage)
        kept = Layout(spec.prefix, spec.run).environments
        baked = rooted("/opt/outlast/user-venv")
        builder = Builder(
            home,
            store,
            kept,
            logs / "pip-user.log",
            patience,
            pip=next((bundle / "requirements").glob("pip-*.whl"), None),
            baked=baked,
            token=reader.metadata.token,
            email=reader.metadata.email,
            secret=functools.partial(reader.read, "gitSecret"),
            forbidden_sec=spec.timeouts.iam_propagation,
            recorded=recorded,
            user=user,
        )
        setup = CodeSetup(bundle, home, secrets, builder, for_code)
        code = setup.prepare(spec.git)

    @functools.cache
    def log_of(term: int) -> TrainerLog:
        drop_old_logs(logs)
        return TrainerLog(logs / f"trainer-{term:06d}.log")

    def log_dir_of(term: int) -> Path:
        return logs / f"files-{term:06d}"

    def make_trainer(term: int) -> Trainer:
        command = argv_of(spec, code)
        own = {"RUN_ID": spec.run, "ATTEMPT": str(term), "LOG_DIR": str(log_dir_of(term))}
        if user is not None:
            own |= user.environment
            for folder in (work / "cwd", rooted(COMMAND_HOME)):
                user.make(folder)
        return TrainerProcess(
            command,
            folder=work / "cwd",
            environment={
                **trainer_environment(listener.socket_path, bundle),
                **own,
                **secrets.environment,
            },
            log=log_of(term),
            mask=mask,
            user=user,
        )

    return Site(
        machine=machine,
        group=group,
        notices=notices,
        listener=listener,
        work=work,
        make_trainer=make_trainer,
        log_of=log_of,
        clock=clock,
        webhook=_webhook(spec, reader, mask),
        console=_write_serial,
        log_dir_of=log_dir_of,
        data=Cache(
            ssds[0] / "outlast-data" if ssds else rooted("/var/lib/outlast"),
            patience=patience,
            payer=spec.data_payer,
        ),
        scratch=tuple(more),
        sign=life.sign,
        prepare_code=prepare_code,
        mask=mask,
        trainer_user=user,
    )


def _trainer_user(spec: RunSpec) -> TrainerUser | None:
    """User that the trainer runs as; None for the supervisor's own user."""
    if spec.trainer_user != OWN:
        return None
    if os.geteuid() == 0:
        return TrainerUser(rooted("/var/lib/outlast/home"))
    # The supervisor of a VM is root, except in the local cloud of an ordinary account.
    _log.info(
        "trainerUser own: not exercised here, because this machine's supervisor is not root; the"
        f" trainer runs as user {os.geteuid()}"
    )
    return None


def _webhook(spec: RunSpec, reader: SecretReader, mask: Mask) -> Webhook:
    if not (spec.webhook_secret or spec.webhook_key_secret):
        return Webhook(spec.webhook)
    # Waiting for a secret is not a sign of progress.
    patient = replace(reader, patience=_code_patience(spec, SYSTEM_CLOCK))
    return Webhook.of_secrets(
        spec.webhook, spec.webhook_secret, spec.webhook_key_secret, patient, mask
    )


def _vm_patience(spec: RunSpec, clock: MachineClock) -> Patience:
    """Patience with storage: as long as a permission needs to spread, and a silence lasts."""
    timeouts = spec.timeouts
    limits = Limits(silent_sec=timeouts.silence, forbidden_sec=timeouts.iam_propagation)
    return Patience(clock.unsigned, limits=limits)


def _code_patience(spec: RunSpec, clock: Clock) -> Patience:
    """Patience with secrets and git hosts: CODE_TRIES tries, and as long as a permission needs to
    spread."""
    limits = Limits(forbidden_sec=spec.timeouts.iam_propagation, silent_tries=CODE_TRIES)
    return Patience(clock, limits=limits, pause_sec=spec.timeouts.backoff)


def _is_bundled(spec: RunSpec, bundle: Path) -> bool:
    """Whether the trainer is one of the bundle's trainers."""
    return spec.command is None and spec.git is None and not (bundle / SOURCE).is_dir()


def argv_of(spec: RunSpec, code: Code, home: Path | None = None) -> list[str]:
    """The trainer's command line. The environment with the user's packages is the trainer's
    interpreter, or comes first on a command's PATH; `home` is a command's folder, by default
    COMMAND_HOME."""
    if spec.command is not None:
        return command_argv(
            spec.command,
            home=home or rooted(COMMAND_HOME),
            quiet_sec=spec.checkpoint_quiet_sec,
            data=spec.data,
            more=spec.command_options,
            source=code.source,
            folder=code.folder,
            programs=code.programs,
        )
    python = spec.trainer_python or (str(code.programs / "python") if code.programs else "")
    trainer = spec.trainer if code.source is None else code.source / code.folder / spec.trainer
    return trainer_argv(trainer, argv(spec.args), python=python, processes=spec.processes)


def power_off() -> None:
    """Asks the system to power the machine off; it may be stopping already."""
    _log.info("powering off")
    try:
        subprocess.run(["poweroff"], stdin=subprocess.DEVNULL, timeout=30.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.info(f"poweroff: {error}")


def _log_to_serial(life: Life, mask: Mask) -> None:
    """Writes each line of the log to stderr and to the serial port, without secrets. Each line is
    also a sign of progress."""

    def write(message: str) -> None:
        life.sign()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{now} info supervisor {one_line(message)}"
        write_stderr(f"{line}\n")
        _write_serial(line)

    log_to(write, mask.text)


def _write_serial(line: str) -> None:
    """Writes a line to the serial port, if there is one."""
    with contextlib.suppress(OSError):
        # Without O_CREAT, so that a machine without a serial port gets no such file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
        descriptor = os.open(rooted("/dev/ttyS0"), flags)
        try:
            os.write(descriptor, f"{line}\n".encode(errors="backslashreplace"))
        finally:
            os.close(descriptor)
