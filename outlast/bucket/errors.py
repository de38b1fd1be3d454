"""What commits and restores raise themselves.

CommitError
├── BadSnapshot       the trainer's folder is not a snapshot
└── RestoreError      no checkpoint of the chain can be read
"""

from outlast.base.visible import VisibleError


class CommitError(VisibleError):
    """Base of what this module raises itself."""


class BadSnapshot(CommitError):
    """The folder that a trainer handed over is not a snapshot."""


class RestoreError(CommitError):
    """No checkpoint that the chain names can be read; the run does not start over by itself."""
