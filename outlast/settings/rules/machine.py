"""Rules for the location, the machine and its image."""

from collections.abc import Mapping
from typing import Any

from outlast.cloud import fit
from outlast.cloud import recipe as recipes
from outlast.machines import machines, regions
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.formats import IMAGE
from outlast.settings.keys import Keys
from outlast.spec import delivery, network_rules


def recipe_of(
    given: Keys,
    project: str,
    location: regions.Location,
    network: network_rules.NetworkRules,
    modules: str,
) -> recipes.Recipe | None:
    """The recipe of the stack's image; None if it bakes none. `modules`: NVIDIA's kernel modules
    that the stack's GPUs need; empty for either.
    """
    if not given.image_recipe:
        return None
    zone = location.zone or (*location.zones, "")[0]
    try:
        recipe = recipes.check(
            given.image_recipe,
            base=given.image,
            project=project,
            zone=zone,
            modules=modules or recipes.OPEN,
        )
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
        regions.check_zone("imageRecipe.zone", recipe.zone, given.allow_unlisted)
        machines.check_builder(
            "imageRecipe.machineType", recipe.machine_type, recipes.DISK_TYPE, given.allow_unlisted
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None
    rules = machines.parse(given.machine_type).rules
    if recipe.driver and rules and rules.arm:
        raise SettingsError(
            f"{recipes.KEY}.driver {recipe.driver!r}: NVIDIA's packages are installed for x86 only,"
            f" and {given.machine_type} has Arm CPUs; name a base that has the driver"
        )
    if not IMAGE.holds(recipe.base):
        raise bad("imageRecipe.base", recipe.base, IMAGE.rule)
    if given.delivery == delivery.IMAGE and not recipe.trainers:
        raise SettingsError(
            f"{NAMESPACE}:delivery 'image' beside {NAMESPACE}:imageRecipe without trainers: the"
            " image that is baked would not hold the code; add trainers true to the recipe, or set"
            f" {NAMESPACE}:delivery bucket"
        )
    return recipe


def check_image(image: str, recipe: recipes.Recipe | None, needs: fit.Needs) -> None:
    """Refuses an image that cannot work for VMs with these needs, as far as is known without the
    cloud; `RunPin` checks the rest. Raises SettingsError.
    """
    if recipe:
        why = fit.recipe_refusal(recipe, needs)
    else:
        why = fit.reference_refusal(f"{NAMESPACE}:image", image, needs)
    if why:
        raise SettingsError(why)


def location_of(given: Keys, values: Mapping[str, Any]) -> regions.Location:
    """The location, zonal or regional."""
    region, zone = (str(values.get(f"gcp:{key}", "")) for key in ("region", "zone"))
    try:
        regions.check_engine(region, zone, given.allow_unlisted)
        return regions.locate(
            given.zone,
            given.region,
            [str(one) for one in given.zones],
            default=zone,
            unlisted=given.allow_unlisted,
        )
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None


def machine_of(given: Keys, *, regional: bool) -> machines.Checked:
    """What follows from the requested machine."""
    choice = machines.Choice(
        mode=given.mode,
        provisioning=given.provisioning,
        machine_type=given.machine_type,
        more_types=given.machine_types,
        accelerator=given.accelerator,
        accelerator_count=given.accelerator_count,
        local_ssd=given.local_ssd,
        min_cpu_platform=given.min_cpu_platform,
        disk_type=given.boot_disk_type,
        regional=regional,
        retries_failures=given.retries_failures,
        image=given.image,
        unlisted=given.allow_unlisted,
    )
    try:
        return machines.check(choice)
    except machines.MachineError as error:
        raise SettingsError(str(error)) from None
