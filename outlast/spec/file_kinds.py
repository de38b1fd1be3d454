"""The kinds of files in a command's checkpoint folder: checkpoint, log, by-product, temporary.

Only checkpoint files make a checkpoint, and a checkpoint waits only for them to rest. Logs and
by-products are kept with it. The user's globs take precedence over the known ones.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outlast.spec.globs import GlobError, common_name, compiled, matches


class Kind(Enum):
    """The kind of a file."""

    CHECKPOINT = "checkpoint"
    """Makes a checkpoint, which is complete when the file rests."""
    LOG = "log"
    """Only grows; kept up to its current end."""
    BY_PRODUCT = "by-product"
    """A plot or configuration, kept as it is when a checkpoint is made."""
    TEMPORARY = "temporary"
    """Will be renamed; never kept."""


TEMPORARY = (
    *("*.tmp", "*.tmp.*", "*.tmp-*", "*.temp", "tmp-*", ".tmp*", "*~", ".~*", "*.swp", "*.lock"),
    # Unfinished downloads.
    *("*.part", "*.partial", "*.incomplete", "*.crdownload", "*.download"),
    # Orbax and TensorFlow while they save; deleted files on network file systems.
    *("*.orbax-checkpoint-tmp*", "*_temp", "*.tempstate*", ".nfs*", ".fuse_hidden*"),
)
"""Names of files and folders that are never part of a checkpoint."""

JOURNALS = ("*journal*.log", "*optuna*.log")
"""Optuna's journals: named like logs, but a study resumes from them."""

LOGS = (
    *(
        "events.out.tfevents.*",
        "*.log",
        "*.log.*",
        "log.txt",
        "log.txt.*",
        "*_log.txt",
        "*-log.txt",
    ),
    # Trainer of LLaMA-Factory, CSVLogger of Lightning, detectron2, ultralytics, W&B.
    *("trainer_log.jsonl", "metrics.csv", "metrics.json", "results.csv", "*.wandb"),
)
"""Names of files that only grow."""

PICTURES = ("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.mp4", "*.html")

BY_PRODUCTS = (
    *PICTURES,
    # Written once, before the first checkpoint.
    *("*.yaml", "*.yml", "*.toml", "*.ini", "*.cfg", "*.md", "*.py", "*.ipynb"),
    *("config.json", "args.json", "hparams.json", ".gitattributes", ".gitignore"),
)
"""Names of files that accompany a training, which cannot resume from them alone."""


OPTIONS = {kind.value: f"--{kind.value}" for kind in (Kind.CHECKPOINT, Kind.LOG, Kind.BY_PRODUCT)}
"""The runner's options that name globs, by kind."""


@dataclass(frozen=True)
class Kinds:
    """A user's globs; if there are any for checkpoints, no other file is a checkpoint file."""

    checkpoint: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    by_product: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """The globs by the name of their kind."""
        return {
            Kind.CHECKPOINT.value: self.checkpoint,
            Kind.LOG.value: self.log,
            Kind.BY_PRODUCT.value: self.by_product,
        }

    def check(self, fields: Mapping[str, str] = OPTIONS) -> None:
        """Raises GlobError for a glob that cannot be used, or if two kinds claim the same name.

        ``fields`` names the option or setting that each kind's globs come from.
        """
        every = [(fields[kind], glob) for kind, globs in self.given.items() for glob in globs]
        for field, glob in every:
            try:
                compiled(glob)
            except GlobError as error:
                raise GlobError(f"{field}: {error}") from None
        for number, (field, glob) in enumerate(every):
            for other_field, other in every[:number]:
                if field != other_field and (name := common_name(other, glob)):
                    raise GlobError(
                        f"{field}: glob {glob!r} overlaps {other!r} of {other_field}, both match "
                        f"{name!r}; make one of them narrower"
                    )

    def of(self, name: str) -> Kind:
        """The kind of the file with this relative path."""
        return _kind(self, name)


DEFAULT = Kinds()
"""The kinds without globs of a user."""


@functools.lru_cache(maxsize=65536)
def _kind(kinds: Kinds, name: str) -> Kind:
    given = (
        (Kind.CHECKPOINT, kinds.checkpoint),
        (Kind.LOG, kinds.log),
        (Kind.BY_PRODUCT, kinds.by_product),
    )
    known = (
        (Kind.TEMPORARY, TEMPORARY),
        (Kind.CHECKPOINT, () if kinds.checkpoint else JOURNALS),
        (Kind.LOG, LOGS),
        (Kind.BY_PRODUCT, BY_PRODUCTS),
    )
    for kind, globs in (*given, *known):
        if matches(name, globs):
            return kind
    return Kind.BY_PRODUCT if kinds.checkpoint else Kind.CHECKPOINT
