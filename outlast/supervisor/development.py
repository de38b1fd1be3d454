"""A development run on a VM, beside the run that the VM is for; `outlast dev sync` starts it.

It trains the code of another folder with the trainer, arguments, data, packages and secrets that
the VM's metadata names. Its name, `dev-<digest>`, follows from them and the code: changed code is
another run, the same code resumes. It has its own HEAD and writes nothing of the VM's own run. It
never leaves the group, powers off, copies a result elsewhere or sends a webhook, it does not listen
for preemption (the VM's own run needs those seconds), and it ends with the process that started it.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from outlast.base import exits, process_tree
from outlast.base.console import write_line
from outlast.base.exits import State
from outlast.base.log import log_to
from outlast.base.retry import LIBRARY_WITHIN_SEC, Limits, Patience
from outlast.bucket.data import Cache, user_cache
from outlast.bucket.head import HeadError, HeadLost, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import DEVELOPMENT, Layout
from outlast.bucket.store import Store, StoreError, open_store
from outlast.spec.identity import canonical_json, name_of
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.code import PACKAGE, REQUIREMENTS, Code, CodeRefused, CodeUnavailable
from outlast.supervisor.environment import MARK
from outlast.supervisor.group import NoGroup
from outlast.supervisor.kept_wheels import Recorded
from outlast.supervisor.life import FAILED, Boot, supervise
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import Metadata, MetadataError, read_machine, rooted
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.on_computer import drop_left_work, make_work
from outlast.supervisor.on_vm import argv_of
from outlast.supervisor.process import PARENT_POLL_SEC, TrainerProcess, trainer_environment
from outlast.supervisor.secrets import (
    Mask,
    SecretReader,
    SecretRefused,
    SecretUnavailable,
    TrainerSecrets,
)
from outlast.supervisor.site import MachineClock, Site
from outlast.supervisor.stop import Stop
from outlast.supervisor.trainer_log import TrainerLog
from outlast.supervisor.webhook import Webhook

_log = logging.getLogger(__name__)

VARIABLE = "OUTLAST_DEV"
"""Marks everything that a development run has started."""
STOP_SEC = 5.0
"""Seconds for the last checkpoint before changed code starts, or once the starter has ended."""
NICE = 5
OUTPUT_ARGUMENT = "model-output-path"
IDENTIFYING = ("trainer", "command", "command_options", "data", "init", "processes")
"""Fields of the spec that name the run, beside its code and arguments."""
TRAINED = (
    *IDENTIFYING,
    *("prefix", "owner", "deadline", "checkpoint_every", "keep_every_steps", "trainer_python"),
    *("gpus", "mode", "checkpoint_quiet_sec", "data_payer", "delivery", "git", "bucket", "bundle"),
    *("bundle_sha256", "secret_env"),
)
"""Fields of the VM's own run that its development runs have, too: not its messages, its budget,
its sweep or its bill."""


class _Development(TrainerProcess):
    """A trainer whose failure leaves the run open: the next change is another run."""

    restarts = False


class _ShownLog(TrainerLog):
    """A log that also goes to the terminal of the person who waits for it."""

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # The terminal may be gone.
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        super().write(data)


def run_development(stop: Stop, options: argparse.Namespace) -> int:
    """Trains once; returns the exit code. `options`: source, state and code, the code's digest."""
    parent = os.getppid()
    _give_way()
    mask = Mask()
    log_to(lambda line: write_line(f"outlast: {line}"), mask.text)
    metadata = Metadata()
    bundle = Path(os.environ["OUTLAST_BUNDLE_DIR"])
    try:
        spec = development_spec(RunSpec.from_metadata(metadata.attributes()), options.code)
        machine = read_machine(metadata)
    except (MetadataError, ValueError) as error:
        _log.info(str(error))
        return FAILED
    layout = Layout(spec.prefix, spec.run)
    url = f"gs://{spec.bucket}/{layout.root.rstrip('/')}"
    notices = Notices(spec.timeouts)
    stop.connect(notices)
    clock = MachineClock(notices)
    patience = Patience(clock, limits=Limits(silent_sec=spec.timeouts.storage))
    drop_left_work()
    work, held = make_work()
    listener = Listener(work / "supervisor.sock", mask=mask)
    mark = f"{VARIABLE}={os.environ.get(VARIABLE, '')}"
    _end_with(parent, mark)
    try:
        store = open_store(f"gs://{spec.bucket}", read_retry_sec=LIBRARY_WITHIN_SEC)
        resume = _resume(store, layout)
        if resume is None:
            _log.info(f"run {spec.run} of this code is done already: {url}; change a file")
            return exits.DONE
        spec = replace(spec, resume=resume)
        _log.info(f"run {spec.run}: {url}")
        code = Code()
        secrets = TrainerSecrets(SecretReader(metadata, patience), spec.secret_env, mask)

        def prepare_code(recorded: Recorded) -> None:
            nonlocal code
            try:
                secrets.load()
            except SecretRefused as error:
                raise CodeRefused(str(error)) from None
            except SecretUnavailable as error:
                raise CodeUnavailable(str(error)) from None
            folder = spec.git.path if spec.git else ""
            code = Code(options.source, folder, _programs(bundle, spec))

        def make_trainer(term: int) -> TrainerProcess:
            home = options.state / "command"
            for other in home.glob("*"):
                if other.name != spec.run:
                    shutil.rmtree(other, ignore_errors=True)
            log_dir = work / f"files-{term:06d}"
            variables = trainer_environment(listener.socket_path, bundle)
            if (bundle / PACKAGE).is_dir():
                # Its installed packages are those of the VM's own run.
                path = [bundle, options.source / "src", options.source]
                variables["PYTHONPATH"] = os.pathsep.join(map(str, path))
            return _Development(
                argv_of(spec, code, home / spec.run),
                folder=work / "cwd",
                environment={
                    **variables,
                    **{"RUN_ID": spec.run, "ATTEMPT": str(term), "LOG_DIR": str(log_dir)},
                    **secrets.environment,
                },
                log=log,
                mask=mask,
            )

        log = _ShownLog(work / "trainer.log")
        site = Site(
            machine=machine,
            group=NoGroup(),
            notices=notices,
            listener=listener,
            work=work,
            make_trainer=make_trainer,
            log_of=lambda term: log,
            clock=clock,
            webhook=Webhook(""),
            log_dir_of=lambda term: work / f"files-{term:06d}",
            restarts=False,
            wanted=lambda: os.getppid() == parent,
            data=_cache(spec, patience),
            prepare_code=prepare_code,
            mask=mask,
        )
        head_file = HeadFile(store, layout, patience=patience)
        return supervise(Boot(spec, head_file, site, records=False, run_dir=url))
    except Interrupted:
        return exits.INTERRUPTED
    except (HeadError, StoreError, OSError) as error:
        _log.info(f"{url}: {error}")
        return FAILED
    finally:
        listener.close()
        process_tree.kill_marked(mark)
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def development_spec(spec: RunSpec, code: str) -> RunSpec:
    """The spec of the development run of this code, beside a VM's own run. Fields that are not in
    TRAINED have their default."""
    trained = {name: getattr(spec, name) for name in TRAINED}
    args = {flag: value for flag, value in spec.args.items() if flag != OUTPUT_ARGUMENT}
    content = {
        "code": code,
        "args": args,
        **{name: trained[name] for name in IDENTIFYING},
    }
    return RunSpec(
        **trained,
        args=args,
        run=f"{DEVELOPMENT}{name_of(json.loads(canonical_json(content)))}",
        resume=0,
        placement=0,
        timeouts=replace(spec.timeouts, stop=STOP_SEC, failure_grace=0.0, keep=0.0),
    )


