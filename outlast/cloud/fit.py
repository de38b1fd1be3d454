"""Checks whether a stack's VMs can boot from an image and use their GPUs with it.

Compute Engine creates no disk that is smaller than its image, and a managed group would request
such a VM forever (`sizeGb` of Disk, discovery document compute v1, revision 20261106). An image
without a driver boots, but its GPUs never answer.
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
    modules: str = ""
    """NVIDIA's kernel modules that its GPUs need, `open` or `proprietary`; empty for either."""


def refusal(setting: str, reference: str, image: images.Image, needs: Needs) -> str:
    """Why no VM with these needs may boot from `image`, which `setting` names by `reference`: one
    sentence, then what to do. Empty if it may.
    """
    if needs.gpus and image.lacks_driver:
        return _without_driver(f"{setting} {reference!r}: image {image.name}", needs)
    if why := _python_refusal(setting, reference, image.project, image.name):
        return why
    return size_refusal(f"image {image.name}", image.size_gb, needs)


def reference_refusal(setting: str, reference: str, needs: Needs) -> str:
    """The same, judged by the reference alone; empty if only the cloud knows more."""
    project = images.named_project(reference)
    if needs.gpus and project in images.WITHOUT_DRIVER:
        return _without_driver(f"{setting} {reference!r}: a stock image of {project}", needs)
    return _python_refusal(setting, reference, project, reference.rpartition("/")[2])


def recipe_refusal(baked: recipe.Recipe, needs: Needs) -> str:
    """The same for the image that a recipe would bake, without a lookup."""
    if not (baked.installs_driver or baked.installs_python):
        why = reference_refusal(f"{recipe.KEY}.base", baked.base, needs)
        if why:
            return why
    if baked.driver and (why := _wrong_modules(baked, needs)):
        return why
    what = f"the image of {recipe.KEY} (its diskGb)"
    return size_refusal(what, baked.disk_gb, needs)


def _python_refusal(setting: str, reference: str, project: str, name: str) -> str:
    """Why no supervisor would start on an image of this name; empty if it would, or is unknown."""
    found = images.python_of(project, name)
    if found is None or images.PYTHON_LEAST <= found <= images.PYTHON_MOST:
        return ""
    least, most = (".".join(map(str, one)) for one in (images.PYTHON_LEAST, images.PYTHON_MOST))
    return (
        f"{setting} {reference!r}: has Python {found[0]}.{found[1]}, and a VM needs {least} to"
        f" {most}; name an image that has it, such as {images.DEBIAN}"
    )


def python_advice(setting: str, reference: str) -> str:
    """A warning about a stock image whose Python is not known here; empty for any other image."""
    project, name = images.named_project(reference), reference.rpartition("/")[2]
    if project not in images.WITHOUT_DRIVER or images.python_of(project, name):
        return ""
    least, most = (".".join(map(str, one)) for one in (images.PYTHON_LEAST, images.PYTHON_MOST))
    return (
        f"{setting} {reference!r}: it is not known whether it has Python {least} to {most}, which"
        f" every boot needs; {images.DEBIAN} has"
    )


def _wrong_modules(baked: recipe.Recipe, needs: Needs) -> str:
    """Why the recipe's driver finds no GPU of these VMs; empty if it does."""
    if needs.modules and baked.modules != needs.modules:
        return (
            f"{recipe.KEY}.driverModules {baked.modules!r}: the GPUs of {needs.machine_type} work"
            f" with the {needs.modules} kernel modules only; leave it out, or set it to"
            f" {needs.modules}"
        )
    if needs.modules == recipe.PROPRIETARY and baked.branch >= recipe.PLAIN_NAMES_FROM:
        last = recipe.PLAIN_NAMES_FROM - 10
        return (
            f"{recipe.KEY}.driver {baked.driver!r}: the GPUs of {needs.machine_type} are supported"
            f" up to branch {last}; set it to {last}"
        )
    return ""


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
