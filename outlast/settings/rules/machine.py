"""Rules of the location, the machine and its image."""

import re
from collections.abc import Mapping
from typing import Any

from outlast.cloud import fit
from outlast.cloud import recipe as recipes
from outlast.machines import machines, regions
from outlast.settings.reader import NAMESPACE, Reader, SettingsError, matching
from outlast.spec import delivery, network_rules

_IMAGE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
IMAGE = re.compile(
    # The forms that the provider resolves.
    rf"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/projects/{recipes.PROJECT}/"
    rf"|projects/{recipes.PROJECT}/)?global/images/(?:family/)?{_IMAGE_NAME}"
    rf"|(?:{recipes.PROJECT}/|family/)?{_IMAGE_NAME}"
)
IMAGE_RULE = (
    "must name an image or an image family, such as"
    " projects/debian-cloud/global/images/family/debian-13"
)


def recipe_of(
    read: Reader, project: str, location: regions.Location, network: network_rules.NetworkRules
) -> recipes.Recipe | None:
    """What the stack's image is baked from; None for none."""
    given = read.mapping("imageRecipe")
    if not given:
        return None
    zone = location.zone or (*location.zones, "")[0]
    try:
        recipe = recipes.check(given, base=read.text("image"), project=project, zone=zone)
    except recipes.RecipeError as error:
        raise SettingsError(str(error)) from None
    why = recipes.network_refusal(
        recipe,
        project=project,
        region=location.region,
        network=network.network,
        subnetwork=network.subnetwork,
        internet=network.internet,
    )
    if why:
        raise SettingsError(why)
    try:
        regions.check_zone("imageRecipe.zone", recipe.zone, _unlisted(read))
        machines.check_builder(
            "imageRecipe.machineType", recipe.machine_type, recipes.DISK_TYPE, _unlisted(read)
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None
    matching("imageRecipe.base" if given.get("base") else "image", recipe.base, IMAGE, IMAGE_RULE)
    if read.text("delivery") == delivery.IMAGE and not recipe.trainers:
        raise SettingsError(
            f"{NAMESPACE}:delivery 'image' beside {NAMESPACE}:imageRecipe without trainers: the"
            " image that is baked would not hold the code; add trainers true to the recipe, or set"
            f" {NAMESPACE}:delivery bucket"
        )
    return recipe


def check_image(image: str, recipe: recipes.Recipe | None, needs: fit.Needs) -> None:
    """Refuses an image that no VM with these needs can work with, as far as that is known without
    the cloud; `RunPin` asks about the rest. Raises SettingsError."""
    if recipe:
        why = fit.recipe_refusal(recipe, needs)
    else:
        why = fit.reference_refusal(f"{NAMESPACE}:image", image, needs)
    if why:
        raise SettingsError(why)


def location_of(read: Reader, values: Mapping[str, Any]) -> regions.Location:
    """Zonal or regional."""
    region, zone = (str(values.get(f"gcp:{key}", "")) for key in ("region", "zone"))
    try:
        regions.check_engine(region, zone, _unlisted(read))
        return regions.locate(
            read.text("zone"),
            read.text("region"),
            [str(one) for one in read.array("zones")],
            default=zone,
            unlisted=_unlisted(read),
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None


def _unlisted(read: Reader) -> tuple[str, ...]:
    """Regions, zones and machine types that are newer than Outlast's lists."""
    rule = "must be a region, a zone or a machine type, such as europe-west4"
    return tuple(
        matching("allowUnlisted", str(one), recipes.MACHINE, rule)
        for one in read.array("allowUnlisted")
    )


def machine_of(read: Reader, *, regional: bool) -> tuple[machines.Choice, machines.Checked]:
    """What is asked for, and what follows from it."""
    rule = "must be a machine type's bare name such as e2-standard-2"
    more = [str(one) for one in read.array("machineTypes")]
    choice = machines.Choice(
        mode=read.text("mode"),
        provisioning=read.text("provisioning"),
        machine_type=matching("machineType", read.text("machineType"), recipes.MACHINE, rule),
        more_types=tuple(matching("machineTypes", one, recipes.MACHINE, rule) for one in more),
        accelerator=read.text("accelerator"),
        accelerator_count=read.integer("acceleratorCount", 0, machines.MOST_GPUS),
        local_ssd=read.integer("localSsd", 0, machines.MOST_SSDS),
        min_cpu_platform=read.text("minCpuPlatform"),
        disk_type=matching(
            "bootDiskType",
            read.text("bootDiskType"),
            recipes.MACHINE,
            "must be a disk type's bare name such as pd-balanced",
        ),
        regional=regional,
        retries_failures=read.integer("retriesFailures", 0),
        image=read.text("image"),
        unlisted=_unlisted(read),
    )
    try:
        return choice, machines.check(choice)
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None