def _resume(store: Store, layout: Layout) -> int | None:
    """The resume count that continues the run; None if it is done."""
    try:
        head = read_head(store, layout).head
    except HeadLost:
        return 0
    if head.state is State.DONE:
        return None
    return head.resume + 1 if head.state.ended else head.resume


def _programs(bundle: Path, spec: RunSpec) -> Path | None:
    """The programs of the environment that the VM's own run uses; None if it has none."""
    needs = (bundle / PACKAGE).exists() or (bundle / REQUIREMENTS).exists()
    if not needs and not (spec.git and spec.git.requirements):
        return None
    for place in ("/var/lib/outlast/user-venv", "/opt/outlast/user-venv"):
        if (rooted(place) / MARK).is_file():
            return rooted(place) / "bin"
    raise CodeUnavailable("the packages of the experiment's run are not installed yet; try again")


def _cache(spec: RunSpec, patience: Patience) -> Cache:
    """The VM's own cache of data if this user may write it, else the user's."""
    shared = rooted("/var/lib/outlast")
    home = shared if os.access(shared, os.W_OK) else user_cache()
    return Cache(home, patience=patience, payer=spec.data_payer)


def _give_way() -> None:
    """The VM's own run comes first: for the processors, and if memory is full."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with(parent: int, mark: str) -> None:
    """Ends this process and what it has started once the process that started it has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SEC)
        process_tree.kill_marked(mark)
        os._exit(exits.INTERRUPTED)

    threading.Thread(target=watch, name="parent", daemon=True).start()
