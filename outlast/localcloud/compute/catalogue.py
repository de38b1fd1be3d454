"""The zones, machine types and images of the local cloud: a small, fixed choice."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outlast.localcloud.compute.fleet.model import Fault

ZONES: dict[str, tuple[str, ...]] = {
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
}
ALL_ZONES = tuple(zone for zones in ZONES.values() for zone in zones)

# Memory per CPU in MB, and the CPU counts, of each series.
SERIES: dict[str, tuple[int, tuple[int, ...]]] = {
    "n1-standard": (3840, (1, 2, 4, 8, 16, 32, 64, 96)),
    "e2-standard": (4096, (2, 4, 8, 16, 32)),
    "e2-highmem": (8192, (2, 4, 8, 16)),
    "e2-highcpu": (1024, (2, 4, 8, 16, 32)),
    "n2-standard": (4096, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    "n2-highmem": (8192, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    "n2-highcpu": (1024, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    "n2d-standard": (4096, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
    "c2-standard": (4096, (4, 8, 16, 30, 60)),
    "c3-standard": (4096, (4, 8, 22, 44, 88, 176)),
    "c3-highcpu": (2048, (4, 8, 22, 44, 88, 176)),
    "g2-standard": (4096, (4, 8, 12, 16, 24, 32, 48, 96)),
}
SHARED_CORE = {"e2-micro": (2, 1024), "e2-small": (2, 2048), "e2-medium": (2, 4096)}
OTHERS = {"a2-highgpu-1g": (12, 87040)}

STOCK_IMAGES = (
    ("debian-cloud", "debian-12", "debian-12-bookworm-v20260921", 10),
    ("debian-cloud", "debian-13", "debian-13-trixie-v20260921", 10),
    ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64-v20260920", 10),
    ("ubuntu-os-cloud", "ubuntu-2604-lts-amd64", "ubuntu-2604-amd64-v20260920", 10),
    *(
        ("deeplearning-platform-release", family, f"{family}-v20260920", 50)
        for family in (
            "common-cu129-ubuntu-2404-nvidia-580",
            "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
        )
    ),
)
IMAGE_REFERENCE = re.compile(
    r"(?:https?://[^/]+/(?:compute/)?(?:v1|beta)/)?(?:projects/(?P<project>[^/]+)/)?"
    r"global/images/(?P<family>family/)?(?P<name>[^/]+)"
)


@dataclass(frozen=True)
class MachineType:
    """CPUs and memory of a VM. A local VM has those of this machine, whatever its type."""

    name: str
    cpus: int
    memory_mb: int


@dataclass(frozen=True)
class Image:
    """An image, from which a boot disk starts."""

    project: str
    family: str
    name: str
    size_gb: int
    folder: Path | None = None
    """Folder with `opt/outlast`; None: only the system itself."""
    state: str = "ACTIVE"
    """ACTIVE, DEPRECATED (no longer its family's), OBSOLETE or DELETED (no longer usable)."""

    @property
    def id(self) -> str:
        return str(10**18 + zlib.crc32(f"{self.project}/{self.name}".encode()))

    @property
    def path(self) -> str:
        return f"projects/{self.project}/global/images/{self.name}"


def _machine_types() -> dict[str, MachineType]:
    known = {
        name: MachineType(name, cpus, memory)
        for name, (cpus, memory) in {**SHARED_CORE, **OTHERS}.items()
    }
    for series, (memory_mb, counts) in SERIES.items():
        for cpus in counts:
            known[f"{series}-{cpus}"] = MachineType(f"{series}-{cpus}", cpus, memory_mb * cpus)
    return known


MACHINE_TYPES = _machine_types()
ACCELERATORS = {
    "nvidia-tesla-p4": 4,
    "nvidia-tesla-t4": 4,
    "nvidia-tesla-p100": 4,
    "nvidia-tesla-v100": 8,
}
"""GPUs that can be attached, and how many to one VM; every zone has them."""


CUSTOM_TYPE = re.compile(r"(?:[a-z][a-z0-9]*-)?custom-(?P<cpus>\d+)-(?P<memory_mb>\d+)(?:-ext)?")


def machine_type(name: str) -> MachineType | None:
    """The machine type of that name, custom ones too; None if there is none."""
    if custom := CUSTOM_TYPE.fullmatch(name):
        return MachineType(name, int(custom["cpus"]), int(custom["memory_mb"]))
    return MACHINE_TYPES.get(name)


def region_of(zone: str) -> str:
    """`europe-west4` of `europe-west4-a`."""
    return zone.rpartition("-")[0]


def has_zone(zone: str) -> bool:
    """Whether the zone exists."""
    return zone in ZONES.get(region_of(zone), ())


class Catalogue:
    """The fixed choice and a project's own images."""

    def __init__(self, project: str, images: Mapping[str, Path]) -> None:
        """`images`: folders by `PROJECT/FAMILY`; each family has one image."""
        self.project = project
        given = dict(images)
        self.images = [
            Image(*fields, folder=given.pop(f"{fields[0]}/{fields[1]}", None))
            for fields in STOCK_IMAGES
        ]
        for key, folder in given.items():
            owner, _, family = key.partition("/")
            self.images.append(Image(owner, family, f"{family}-local", 10, folder))

    def offer(self, image: Image) -> None:
        """Adds an image of the project as the newest of its family, or replaces the image of that
        name."""
        for index, known in enumerate(self.images):
            if (known.project, known.name) == (image.project, image.name):
                self.images[index] = image
                return
        self.images.insert(0, image)

    def withdraw(self, name: str) -> None:
        """Removes an image of the project."""
        self.images = [i for i in self.images if (i.project, i.name) != (self.project, name)]

    def image(self, reference: str) -> Image | None:
        """The image that a `sourceImage` means now; a family means its newest."""
        match = IMAGE_REFERENCE.fullmatch(reference)
        if not match:
            return None
        project = match["project"] or self.project
        for image in self.images:
            if image.project != project:
                continue
            if match["family"] and image.family == match["name"] and image.state == "ACTIVE":
                return image
            if not match["family"] and image.name == match["name"]:
                return image
        return None

    def vet(self, properties: Mapping, zone: str) -> Fault | None:
        """The reason that a VM of these properties cannot be created in a zone; None if it can."""
        name = str(properties.get("machineType"))
        if machine_type(name) is None:
            path = f"projects/{self.project}/zones/{zone}/machineTypes/{name}"
            return Fault("RESOURCE_NOT_FOUND", f"The resource '{path}' was not found")
        if fault := _vet_maintenance(name, properties):
            return fault
        for disk in properties.get("disks") or []:
            parameters = disk.get("initializeParams") or {}
            reference = parameters.get("sourceImage")
            if not reference:
                continue
            image = self.image(reference)
            if image is None:
                return Fault("RESOURCE_NOT_FOUND", f"The resource '{reference}' was not found")
            if image.state in ("OBSOLETE", "DELETED"):
                return Fault(
                    "RESOURCE_NOT_FOUND", f"The resource '{image.path}' is {image.state.lower()}."
                )
            size_gb = int(parameters.get("diskSizeGb") or image.size_gb)
            if size_gb < image.size_gb:
                return _invalid(
                    "Invalid value for field 'resource.disks[0].initializeParams.diskSizeGb': "
                    f"'{size_gb}'. Requested disk size cannot be smaller than the image size "
                    f"({image.size_gb} GB)"
                )
        return None


def _vet_maintenance(name: str, properties: Mapping) -> Fault | None:
    """Checks whether the machine type allows its policy for host maintenance: to migrate or to
    stop."""
    scheduling = properties.get("scheduling") or {}
    if scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT":
        return None
    policy = scheduling.get("onHostMaintenance") or "MIGRATE"
    series = name.split("-")[0]
    if properties.get("guestAccelerators") or series in ("a2", "a3", "a4", "g2", "g4"):
        if policy == "MIGRATE":
            return _invalid("Instances with guest accelerators do not support live migration.")
    elif (series == "h4d" or name.endswith("-metal")) and policy == "MIGRATE":
        return _invalid(
            "This machine type only supports on_host_maintenance = OnHostMaintenance.TERMINATE."
        )
    elif series == "e2" and policy == "TERMINATE":
        return _invalid(
            "e2 instances do not support onHostMaintenance=TERMINATE unless they are preemptible."
        )
    return None


def _invalid(message: str) -> Fault:
    return Fault("INVALID_FIELD_VALUE", message)
