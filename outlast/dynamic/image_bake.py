"""The image that a stack bakes from a recipe.

Pickled by reference into a stack's state: this module's path and its classes' names must never
change, or no stack of an older version could be destroyed.
"""

from typing import Any, TypedDict

import pulumi
from pulumi.dynamic import (
    CheckResult,
    CreateResult,
    DiffResult,
    Resource,
    UpdateResult,
)

from outlast.base import folders
from outlast.dynamic.host import Provider, failure, say


class ImageBakeProvider(Provider):
    """Bakes the image of a recipe; a destroyed stack deletes its images."""

    def check(self, olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Refuses a base that no longer exists, also in previews, if there is something to bake."""
        from outlast.cloud import bake, images

        failures = []
        recipe = news["recipe"]
        if olds.get("hash") != news["hash"]:
            found = images.resolve(recipe["base"], news["project"])
            if isinstance(found, images.Unknown):
                say(f"outlast:imageRecipe.base {recipe['base']!r}: not looked up ({found.why})")
            refusal = bake.base_refusal(recipe["base"], found)
            if refusal:
                failures.append(failure("recipe", refusal))
        return CheckResult(news, failures)

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Other content makes another image, and another family another resource. How the builder
        runs makes no difference. The leftovers of a killed bake do: the update deletes them.
        """
        replaces = [key for key in ("family", "project") if olds.get(key) != news.get(key)]
        changed = olds.get("hash") != news.get("hash")
        # A resource without an image was adopted after a kill (outlast recover); its update bakes
        # it.
        rebakes = changed or bool(replaces) or not olds.get("image")
        return DiffResult(changes=rebakes or self._has_left(olds["image"], news), replaces=replaces)

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(f"{props['project']}/{props['family']}", self._baked(props))

    def update(self, _id: str, _olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(self._baked(news))

    def delete(self, _id: str, props: dict[str, Any]) -> None:
        from outlast.cloud import bake

        bake.remove(props["family"], props["project"], props["labels"])

    def _has_left(self, image: str, props: dict[str, Any]) -> bool:
        from outlast.cloud import bake
        from outlast.cloud.compute import ComputeError

        try:
            return bake.has_left(image, props["family"], props["project"], props["labels"])
        except ComputeError as error:
            say(f"image family {props['family']}: not looked up ({error})")
            return False

    def _baked(self, props: dict[str, Any]) -> dict[str, Any]:
        from outlast.cloud import bake, builder, recipe

        root = folders.project()  # the engine starts its plugins there
        baked = recipe.read(
            recipe.from_dict(props["recipe"]), root, bundle_sha256=props["bundle_sha256"]
        )
        if baked.hash != props["hash"]:
            raise recipe.RecipeError(
                "outlast:imageRecipe: its files have changed since this command began; run pulumi"
                " up again"
            )
        order = builder.Order(
            labels=props["labels"],
            service_account=props["service_account"],
            bundle=props["bundle"],
            bundle_sha256=props["bundle_sha256"],
            payer=props["payer"],
            timeouts=props["timeouts"],
            network=props["network"],
            subnetwork=props["subnetwork"],
            external_ip=props["external_ip"],
        )
        return {**props, "image": bake.bake(baked, order)}


class ImageBakeArgs(TypedDict):
    """Inputs of ImageBake."""

    recipe: dict[str, Any]
    """The recipe as `outlast.cloud.recipe` writes it, with files by their names in the checkout."""
    hash: str
    """Hash of the recipe and its files; it alone decides whether anything is baked."""
    family: str
    project: str
    labels: dict[str, str]
    service_account: pulumi.Input[str]
    bundle: pulumi.Input[str]
    bundle_sha256: str
    payer: str
    timeouts: str
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    external_ip: bool


class ImageBake(Resource, name="ImageBake"):
    """The image of one recipe, the newest of its family."""

    image: pulumi.Output[str]
    """The concrete image's self link."""

    def __init__(
        self, name: str, args: ImageBakeArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(ImageBakeProvider(), name, {**args, "image": None}, opts)
