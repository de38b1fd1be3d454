"""The families of machine types, as data: sizes, GPUs, local SSDs, disks, platforms, custom types.

`machines.py` has the rules. What a family here does not list is refused, unless
`outlast:allowUnlisted` names it because it is newer. A family that is not here passes with a note.

Sources. Read from Google's pages: sizes of the general-purpose families, their custom types, and
what boots C4, N4, C3D, H3 and M: "General-purpose machine family", "Compute-optimized machine
family" and "Memory-optimized machine family for Compute Engine", as of 2026; local SSDs: "About
Local SSD disks", last updated 14 April 2026; that Hyperdisk Balanced is the only zonal Hyperdisk
that boots, and of which series: "About Hyperdisk Balanced" and "About Google Cloud Hyperdisk",
2025. Read from Google's own list of machine types in the GKE autoscaler (k8s.io/gke-autoscaling,
copyright 2026): sizes of the GPU families, boot disks and CPU platforms, and that H3 is not a Spot
VM. If the two differ in sizes, both count. Scheduling of A3 and A4X: the Compute API's discovery
document, revision 20261106. How many CPUs N2's custom types may have, and the most memory of N1's
and N2D's: Google's sample `create_custom_machine_type`.

What is moved and what is stopped when its host is maintained: "About host events" and "Set the host
maintenance policy for a Compute Engine instance", as of 2026 (E2 is only moved; H4D, GPUs, bare
metal and Z3 above 18,000 GiB of Titanium SSD are only stopped; of any series but Z3 one may choose
otherwise); that H3 is moved by default: "Compute-optimized machine family", last updated 10 April
2026; and the API's own refusals of E2, Z3 and H4D in public reports.

From memory: the CPU platforms of A3, the memory of a GB300, `pd-extreme` as a boot disk of N2, and
the most CPUs of an N1 machine with a GPU. If the API accepts what is refused here, the table is
wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

AS_OF = "April 2026"
"""The newest page that the sizes are of."""

PERSISTENT = ("pd-standard", "pd-balanced", "pd-ssd")
BALANCED_SSD = ("pd-balanced", "pd-ssd")
HYPERDISK = ("hyperdisk-balanced",)
"""Other Hyperdisks can be attached but do not boot."""

MIGRATE, TERMINATE = "migrate", "terminate"
"""What happens to a standard VM when its host is maintained: it is moved while it runs, or stopped
and booted again.
"""

OPEN, PROPRIETARY = "open", "proprietary"
"""NVIDIA's kernel modules. Blackwell and Grace need the open ones, Pascal and Volta the proprietary
ones; others take either (NVIDIA Driver Installation Guide, r580, 13 August 2025).
"""

Counts = Mapping[int, tuple[int, ...]]
"""Allowed numbers of local SSDs, by the largest number of CPUs that each entry applies to."""


@dataclass(frozen=True)
class Gpu:
    """A GPU model with its own machine family, or for N1."""

    name: str
    """The API's name for it."""
    memory_gb: int
    cpus: Mapping[int, int] = field(default_factory=dict)
    """For N1: the most CPUs of the machine, by number of attached GPUs."""
    most_ssds: int = 24
    """For N1: the most local SSDs beside them."""
    modules: str = ""
    """OPEN or PROPRIETARY if it works with these kernel modules only."""


@dataclass(frozen=True)
class Custom:
    """Custom machine types of a family: `n2-custom-8-16384`."""

    least_cpus: int
    most_cpus: int
    steps: Mapping[int, int]
    """Step between numbers of CPUs, by the largest number of CPUs that it applies to."""
    least_gb: float
    most_gb: float
    """GB of memory per CPU; `-ext` lifts the upper bound."""
    total_gb: int
    """The most GB of memory of any machine, even with `-ext`."""
    extended: bool = True


@dataclass(frozen=True)
class Family:
    """The rules for machine types whose names begin with the family's."""

    types: tuple[str, ...]
    """Every predefined machine type."""
    disks: tuple[str, ...] = PERSISTENT
    """Boot disk types."""
    ssds: Counts | None = None
    """None if you cannot attach any: the family has none, or includes them."""
    own_ssds: str = ""
    """Which of its types include local SSDs: `all`, or a suffix of their names."""
    platforms: tuple[str, ...] = ()
    """CPU platforms that can be requested, newest last."""
    gpu: Gpu | None = None
    """The GPU model that its machines include."""
    gpus: Mapping[str, int] | None = None
    """Number of GPUs by machine type, if the name does not say it (`-8g`)."""
    gb_per_cpu: Mapping[str, float] | None = None
    """GB of memory per CPU of its predefined types, by the middle word; used for advice."""
    custom: Custom | None = None
    spot: bool = True
    only_spot: tuple[str, ...] = ()
    """Its machine types that exist only as Spot (or flex-start) VMs."""
    arm: bool = False
    """Its CPUs do not run x86 images."""
    maintenance: str = ""
    """MIGRATE or TERMINATE if the platform accepts only that for a standard VM; empty for either.
    Machines with GPUs and bare metal are stopped in any family.
    """
    stopped: tuple[str, ...] = ()
    """Its machine types that are stopped, while the rest of the family is moved."""


