"""The rehearsal: a stack on a local cloud, a scenario played, the guarantees checked.

The local cloud plays the scenario: it recognises each moment by the VM's requests. If the scenario
asks for equal bytes, a second stack of the same spec, `<name>-baseline`, runs beside the first
without faults. The guarantees are checked on what the runs left in the bucket: HEAD, records, rows
and the result's bytes. The stacks cannot see that they are being rehearsed.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.rehearsal import guarantees, scenario, secrets
from outlast.cli.rehearsal.cleanup import end_strays, scratch, terminable, uninterrupted
from outlast.cli.rehearsal.rehearsal import Rehearsal, Watcher
from outlast.cli.rehearsal.report import Report
from outlast.cli.rehearsal.settings import (
    LOCAL_PLACE,
    STACK,
    VM_PATIENCE,
    Delivery,
    compose,
    local_settings,
    pace_of,
    read_config,
    read_own,
    zone_of,
)


def rehearse(
    *,
    watcher: Watcher,
    name: str | None = None,
    stack: str | None = None,
    data: Sequence[str] = (),
    limit_rows: int | None = None,
    args: Mapping[str, Any] | None = None,
    guest_images: Mapping[str, Path] | None = None,
    guest_env: Mapping[str, str] | None = None,
    provider: str = "stand-in",
) -> Report:
    """Runs the whole rehearsal in a temporary folder and leaves nothing behind.

    `name`: a scenario's name or file; None: the default for the trainer or command. `stack`: the
    stack to rehearse; None: `dev`, which in the checkout is the example. `data`: files for the
    local cloud's buckets, each `gs://BUCKET/PATH=FOLDER`. `args` override the stack's
    hyperparameters. `guest_images`: VMs are machines of QEMU from these, by project and family,
    with `guest_env` for everything that runs on them. `provider`: `stand-in`, or `plugin` for
    Google's. Raises OperateError if the rehearsal could not be carried out. KeyboardInterrupt
    passes through after everything that was started has ended.
    """
    deliveries = [Delivery.parse(text) for text in data]
    own = stack is not None or engine.project() != PACKAGE.parent
    vm = bool(guest_images)
    settings = read_own(stack or STACK, vm=vm) if own else read_config(STACK)
    if vm:
        settings = {**settings, **local_settings(vm=True)}
    path = scenario.find(name or scenario.default_of(settings))
    parts = engine.find_parts()
    plugin = engine.chosen_plugin(provider)
    played = scenario.read(path, parts)
    args = {**(args or {}), **({} if limit_rows is None else {"limit-rows": limit_rows})}
    config = compose(settings, played, args, own=own)
    played.check_moments(command=bool(config.get("outlast:command")))
    if own:
        played = played.moved(LOCAL_PLACE["gcp:zone"], zone_of(config))
    config, held = secrets.take_over(config, os.environ)
    started = time.monotonic()
    with terminable(), scratch() as folder:
        os.environ[clouds.TOKEN_VARIABLE] = str(folder)
        try:
            cloud = clouds.start(
                folder / "c",
                parts,
                guest_env={**(guest_env or {}), clouds.TOKEN_VARIABLE: str(folder)},
                guest_images=guest_images,
                dies_with_us=True,
                pace=pace_of(config),
            )
            try:
                home, search = folder / "pulumi", os.environ.get("PATH", os.defpath)
                variables = cloud.variables(parts, home, search, plugin)
                engine.enter({**variables, clouds.TOKEN_VARIABLE: str(folder)})
                held.create(cloud)
                if plugin:
                    watcher.say(f"provider: {plugin}")
                for note in held.notes:
                    watcher.say(note)
                patience = VM_PATIENCE if vm else 1
                rehearsal = Rehearsal(
                    cloud, played, config, folder / "stacks", watcher, patience=patience
                )
                report, seen = rehearsal.play(stack or STACK, deliveries)
            finally:
                cloud.stop()
        finally:
            with uninterrupted():
                strays = end_strays(str(folder))
        seen.strays = strays
        seen.audit = held.without(seen.audit)
        report.guarantees = guarantees.check(seen, played.guarantees)
        report.seconds = time.monotonic() - started
        return report
