"""Finds a stack's run in the bucket, from the stack's outputs."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.base.retry import BRIEF
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import EXPERIMENT_PATTERN, Layout, is_run_path
from outlast.bucket.store import Store, StoreError, open_store
from outlast.cli import engine
from outlast.cli.endpoint import check_local_cloud
from outlast.cli.errors import NotUp, OperateError, UsageError, about
from outlast.cloud import credentials
from outlast.cloud.compute import Group


@dataclass(frozen=True)
class Deployed:
    """One stack's run."""

    stack: str
    bucket: str
    layout: Layout
    resume: int
    owner: str
    group: Group | None = None
    """The group's path, if the stack's outputs name it."""

    @property
    def url(self) -> str:
        return f"gs://{self.bucket}/{self.layout.root}"

    def head_file(self) -> HeadFile:
        """The run's HEAD, read with short retries. Raises OperateError as `store` does."""
        return HeadFile(self.store(), self.layout, patience=BRIEF)

    def store(self) -> Store:
        """The run's bucket. Raises OperateError if it cannot be opened."""
        check_local_cloud()
        try:
            return open_store(f"gs://{self.bucket}")
        except (StoreError, ValueError) as error:
            raise OperateError(about(self.stack, error)) from None


def find(stack: str) -> Deployed:
    """The stack in the shell's own backend. Raises NotUp if it is not up, and EngineError."""
    if is_run_path(stack):
        raise UsageError(
            f"{stack}: is a run's folder, must be a stack's name; a run without a stack resumes "
            "when you run its own command again, and Ctrl-C stops it."
        )
    if not EXPERIMENT_PATTERN.fullmatch(stack):
        raise UsageError(
            f"experiment {stack!r}: must match [a-z]([-a-z0-9]{{0,38}}[a-z0-9])?; "
            "name the experiment as its stack does."
        )
    take_identity(stack)
    text = engine.run_engine(["stack", "output", "--json", "-s", stack], env=os.environ)
    outputs = json.loads(text)
    missing = {"bucket", "prefix", "run", "resume", "owner"} - set(outputs)
    if missing:
        raise NotUp(
            f"stack {stack}: is not up, so it has no VM; outlast status {stack} shows its runs, and"
            f" outlast up {stack} brings it up, which starts a VM."
        )
    return Deployed(
        stack=stack,
        bucket=outputs["bucket"],
        layout=Layout(outputs["prefix"], outputs["run"]),
        resume=int(outputs["resume"]),
        owner=outputs["owner"],
        group=_group(outputs),
    )


def take_identity(stack: str) -> None:
    """Makes this process the identity that the stack's own settings name, if they name one.

    The engine is only asked, which takes a second, if the stack's file may name one: there, or in
    an environment of Pulumi ESC that it imports. Raises EngineError.
    """
    root = engine.project()
    folder = engine.settings_folder(stack)
    file = folder / f"Pulumi.{stack.rpartition('/')[2]}.yaml"
    definition = (root / engine.PROJECT_FILE).read_text()
    try:
        text = file.read_text()
    except OSError:
        text = ""
    named = (*credentials.SETTINGS, "environment:")
    # A stack's file may be elsewhere, and a project may have settings for all of its stacks.
    if not any(one in text or one in definition for one in (*named, "stackConfigDir")):
        credentials.use_settings({})
        return
    command = ["config", "--json", "--show-secrets", "-s", stack]
    cwd = folder if folder.is_dir() else root
    config = json.loads(engine.run_engine(command, env=os.environ, cwd=cwd))
    credentials.use_settings({key: entry.get("value") for key, entry in config.items()})


def _group(outputs: Mapping[str, Any]) -> Group | None:
    zone, region = outputs.get("groupZone"), outputs.get("region")
    if not ({"project", "group"} <= outputs.keys() and (zone or region)):
        return None
    place = f"zones/{zone}" if zone else f"regions/{region}"
    return Group(outputs["project"], place, outputs["group"])