def _types(series: str, suffix: str = "", **sizes: Sequence[int]) -> tuple[str, ...]:
    """`n2-standard-2` of `standard=(2,)`."""
    return tuple(
        f"{series}-{word}-{cpus}{suffix}" for word, counts in sizes.items() for cpus in counts
    )


def _alike(series: str, counts: Sequence[int], suffix: str = "") -> tuple[str, ...]:
    """The machine types of a series whose three words have the same sizes."""
    return _types(series, suffix, standard=counts, highmem=counts, highcpu=counts)


def _gpu_types(series: str, *counts: int) -> tuple[str, ...]:
    """The same types with `-nolssd`, without the included local SSDs."""
    return tuple(f"{series}-{count}g{end}" for count in counts for end in ("", "-nolssd"))


N1_GPUS = {
    "nvidia-tesla-t4": Gpu("nvidia-tesla-t4", 16, {1: 48, 2: 48, 4: 96}, most_ssds=16),
    "nvidia-tesla-p4": Gpu("nvidia-tesla-p4", 8, {1: 24, 2: 48, 4: 96}, modules=PROPRIETARY),
    "nvidia-tesla-p100": Gpu("nvidia-tesla-p100", 16, {1: 16, 2: 32, 4: 96}, modules=PROPRIETARY),
    "nvidia-tesla-v100": Gpu(
        "nvidia-tesla-v100", 16, {1: 12, 2: 24, 4: 48, 8: 96}, modules=PROPRIETARY
    ),
}
"""GPUs that only an N1 machine can have attached."""

_H100 = Gpu("nvidia-h100-80gb", 80)
_A100 = Gpu("nvidia-tesla-a100", 40)
_AMD_STEPS = {2: 2, 4: 4, 8: 8, 96: 16}
_CASCADE = ("Intel Cascade Lake",)
_SAPPHIRE = ("Intel Sapphire Rapids",)
_EMERALD = ("Intel Emerald Rapids",)
_TURIN = ("AMD Turin",)

_N2 = (2, 4, 8, 16, 32, 48, 64, 80, 96)
_N4 = (2, 4, 8, 16, 32, 48, 64, 80)
_N4A = (1, 2, 4, 8, 16, 32, 48, 64)
_C3 = (4, 8, 22, 44, 88, 176)
_C3D = (4, 8, 16, 30, 60, 90, 180, 360)
_C4 = (2, 4, 8, 16, 24, 32, 48, 64, 96, 144, 192, 288)
_C4A = (1, 2, 4, 8, 16, 32, 36, 48, 64, 72)
_C4D = (2, 4, 8, 16, 32, 48, 64, 96, 192, 384)
_C2D = (2, 4, 8, 16, 32, 56, 112)

