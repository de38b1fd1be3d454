"""What a VM is made of, and what its hypervisor reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlast.localcloud.vm.metadata import Trouble, Value

Report = Callable[[str, Literal["running", "stopping", "exited", "failed"], str], None]


@dataclass(frozen=True)
class Machine:
    """What a VM is made of."""

    id: str
    name: str
    values: Mapping[str, Value]
    """Of its metadata server, attributes included."""
    image: Path | None = None
    """The folder that its boot disk starts from; None: an empty disk."""
    notice_sec: float = 0.0
    """From the `preempted` flag to the stop."""
    memory_mb: int = 0
    """Above it the largest process is killed; 0: no limit."""
    missing_tools: tuple[str, ...] = ()
    """Programs of the system that the VM does not have."""
    driver_fails: bool = False
    """Whether `nvidia-smi` says that it cannot reach the driver."""
    gpus: int = 0
    """GPUs that its `nvidia-smi` lists."""
    local_ssds: int = 0
    """Empty at each boot."""
    trouble: Trouble | None = None
    """What its metadata server does before it answers as it should."""
