"""Looks up images and image families: the concrete image, or why there is none.

A template that names a family boots its newest image whenever a VM is created; a reproducible run
names the image. The answer is an image (which may be deprecated or obsolete), a family or image
that does not exist, or *cannot be asked* (no network, no credentials, no permission), which is not
an error: a preview needs no cloud.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.base.retry import Trouble
from outlast.cloud.compute import Compute, ComputeError

UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
DEBIAN = "projects/debian-cloud/global/images/family/debian-13"
DEEP_LEARNING = "projects/deeplearning-platform-release/global/images/family/"
COMMON_GPU = f"{DEEP_LEARNING}common-cu129-ubuntu-2404-nvidia-580"
PYTORCH_GPU = f"{DEEP_LEARNING}pytorch-2-9-cu129-ubuntu-2404-nvidia-580"

RETIRED = (
    # Sources: Google's table of Deep Learning VM images, copy of April 2026, and the release notes
    # of 13 April 2026. (project, families, ended when, what to name instead); the first match
    # counts. It only explains why a lookup failed; images that the cloud still has are not looked
    # up here.
    ("deeplearning-platform-release", "*-cu129-*", "", ""),
    ("deeplearning-platform-release", "*cpu*", "July 2024", UBUNTU),
    ("deeplearning-platform-release", "pytorch-*", "13 April 2026", PYTORCH_GPU),
    ("deeplearning-platform-release", "*", "13 April 2026", COMMON_GPU),
    ("ubuntu-os-cloud", "ubuntu-1*", "the end of its support", UBUNTU),
    ("ubuntu-os-cloud", "ubuntu-20*", "the end of its support", UBUNTU),
    ("debian-cloud", "debian-[89]", "the end of its support", DEBIAN),
    ("debian-cloud", "debian-1[01]", "the end of its support", DEBIAN),
)

WITHOUT_DRIVER = frozenset(
    {"debian-cloud", "ubuntu-os-cloud", "ubuntu-os-pro-cloud", "rocky-linux-cloud", "rhel-cloud"}
    | {"centos-cloud", "almalinux-cloud", "fedora-cloud", "fedora-coreos-cloud", "cos-cloud"}
    | {"suse-cloud", "opensuse-cloud", "oracle-linux-cloud"}
)
"""Projects of stock images without a GPU driver. Images with a driver are in other projects:
deeplearning-platform-release, ubuntu-os-accelerator-images, rocky-linux-accelerator-cloud.
"""

PYTHONS = (
    # (project, images, the system's Python); the first match counts. As of November 2026, from the
    # distributions' package lists.
    ("debian-cloud", "debian-12*", (3, 11)),
    ("debian-cloud", "debian-13*", (3, 13)),
    ("debian-cloud", "debian-11*", (3, 9)),
    ("ubuntu-os-*", "*ubuntu*-2004-*", (3, 8)),
    ("ubuntu-os-*", "*ubuntu*-2204-*", (3, 10)),
    ("ubuntu-os-*", "*ubuntu*-2404-*", (3, 12)),
    ("ubuntu-os-*", "*ubuntu*-25*", (3, 13)),
    ("ubuntu-os-*", "*ubuntu*-2604-*", (3, 14)),
    ("rocky-linux-cloud", "rocky-linux-9*", (3, 9)),
    ("rocky-linux-cloud", "rocky-linux-10*", (3, 12)),
    ("almalinux-cloud", "almalinux-9*", (3, 9)),
    ("almalinux-cloud", "almalinux-10*", (3, 12)),
    ("rhel-*cloud", "rhel-9*", (3, 9)),
    ("rhel-*cloud", "rhel-10*", (3, 12)),
)
"""The Python of stock images; a VM without a baked interpreter runs with it."""
PYTHON_LEAST, PYTHON_MOST = (3, 11), (3, 13)
"""Versions that the VM's requirements are locked for, as in `startup/interpreter.sh`."""

DRIVER_LABEL, NO_DRIVER = "gpu-driver", "none"
"""Text that a bake writes into the description of an image without a driver."""

PROJECTS = (("debian", "debian-cloud"), ("ubuntu", "ubuntu-os-cloud"))
"""Name prefixes that the provider also looks up in the stock projects."""

_PATH = re.compile(
    r"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/)?"
    r"(?:projects/(?P<project>[^/]+)/)?global/images/(?P<family>family/)?(?P<name>[^/]+)"
)
_SHORT = re.compile(r"(?:(?P<project>[^/]+)/)?(?P<name>[^/]+)")


