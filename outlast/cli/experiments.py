"""Which experiments exist: those in the buckets that the settings of this project's stacks name.

It needs no stack that is up and no engine, so it also finds what a destroy left behind.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outlast.base import folders
from outlast.bucket.inventory import ROOT, SHARED
from outlast.bucket.layout import DEVELOPMENT, EXPERIMENT_PATTERN, Layout
from outlast.bucket.store import NotFound, Object, Store, StoreError, open_store
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import endpoint
from outlast.cli.errors import OperateError, about

BUCKET_VARIABLE = "OUTLAST_BUCKET"


@dataclass(frozen=True)
class Settings:
    """What a stack's settings file says of where its runs are."""

    stack: str
    bucket: str
    """Empty if the file does not say it in plain text."""
    experiment: str
    ssh: str = ""
    """How its VMs may be logged in to."""
    source: Path | None = None
    """The folder of the code, if `outlast:source` names one."""
    project: str = ""
    """The cloud's; empty if it is not said, or exists in a local cloud only and this shell has
    none."""


@dataclass(frozen=True)
class Found:
    """One run in a bucket."""

    experiment: str
    layout: Layout
    head: Object
    """Its HEAD, as it is listed."""


def settings() -> tuple[Settings, ...]:
    """Of every stack of this project that has a settings file; empty without a project."""
    try:
        project = folders.project()
    except FileNotFoundError:
        return ()
    definition = _read(project / folders.PROJECT_FILE)
    home = project / str(definition.get("stackConfigDir") or ".")
    common = {
        key: given.get("value") for key, given in _config(definition).items() if _is_full(given)
    }
    files = {
        file.stem.removeprefix("Pulumi."): {**common, **_config(_read(file))}
        for file in sorted(home.glob("Pulumi.*.yaml"))
    }
    return tuple(
        Settings(
            name,
            _bucket(name, files),
            _text(config, "outlast:experiment") or name,
            _text(config, "outlast:ssh"),
            project / source if (source := _text(config, "outlast:source")) else None,
            "" if _is_elsewhere(_project(config)) else _project(config),
        )
        for name, config in files.items()
        if _text(config, "outlast:part") != "foundation"
    )


def _is_full(given: Any) -> bool:
    return isinstance(given, dict) and "value" in given


def _config(document: Mapping[str, Any]) -> dict[str, Any]:
    found = document.get("config")
    return found if isinstance(found, dict) else {}


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # The engine says what is wrong with it.
    return found if isinstance(found, dict) else {}


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    return value if isinstance(value, str) else ""


def _bucket(stack: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """As the program names it: by the foundation, the setting, or the project."""
    config = files[stack]
    foundation = _text(config, "outlast:foundation").rpartition("/")[2]
    if foundation in files and foundation != stack:
        config = {**files[foundation], "outlast:foundation": ""}
    named = _text(config, "outlast:bucket")
    project = _project(config)
    if _is_elsewhere(project):
        return ""
    return named or (f"{project}-outlast" if project else "")


def _project(config: Mapping[str, Any]) -> str:
    return _text(config, "gcp:project") or os.environ.get("GOOGLE_PROJECT", "")


def _is_elsewhere(project: str) -> bool:
    """Whether it exists in local clouds only, and this shell has none."""
    return project == endpoint.LOCAL_PROJECT and not os.environ.get(endpoint.VARIABLE)


def buckets() -> dict[str, str]:
    """The buckets to look into, each with a stack whose identity reads it: the one that
    OUTLAST_BUCKET names, which needs none, or those of the settings.
    """
    if named := os.environ.get(BUCKET_VARIABLE):
        return {bucket_name(named): ""}
    found: dict[str, str] = {}
    for one in settings():
        if one.bucket:
            found.setdefault(one.bucket, one.stack)
    return found


def known_buckets() -> dict[str, str]:
    """As `buckets`. Raises OperateError if there is none."""
    if found := buckets():
        return found
    raise OperateError(
        "no experiments: neither OUTLAST_BUCKET nor the settings of a stack of this project name a"
        " bucket; go to your project, or set OUTLAST_BUCKET."
    )


def bucket_name(text: str) -> str:
    """A bucket's name, which may be given as `gs://NAME`."""
    return text.removeprefix("gs://").strip("/")


def open_bucket(name: str, stack: str = "") -> Store:
    """The bucket, as the stack's identity if one is given. Raises OperateError."""
    endpoint.check_local_cloud()
    if stack:
        from outlast.cli.stack import take_identity

        take_identity(stack)
    try:
        return open_store(f"gs://{name}")
    except (StoreError, ValueError) as error:
        raise OperateError(about(f"gs://{name}", error)) from None
    except Exception as error:  # credentials and addresses fail in their libraries' own ways
        raise OperateError(f"gs://{name}: cannot be read: {error}") from None


def names(store: Store) -> list[str]:
    """The experiments of a bucket, sorted, in one listing. Raises StoreError."""
    return [name for name in store.folders(ROOT) if EXPERIMENT_PATTERN.fullmatch(name)]


def runs_of(store: Store, paths: Sequence[str]) -> list[Found]:
    """The runs at these paths of a bucket, each an experiment's or a run's; development runs only
    by their own path. Their number of objects does not make it slower. Raises StoreError.
    """
    own = _runs_at(store, [Layout(*path.rpartition("/")[::2]) for path in paths])
    below = layouts_of(store, [path for path, run in zip(paths, own, strict=True) if run is None])
    return [run for run in (*own, *_runs_at(store, below)) if run is not None]


def layouts_of(store: Store, paths: Sequence[str]) -> list[Layout]:
    """The folders that may be runs of the experiments at these paths. Raises StoreError."""
    jobs = [lambda path=path: [*store.folders(f"{path}/")] for path in paths]
    found = zip(paths, in_parallel(jobs, small_reads(store)), strict=True)
    return [Layout(path, name) for path, below in found for name in below if is_run(name)]


def is_run(name: str) -> bool:
    """Whether a folder of an experiment may be a run of it; its development runs are not."""
    return name not in SHARED and not name.startswith(DEVELOPMENT)


def _runs_at(store: Store, layouts: Sequence[Layout]) -> list[Found | None]:
    return in_parallel([partial(_run_at, store, one) for one in layouts], small_reads(store))


def _run_at(store: Store, layout: Layout) -> Found | None:
    try:
        head = store.stat(layout.head)
    except NotFound:
        return None
    return Found(layout.prefix.rpartition("/")[2], layout, head)
