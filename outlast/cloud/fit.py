"""Checks whether a stack's VMs can boot from an image and use their GPUs with it.

Compute Engine creates no disk that is smaller than its image, and a managed group would request
such a VM forever. An image without a driver boots, but its GPUs never answer.
"""

from dataclasses import dataclass

from outlast.cloud import images, recipe


@dataclass(frozen=True)
class Needs:
    """What a stack's VMs need from their image."""

    disk_gb: int
    """Size of the boot disk."""
    gpus: int
    """The least number of GPUs of each VM."""
    machine_type: str


def refusal(setting: str, reference: str, image: images.Image, needs: Needs) -> str:
    """Why no VM with these needs may boot from `image`, which `setting` names by `reference`: one
    sentence, then what to do. Empty if it may.
    """
    if needs.gpus and image.lacks_driver:
        return _without_driver(f"{setting} {reference!r}: image {image.name}", needs)
    return size_refusal(f"image {image.name}", image.size_gb, needs)


def reference_refusal(setting: str, reference: str, needs: Needs) -> str:
    """The same, judged by the reference alone; empty if only the cloud knows more."""
    project = images.named_project(reference)
    if needs.gpus and project in images.WITHOUT_DRIVER:
        return _without_driver(f"{setting} {reference!r}: a stock image of {project}", needs)
    return ""


def recipe_refusal(baked: recipe.Recipe, needs: Needs) -> str:
    """The same for the image that a recipe would bake, without a lookup."""
    if not baked.installs_driver:
        why = reference_refusal(f"{recipe.KEY}.base", baked.base, needs)
        if why:
            return why
    what = f"the image of {recipe.KEY} (its diskGb)"
    return size_refusal(what, baked.disk_gb, needs)


def size_refusal(image: str, size_gb: int, needs: Needs) -> str:
    """Why a boot disk cannot hold an image of this size; empty if it can."""
    if size_gb <= needs.disk_gb:
        return ""
    return (
        f"outlast:bootDiskGb {needs.disk_gb}: {image} has {size_gb} GB, and a disk cannot be "
        f"smaller than its image; set outlast:bootDiskGb to {size_gb} or more"
    )


def _without_driver(subject: str, needs: Needs) -> str:
    many = "a GPU" if needs.gpus == 1 else f"{needs.gpus} GPUs"
    return (
        f"{subject} has no GPU driver, and {needs.machine_type} has {many}; set outlast:image to"
        f" one that has it, such as {images.COMMON_GPU}, or bake it with {recipe.KEY}.driver"
    )