@dataclass(frozen=True)
class Image:
    """The image that a reference currently means."""

    self_link: str
    project: str
    name: str
    family: str
    state: str = "ACTIVE"
    """ACTIVE, DEPRECATED (usable), OBSOLETE or DELETED (no VM can boot from it)."""
    replacement: str = ""
    """The replacement that its owner names, once it is not active."""
    labels: Mapping[str, str] = field(default_factory=dict)
    size_gb: int = 0

    @property
    def path(self) -> str:
        """The form that templates take: `projects/P/global/images/NAME`."""
        return f"projects/{self.project}/global/images/{self.name}"

    @property
    def lacks_driver(self) -> bool:
        """Whether it is known to have no GPU driver."""
        return self.project in WITHOUT_DRIVER or self.labels.get(DRIVER_LABEL) == NO_DRIVER

    @property
    def usable(self) -> bool:
        """Whether VMs can boot from it."""
        return self.state in ("ACTIVE", "DEPRECATED")


@dataclass(frozen=True)
class ImageMissing:
    """No such image or family: it never existed, or its owner deleted it."""

    reference: str
    successor: str
    """What to name instead; empty if unknown."""
    since: str
    """When it ended, in words; only with a successor."""

    @property
    def why(self) -> str:
        """The end of a sentence that starts with the field and the reference."""
        if not self.successor:
            return "there is no such image or image family; name one that exists"
        return f"has not existed since {self.since}; its successor is {self.successor}"


@dataclass(frozen=True)
class Unknown:
    """The API could not be asked."""

    why: str
    trouble: Trouble | None = None
    """None if another try would get the same answer."""


def resolve(reference: str, project: str, *, endpoint: str = "") -> Image | ImageMissing | Unknown:
    """Looks up the image that `reference`, in any form that the provider accepts, means now.

    `project` is for references without a project. Makes one or two calls of at most ten seconds
    each.
    """
    compute = Compute(project, endpoint=endpoint)
    candidates = _candidates(reference, project)
    for owner, path in candidates:
        try:
            found = compute.find(f"global/images/{path}", project=owner)
        except ComputeError as error:
            return Unknown(str(error), error.trouble)
        if found is not None:
            return _image(owner, found)
    return _gone(reference, candidates)


def named_project(reference: str) -> str:
    """The project that a reference names; empty if it names none."""
    match = _PATH.fullmatch(reference) or _SHORT.fullmatch(reference)
    project = (match["project"] if match else "") or ""
    return "" if project == "family" else project


def python_of(project: str, name: str) -> tuple[int, int] | None:
    """The Python of an image or family of a project; None if it is not known."""
    found = (
        version
        for owner, pattern, version in PYTHONS
        if fnmatch.fnmatchcase(project, owner) and fnmatch.fnmatchcase(name, pattern)
    )
    return next(found, None)


def _candidates(reference: str, project: str) -> list[tuple[str, str]]:
    """(project, path below global/images) of each possible meaning, in the provider's order."""
    if match := _PATH.fullmatch(reference):
        family = "family/" if match["family"] else ""
        return [(match["project"] or project, family + match["name"])]
    match = _SHORT.fullmatch(reference)
    if match is None:
        return []
    if match["project"] == "family":
        return [(project, f"family/{match['name']}")]
    name = match["name"]
    owners = [match["project"] or project]
    if not match["project"]:
        owners += [owner for start, owner in PROJECTS if name.startswith(start)]
    return [(owner, path) for owner in owners for path in (name, f"family/{name}")]


def _image(owner: str, answer: Mapping[str, Any]) -> Image:
    deprecated = answer.get("deprecated") or {}
    return Image(
        self_link=str(answer["selfLink"]).replace("/compute/beta/", "/compute/v1/"),
        project=owner,
        name=str(answer["name"]),
        family=str(answer.get("family") or ""),
        state=str(deprecated.get("state") or "ACTIVE"),
        replacement=str(deprecated.get("replacement") or ""),
        labels=dict(answer.get("labels") or {}),
        size_gb=int(answer.get("diskSizeGb") or 0),
    )


def _gone(reference: str, candidates: list[tuple[str, str]]) -> ImageMissing:
    for owner, path in candidates:
        family = path.removeprefix("family/")
        for project, pattern, since, successor in RETIRED:
            if owner == project and fnmatch.fnmatchcase(family, pattern):
                return ImageMissing(reference, successor, since)
    return ImageMissing(reference, "", "")
