"""Rules for Shielded VM, Confidential VM, keys and tags."""

import re
from typing import Any

from outlast.cloud import recipe as recipes
from outlast.machines import machines
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys
from outlast.spec import network_rules

_TAG = re.compile(r"(tagKeys/[0-9]+)=(tagValues/[0-9]+)")


def check_security(given: Keys, *, region: str, recipe: recipes.Recipe | None, gpus: int) -> None:
    """Raises SettingsError for what the platform, or a VM's system, would refuse."""
    _check_confidential(given)
    if given.shielded_vm and gpus and recipe and recipe.installs_driver:
        raise SettingsError(
            f"{NAMESPACE}:shieldedVm 'true' beside a driver in {NAMESPACE}:imageRecipe: Secure Boot"
            " loads no module without a signature that it knows, and the recipe's is built on the"
            f" image; set {NAMESPACE}:image to an image with a signed driver, without the recipe"
        )
    if given.kms_key:
        _check_key(given, region)
    if given.ip_range != network_rules.RANGE and given.network != network_rules.ISOLATED:
        raise SettingsError(
            f"{NAMESPACE}:ipRange {given.ip_range!r} beside {NAMESPACE}:network"
            f" {given.network!r}: only the stack's own network has it; leave it out, or set"
            f" {NAMESPACE}:network to isolated"
        )
    _check_tags(given.resource_tags)


def _check_confidential(given: Keys) -> None:
    kind = given.confidential_vm
    if not kind:
        return
    families = machines.CONFIDENTIAL[kind]
    for machine in (given.machine_type, *given.machine_types):
        if machine not in given.allow_unlisted and machine.partition("-")[0] not in families:
            raise bad(
                "confidentialVm",
                kind,
                f"machine type {machine} does not have it; {', '.join(families)} do",
                f"to another technology, or {NAMESPACE}:machineType to one of these",
            )


def _check_key(given: Keys, region: str) -> None:
    location = given.kms_key.split("/")[3]
    allowed = {region} if given.bucket_mode == "managed" else {region, "global"}
    if location not in allowed:
        raise bad(
            "kmsKey",
            given.kms_key,
            f"is in {location}, and the disks and the bucket that it encrypts are in {region}",
            f"to a key in {region}",
        )
    if given.image_recipe:
        raise SettingsError(
            f"{NAMESPACE}:kmsKey beside {NAMESPACE}:imageRecipe: a bake's disk and image would not"
            f" be encrypted with the key; bake the image in another stack, and set"
            f" {NAMESPACE}:image to it"
        )


def _check_tags(tags: dict[str, Any]) -> None:
    for key, value in tags.items():
        if not _TAG.fullmatch(f"{key}={value}"):
            raise bad(
                f"resourceTags.{key}",
                value,
                "must be tagKeys/NUMBER with tagValues/NUMBER (gcloud resource-manager tags values"
                " list)",
                "to one",
            )
