"""The temporary VM that bakes an image, as the API is asked for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.cloud import images, recipe
from outlast.spec import startup_script

COMPONENT = "image-family"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
HASH_LABEL = 40
"""Digits of the recipe's hash in labels, which may have at most 63 characters."""
GPU_SERIES = ("a2-", "a3-", "a4", "g2-", "g4-")


@dataclass(frozen=True)
class Order:
    """What a bake needs besides the recipe."""

    labels: Mapping[str, str]
    """The stack's labels."""
    service_account: str = ""
    """The builder's account, if it reads the bucket."""
    bundle: str = ""
    """`gs://` path of the bundle, if the trainers are baked in."""
    bundle_sha256: str = ""
    payer: str = ""
    """The project that pays for data in buckets that let the requester pay."""
    timeouts: str = "{}"
    network: str = "default"
    """Name or path."""
    subnetwork: str = ""
    """Empty for the network's own in the region."""
    external_ip: bool = True
    endpoint: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    """More of the builder's metadata."""


def labels(baked: recipe.Baked, order: Order) -> dict[str, str]:
    """The labels of the builder, its disk and its image."""
    return {
        **order.labels,
        "component": COMPONENT,
        "family": baked.recipe.family,
        "recipe": baked.hash[:HASH_LABEL],
    }


def body(baked: recipe.Baked, order: Order, base: images.Image) -> dict[str, Any]:
    """The builder as Compute Engine's API is asked for it."""
    zone = f"zones/{baked.recipe.zone}"
    gpu = baked.recipe.machine_type.startswith(GPU_SERIES)
    asked: dict[str, Any] = {
        "name": baked.builder,
        "machineType": f"{zone}/machineTypes/{baked.recipe.machine_type}",
        "labels": labels(baked, order),
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "deviceName": "boot",
                "initializeParams": {
                    "diskName": baked.builder,
                    "sourceImage": base.path,
                    "diskSizeGb": str(max(baked.recipe.disk_gb, base.size_gb)),
                    "diskType": f"{zone}/diskTypes/{recipe.DISK_TYPE}",
                    "labels": labels(baked, order),
                },
            }
        ],
        "networkInterfaces": [_interface(baked, order)],
        "scheduling": {
            "provisioningModel": "STANDARD",
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE" if gpu else "MIGRATE",
            "maxRunDuration": {"seconds": str(baked.recipe.limit_minutes * 60)},
            "instanceTerminationAction": "DELETE",
        },
        "metadata": {
            "items": [{"key": key, "value": text} for key, text in _metadata(baked, order).items()]
        },
    }
    if baked.recipe.needs_token:
        asked["serviceAccounts"] = [
            {"email": order.service_account, "scopes": [SCOPE]},
        ]
    return asked


def _interface(baked: recipe.Baked, order: Order) -> dict[str, Any]:
    network, subnetwork = order.network, order.subnetwork
    region = baked.recipe.zone.rpartition("-")[0]
    found: dict[str, Any] = {"network": network if "/" in network else f"global/networks/{network}"}
    if subnetwork:
        found["subnetwork"] = (
            subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"
        )
    if order.external_ip:
        found["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    return found


def _metadata(baked: recipe.Baked, order: Order) -> dict[str, str]:
    wanted = {
        "packages": " ".join(baked.recipe.packages),
        "driver": baked.recipe.driver,
        "modules": baked.recipe.modules if baked.recipe.driver else "",
        "cuda": baked.recipe.cuda,
        "data": "\n".join(f"{one.sha256} {one.url} {one.path}" for one in baked.recipe.data),
        "payer": order.payer if baked.recipe.data else "",
        "recipe": baked.hash,
        "timeouts": order.timeouts,
        **{name: recipe.encoded(data) for name, data in baked.files.items()},
    }
    if baked.recipe.trainers:
        wanted["bundle"] = f"{order.bundle_sha256} {order.bundle}"
    return {
        "startup-script": startup_script.read("bake.sh"),
        **{f"outlast-bake-{key}": text for key, text in wanted.items() if text},
        "enable-guest-attributes": "TRUE",
        "block-project-ssh-keys": "TRUE",
        **order.extra,
    }
