"""What is declared in the cloud: one ComponentResource a file, each given values only.

Components read no configuration, no environment and no clock; `settings.py` does that for them.
Only the dynamic providers (`providers.py`) look at the bucket and at the time.
"""

from components.bundle_object import BundleObject
from components.checkpoint_bucket import CheckpointBucket
from components.healing_group import HealingGroup
from components.providers import RunPin
from components.vm_identity import VmIdentity
from components.vm_template import VmTemplate

__all__ = [
    "BundleObject",
    "CheckpointBucket",
    "HealingGroup",
    "RunPin",
    "VmIdentity",
    "VmTemplate",
]
