"""The errors of commits and restores.

CommitError
├── BadSnapshot       the trainer's folder is not a snapshot
└── RestoreError      no checkpoint of the chain can be read
"""

from outlast.base.visible import VisibleError


class CommitError(VisibleError):
    """Base of these errors."""


class BadSnapshot(CommitError):
    """The folder that a trainer handed over is not a snapshot."""


class RestoreError(CommitError):
    """No checkpoint of the chain can be read; the run never starts from scratch by itself."""
