"""Images that a stack's VMs cannot use are refused before anything is looked up."""

import json

import pytest

from outlast.cloud import images, recipe
from tests.program import stack
from tests.settings.test_settings import check, refusal

GPU = {"outlast:machineType": "g2-standard-8"}
T4 = {
    "outlast:machineType": "n1-standard-8",
    "outlast:accelerator": "nvidia-tesla-t4",
    "outlast:acceleratorCount": "2",
}


def baked(**changes):
    return {"outlast:imageRecipe": json.dumps({"packages": ["git"], **changes})}


@pytest.mark.parametrize("machine", [GPU, T4])
@pytest.mark.parametrize(
    "image",
    [
        "projects/debian-cloud/global/images/family/debian-13",
        "projects/debian-cloud/global/images/debian-13-trixie-v20261101",
        "debian-cloud/debian-13",
        "https://www.googleapis.com/compute/v1/projects/ubuntu-os-cloud/global/images/family/u",
        "rocky-linux-cloud/rocky-linux-9",
    ],
)
def test_a_machine_with_gpus_and_a_stock_image_without_a_driver(machine, image):
    said = refusal({**machine, "outlast:image": image})
    assert said.startswith(f"outlast:image {image!r}: a stock image of ")
    assert f"has no GPU driver, and {machine['outlast:machineType']} has " in said
    assert said.endswith(
        f"set outlast:image to one that has it, such as {images.COMMON_GPU}, or bake it with"
        " outlast:imageRecipe.driver"
    )


@pytest.mark.parametrize(
    "image",
    [
        images.COMMON_GPU,
        "ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580",
        "projects/rocky-linux-accelerator-cloud/global/images/family/rocky-linux-9-nvidia-580",
        "projects/acme/global/images/family/trained",
        "family/trained",
        "debian-13",  # perhaps one of the project's own: the cloud knows
    ],
)
def test_images_that_may_have_a_driver(image):
    assert check({**GPU, "outlast:image": image}).gpus == 1


def test_a_machine_without_gpus_needs_no_driver():
    assert check().gpus == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"driver": "580"},
        {"packages": ["nvidia-driver-580-server"]},
        {"packages": ["cuda-drivers-580"]},
        {"base": images.COMMON_GPU},
        {"base": "acme/own"},
    ],
)
def test_recipes_that_give_a_driver(changes):
    assert check({**GPU, **baked(**changes)}).recipe


@pytest.mark.parametrize("changes", [{}, {"cuda": "12.9"}, {"base": "ubuntu-os-cloud/ubuntu-2404"}])
def test_recipes_that_give_none(changes):
    said = refusal({**GPU, **baked(**changes)})
    assert said.startswith("outlast:imageRecipe.base ") and "has no GPU driver" in said


def test_a_recipe_with_a_script_may_install_one():
    given = {"script": "x.sh", "base": "debian-cloud/debian-13"}
    found = recipe.check(given, base="", project="p", zone="europe-west4-a")
    assert found.installs_driver


def test_a_boot_disk_that_is_smaller_than_the_image_that_is_baked():
    said = refusal({**baked(diskGb=60)})
    assert said == (
        "outlast:bootDiskGb 50: the image of outlast:imageRecipe (its diskGb) has 60 GB, and a"
        " disk cannot be smaller than its image; set outlast:bootDiskGb to 60 or more"
    )
    assert check({**baked(diskGb=60), "outlast:bootDiskGb": "60"}).recipe
    # A foundation has no VMs; an experiment on it is asked by the image that it names.
    assert check({**baked(diskGb=60), "outlast:part": "foundation"}).recipe


def test_what_a_recipe_bakes_by_default_fits_the_boot_disk_by_default():
    assert stack.defaults()["outlast:bootDiskGb"] == str(recipe.DEFAULT_DISK_GB)
