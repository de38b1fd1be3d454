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


@pytest.mark.parametrize(
    ("image", "python"),
    [
        ("projects/ubuntu-os-cloud/global/images/family/ubuntu-2604-lts-amd64", "3.14"),
        ("ubuntu-os-cloud/ubuntu-minimal-2204-lts", "3.10"),
        ("projects/debian-cloud/global/images/debian-11-bullseye-v20260101", "3.9"),
        ("rocky-linux-cloud/rocky-linux-9", "3.9"),
    ],
)
def test_a_stock_image_with_another_python_is_refused(image: str, python: str):
    said = refusal({"outlast:image": image})
    assert said.startswith(f"outlast:image {image!r}: has Python {python}, and a VM needs 3.11 to")
    assert "imageRecipe.base" in refusal(baked(base=image))
    assert check(baked(base=image, packages=["python3.13"])).recipe


@pytest.mark.parametrize(
    ("image", "is_known"),
    [
        ("projects/ubuntu-os-cloud/global/images/family/ubuntu-2804-lts-amd64", False),
        ("debian-cloud/debian-14", False),
        ("ubuntu-os-cloud/ubuntu-2404-lts-amd64", True),
        ("debian-cloud/debian-12", True),
        ("acme/own", True),
    ],
)
def test_a_stock_image_of_an_unknown_python_is_warned_about(image: str, is_known: bool):
    advice = check({"outlast:image": image}).advice
    assert any("it is not known whether it has Python" in one for one in advice) is not is_known


def test_the_python_of_the_checks_is_that_of_the_boot():
    text = (stack.ROOT / "startup" / "interpreter.sh").read_text()
    least, most = images.PYTHON_LEAST, images.PYTHON_MOST
    assert f"{least} <= sys.version_info[:2] <= {most}" in text


V100 = {
    "outlast:machineType": "n1-standard-8",
    "outlast:accelerator": "nvidia-tesla-v100",
    "outlast:acceleratorCount": "1",
}
G4 = {"outlast:machineType": "g4-standard-48", "outlast:bootDiskType": "hyperdisk-balanced"}


@pytest.mark.parametrize(
    ("machine", "modules"),
    [(V100, "proprietary"), (G4, "open"), (T4, "open"), (GPU, "open"), ({}, "open")],
)
def test_a_recipe_takes_the_kernel_modules_that_the_gpu_needs(machine, modules: str):
    found = check({**machine, **baked(driver="580")}).recipe
    assert found and found.modules == modules


@pytest.mark.parametrize(
    ("machine", "changes", "why"),
    [
        (V100, {"driver": "580", "driverModules": "open"}, "the proprietary kernel modules only"),
        (G4, {"driver": "580", "driverModules": "proprietary"}, "the open kernel modules only"),
        (V100, {"driver": "590"}, "supported up to branch 580; set it to 580"),
        ({}, {"driver": "580", "driverModules": "nouveau"}, "must be open or proprietary"),
        (
            {**G4, "outlast:machineType": "c4a-standard-4"},
            {"driver": "580"},
            "installed for x86 only",
        ),
    ],
)
def test_a_driver_that_the_gpu_cannot_use_is_refused(machine, changes, why: str):
    assert why in refusal({**machine, **baked(**changes)})