FAMILIES: Mapping[str, Family] = {
    # General purpose
    "e2": Family(
        types=(
            *("e2-micro", "e2-small", "e2-medium"),
            *_types("e2", standard=(2, 4, 8, 16, 32), highcpu=(2, 4, 8, 16, 32)),
            *_types("e2", highmem=(2, 4, 8, 16)),
        ),
        custom=Custom(2, 32, {32: 2}, 0.5, 8, total_gb=128, extended=False),
        maintenance=MIGRATE,
    ),
    "f1": Family(types=("f1-micro",)),
    "g1": Family(types=("g1-small",)),
    "n1": Family(
        types=(
            *_types("n1", standard=(1, 2, 4, 8, 16, 32, 64, 96)),
            *_types("n1", highmem=(2, 4, 8, 16, 32, 64, 96), highcpu=(2, 4, 8, 16, 32, 64, 96)),
            *_types("n1", megamem=(96,), ultramem=(40, 80, 160)),
        ),
        ssds={10**6: (*range(1, 9), 16, 24)},
        platforms=(
            *("Intel Sandy Bridge", "Intel Ivy Bridge", "Intel Haswell"),
            *("Intel Broadwell", "Intel Skylake"),
        ),
        gb_per_cpu={"standard": 3.75, "highmem": 6.5, "highcpu": 0.9, "megamem": 14.9},
        custom=Custom(1, 96, {1: 1, 96: 2}, 0.9, 6.5, total_gb=624),
    ),
    "n2": Family(
        types=_types("n2", standard=(*_N2, 128), highmem=(*_N2, 128), highcpu=(*_N2, 128)),
        disks=(*PERSISTENT, "pd-extreme"),
        ssds={
            10: (1, 2, 4, 8, 16, 24),
            20: (2, 4, 8, 16, 24),
            40: (4, 8, 16, 24),
            80: (8, 16, 24),
            128: (16, 24),
        },
        platforms=(*_CASCADE, "Intel Ice Lake"),
        custom=Custom(2, 128, {32: 2, 128: 4}, 0.5, 8, total_gb=864),
    ),
    "n2d": Family(
        types=_types("n2d", standard=(*_N2, 128, 224), highmem=_N2, highcpu=(*_N2, 128, 224)),
        ssds={
            16: (1, 2, 4, 8, 16, 24),
            48: (2, 4, 8, 16, 24),
            80: (4, 8, 16, 24),
            224: (8, 16, 24),
        },
        platforms=("AMD Rome", "AMD Milan"),
        custom=Custom(2, 96, _AMD_STEPS, 0.5, 8, total_gb=768),
    ),
    "n4": Family(
        types=_alike("n4", _N4),
        disks=HYPERDISK,
        platforms=_EMERALD,
        custom=Custom(2, 80, {80: 2}, 2, 8, total_gb=640),
    ),
    "n4a": Family(
        types=_alike("n4a", _N4A),
        disks=HYPERDISK,
        custom=Custom(1, 64, {64: 1}, 2, 8, total_gb=512),
        arm=True,
    ),
    "n4d": Family(
        types=_alike("n4d", (*_N4, 96)),
        disks=HYPERDISK,
        platforms=_TURIN,
        custom=Custom(2, 96, _AMD_STEPS, 0.5, 8, total_gb=768),
    ),
    "t2d": Family(
        types=_types("t2d", standard=(1, 2, 4, 8, 16, 32, 48, 60)), platforms=("AMD Milan",)
    ),
    "t2a": Family(types=_types("t2a", standard=(1, 2, 4, 8, 16, 32, 48)), arm=True),
    "c3": Family(
        types=(
            *_alike("c3", _C3),
            *_types("c3", "-lssd", standard=_C3),
            *_alike("c3", (192,), "-metal"),
        ),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="-lssd",
        platforms=_SAPPHIRE,
    ),
    "c3d": Family(
        types=(
            *_alike("c3d", _C3D),
            *_types("c3d", "-lssd", standard=_C3D[1:], highmem=_C3D[1:]),
        ),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="-lssd",
        platforms=("AMD Genoa",),
    ),
    "c4": Family(
        types=(
            *_alike("c4", _C4),
            *_types("c4", "-lssd", standard=_C4[1:], highmem=_C4[1:]),
            *_alike("c4", (288,), "-metal"),
            *_types("c4", "-lssd-metal", standard=(288,), highmem=(288,)),
        ),
        disks=HYPERDISK,
        own_ssds="-lssd",
        platforms=(*_EMERALD, "Intel Granite Rapids"),
    ),
    "c4a": Family(
        types=(
            *_alike("c4a", _C4A),
            *_types("c4a", "-lssd", standard=(4, 8, 16, 32, 48, 64, 72)),
            *_types("c4a", "-lssd", highmem=(4, 8, 16, 32, 48, 64, 72)),
            "c4a-highmem-96-metal",
        ),
        disks=HYPERDISK,
        own_ssds="-lssd",
        arm=True,
    ),
    "c4d": Family(
        types=(
            *_alike("c4d", _C4D),
            *_types("c4d", "-lssd", standard=_C4D[2:], highmem=_C4D[2:]),
            *_alike("c4d", (384,), "-metal"),
        ),
        disks=HYPERDISK,
        own_ssds="-lssd",
        platforms=_TURIN,
    ),
    # Compute-, storage- and memory-optimised
    "c2": Family(
        types=_types("c2", standard=(4, 8, 16, 30, 60)),
        ssds={8: (1, 2, 4, 8), 16: (2, 4, 8), 30: (4, 8), 60: (8,)},
        platforms=_CASCADE,
    ),
    "c2d": Family(
        types=_alike("c2d", _C2D),
        ssds={16: (1, 2, 4, 8), 32: (2, 4, 8), 56: (4, 8), 112: (8,)},
        platforms=("AMD Milan",),
    ),
    "h3": Family(
        types=("h3-standard-88",),
        disks=("pd-balanced", *HYPERDISK),
        platforms=_SAPPHIRE,
        spot=False,
    ),
    "h4d": Family(
        types=("h4d-standard-192", "h4d-highmem-192", "h4d-highmem-192-lssd"),
        disks=HYPERDISK,
        own_ssds="-lssd",
        platforms=_TURIN,
        maintenance=TERMINATE,
    ),
    "z3": Family(
        types=(
            *_types("z3", highmem=(8, 14, 22, 30, 36, 44, 88, 176)),
            *_types("z3", "-standardlssd", highmem=(14, 22, 44, 88, 176)),
            *_types("z3", "-highlssd", highmem=(8, 16, 22, 32, 44, 88)),
            "z3-highmem-192-highlssd-metal",
        ),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="all",
        platforms=_SAPPHIRE,
        maintenance=MIGRATE,
        # More than 18,000 GiB of Titanium SSD.
        stopped=(
            *_types("z3", highmem=(88, 176)),
            "z3-highmem-176-standardlssd",
            "z3-highmem-88-highlssd",
        ),
    ),
    "m3": Family(
        types=_types("m3", megamem=(64, 128), ultramem=(32, 64, 128)),
        disks=(*PERSISTENT, *HYPERDISK),
        ssds={64: (4, 8), 128: (8,)},
    ),
    # With GPUs
    "g2": Family(
        types=_types("g2", standard=(4, 8, 12, 16, 24, 32, 48, 96)),
        disks=BALANCED_SSD,
        ssds={16: (1,), 24: (2,), 32: (1,), 48: (4,), 96: (8,)},
        platforms=_CASCADE,
        gpu=Gpu("nvidia-l4", 24),
        gpus={"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8},
        gb_per_cpu={"standard": 4},
    ),
    "g4": Family(
        types=_types("g4", standard=(6, 12, 24, 48, 96, 192, 384)),
        disks=HYPERDISK,
        ssds={6: (), 12: (1,), 24: (2,), 48: (4,), 96: (8,), 192: (16,), 384: (32,)},
        platforms=_TURIN,
        gpu=Gpu("nvidia-rtx-pro-6000", 96, modules=OPEN),
        # Below 48 CPUs, the machine has a part of a GPU.
        gpus={"6": 1, "12": 1, "24": 1, "48": 1, "96": 2, "192": 4, "384": 8},
    ),
    "a2-highgpu": Family(
        types=("a2-highgpu-1g", "a2-highgpu-2g", "a2-highgpu-4g", "a2-highgpu-8g"),
        ssds={12: (1, 2, 4, 8), 24: (2, 4, 8), 48: (4, 8), 96: (8,)},
        platforms=_CASCADE,
        gpu=_A100,
    ),
    "a2-megagpu": Family(types=("a2-megagpu-16g",), ssds={96: (8,)}, platforms=_CASCADE, gpu=_A100),
    "a2-ultragpu": Family(
        types=_gpu_types("a2-ultragpu", 1, 2, 4, 8),
        own_ssds="all",
        platforms=_CASCADE,
        gpu=Gpu("nvidia-a100-80gb", 80),
    ),
    "a3-highgpu": Family(
        types=_gpu_types("a3-highgpu", 1, 2, 4, 8),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="all",
        platforms=_SAPPHIRE,
        gpu=_H100,
        only_spot=tuple(_gpu_types("a3-highgpu", 1, 2, 4)),
    ),
    "a3-edgegpu": Family(
        types=_gpu_types("a3-edgegpu", 8),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="all",
        platforms=_SAPPHIRE,
        gpu=_H100,
    ),
    "a3-megagpu": Family(
        types=_gpu_types("a3-megagpu", 8),
        disks=(*BALANCED_SSD, *HYPERDISK),
        own_ssds="all",
        platforms=_SAPPHIRE,
        gpu=Gpu("nvidia-h100-mega-80gb", 80),
    ),
    "a3-ultragpu": Family(
        types=_gpu_types("a3-ultragpu", 8),
        disks=HYPERDISK,
        own_ssds="all",
        platforms=_EMERALD,
        gpu=Gpu("nvidia-h200-141gb", 141),
    ),
    "a4": Family(
        types=_gpu_types("a4-highgpu", 8),
        disks=HYPERDISK,
        own_ssds="all",
        platforms=_EMERALD,
        gpu=Gpu("nvidia-b200", 180, modules=OPEN),
    ),
    "a4x-maxgpu": Family(
        types=("a4x-maxgpu-4g-metal",),
        disks=HYPERDISK,
        own_ssds="all",
        gpu=Gpu("nvidia-gb300", 279, modules=OPEN),
        spot=False,
        arm=True,
    ),
    "a4x": Family(
        types=_gpu_types("a4x-highgpu", 4),
        disks=HYPERDISK,
        own_ssds="all",
        gpu=Gpu("nvidia-gb200", 186, modules=OPEN),
        spot=False,
        arm=True,
    ),
}
