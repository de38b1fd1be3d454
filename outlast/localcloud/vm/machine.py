"""The description of a VM, and the reports of its hypervisor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outlast.localcloud.vm.metadata import Trouble, Value

Report = Callable[[str, Literal["running", "stopping", "exited", "failed"], str], None]


@dataclass(frozen=True)
class Machine:
    """The description of a VM."""

    id: str
    name: str
    values: Mapping[str, Value]
    """Values of its metadata server, including attributes."""
    image: Path | None = None
    """The folder that its boot disk starts from; None: an empty disk."""
    notice_sec: float = 0.0
    """Seconds from the `preempted` flag to the stop."""
    memory_mb: int = 0
    """Limit of its memory, above which the largest process is killed; 0: no limit."""
    cpus: int = 0
    """Processors, of which a process guest has those of this machine; 0: one."""
    disk_gb: int = 0
    """Size of its boot disk; 0: that of the image."""
    address: str = ""
    """Its address on this machine's loopback."""
    missing_tools: tuple[str, ...] = ()
    """Programs of the system that the VM lacks."""
    driver_fails: bool = False
    """Whether `nvidia-smi` reports that it cannot reach the driver."""
    gpus: int = 0
    """GPUs that its `nvidia-smi` lists."""
    local_ssds: int = 0
    """Number of local SSDs, empty at each boot."""
    trouble: Trouble | None = None
    """Faults of its metadata server before it answers normally."""
