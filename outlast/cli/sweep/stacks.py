"""The stacks of a sweep, through the engine's Automation API.

Each has a work folder below `.outlast/sweeps/<sweep>/` of the project, with its settings file and a
link to the project: nothing is written beside the user's own `Pulumi.<stack>.yaml` files, and
`.gitignore` covers it. The state is where the backend keeps it.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from outlast.cli import engine, leftovers
from outlast.cli import recover as recovery
from outlast.spec import labels, sweeps

BUSY_SEC = 120.0
"""For so long a killed command's engines, which may still work, are waited for."""
BUSY_LOOK_SEC = 2.0


class Stacks(Protocol):
    """What a sweep needs of the engine. Each method raises OperateError with a sentence."""

    def names(self) -> set[str]:
        """The stacks of this sweep that the backend knows."""
        ...

    def up(
        self, stack: str, config: Mapping[str, Any], document: Mapping[str, Any], *, exists: bool
    ) -> None:
        """Brings a stack up, after recovering one that `exists` from an interrupted update."""
        ...

    def destroy(self, stack: str) -> None:
        """Destroys a stack and removes it, with its settings."""
        ...


class EngineStacks:
    """The stacks of one sweep in the shell's own backend."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep

    def names(self) -> set[str]:
        listed = json.loads(engine.run_engine(["stack", "ls", "--json"], env=os.environ))
        found = {str(one["name"]).rpartition("/")[2] for one in listed}
        return {name for name in found if name.startswith(f"{self._sweep}{sweeps.TRIAL}")}

    def up(
        self, stack: str, config: Mapping[str, Any], document: Mapping[str, Any], *, exists: bool
    ) -> None:
        made = engine.Stack(stack, config, folder=engine.settings_folder(stack), document=document)
        if exists:
            self._recover(stack)
        made.bring_up(exists=exists)

    def destroy(self, stack: str) -> None:
        folder = engine.settings_folder(stack)
        document = _settings(folder / f"Pulumi.{stack}.yaml")
        config = document.pop("config", None) or {}
        made = engine.Stack(stack, config, folder=folder, document=document)
        self._recover(stack)
        made.destroy()
        if place := _place(stack, config):
            leftovers.delete(place)
        made.remove()
        shutil.rmtree(folder, ignore_errors=True)

    def _recover(self, stack: str) -> None:
        """Recovers a stack whose command was killed; waits for engines that outlived it."""
        until = time.monotonic() + BUSY_SEC
        while not self._recovered(stack, last=time.monotonic() > until):
            time.sleep(BUSY_LOOK_SEC)

    def _recovered(self, stack: str, *, last: bool) -> bool:
        try:
            recovery.recover(stack, cwd=engine.settings_folder(stack))
        except recovery.StackBusy:
            if last:
                raise
            return False
        return True


def _settings(file: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # Another machine brought it up; its state says what to destroy.
    return found if isinstance(found, dict) else {}


def _place(stack: str, config: Mapping[str, Any]) -> leftovers.Place | None:
    """Where to look for what the stack's state may have lost."""
    project = str(config.get("gcp:project") or os.environ.get("GOOGLE_PROJECT", ""))
    if not project:
        return None
    own = labels.of_stack(engine.project_name(), stack, stack, {})
    bucket = str(config.get("outlast:bucket") or f"{project}-outlast")
    is_shared = stack.endswith(f"{sweeps.TRIAL}{sweeps.SHARED}")
    return leftovers.Place(project, own, bucket if is_shared else "")
