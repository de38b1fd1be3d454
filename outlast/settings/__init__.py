"""The settings of a stack: their schema, rules and look-ups.

`load` reads the engine's values, `check` turns them into Settings and needs no engine, `look_up`
asks the cloud. Every refusal is a SettingsError.
"""

from outlast.settings.checks import check
from outlast.settings.errors import SettingsError
from outlast.settings.keys import declared
from outlast.settings.lookups import FoundBucket, look_up
from outlast.settings.program import (
    Code,
    baked,
    bundle,
    foundation_outputs,
    load,
    now,
    of_args,
    outputs,
    week,
)
from outlast.settings.schema import Settings

__all__ = [
    "Code",
    "FoundBucket",
    "Settings",
    "SettingsError",
    "baked",
    "bundle",
    "check",
    "declared",
    "foundation_outputs",
    "load",
    "look_up",
    "now",
    "of_args",
    "outputs",
    "week",
]
