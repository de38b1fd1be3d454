"""The instance metadata of a run's VMs."""

from collections.abc import Mapping

import pulumi

from outlast.spec.delivery import VALUE_LIMIT
from outlast.spec.run_spec import RunSpec

TOTAL_LIMIT = 512 * 1024
"""Bytes that the platform allows all keys and values together (Metadata, discovery document compute
v1, revision 20261106)."""


def compose(
    spec: RunSpec,
    *,
    script: str,
    late: Mapping[str, pulumi.Input[str]],
    health: str = "",
    oslogin: bool = False,
) -> dict[str, pulumi.Input[str]]:
    """The metadata, by key.

    `script`: what the VM runs at boot. `late`: values that are known
    only when other resources exist; they replace the spec's. `health`: the port of the VM's health
    process, and the age in seconds above which its answer is bad; empty without health checks.
    `oslogin`: whether people log in, by OS Login. Raises RunError, which the engine prints without
    a traceback, if it is larger than the platform allows.
    """
    items: dict[str, pulumi.Input[str]] = {
        "startup-script": script,
        "block-project-ssh-keys": "TRUE",
        **spec.to_metadata(),
        **late,
    }
    if health:
        items["outlast-health"] = health
    if oslogin:
        items["enable-oslogin"] = "TRUE"
    _check_sizes(items)
    return items


def _check_sizes(items: Mapping[str, pulumi.Input[str]]) -> None:
    """Checks the values that are known now; the later ones (times, names) are short."""
    total = 0
    for key, value in items.items():
        size = len(value.encode()) if isinstance(value, str) else 0
        if size > VALUE_LIMIT:
            raise pulumi.RunError(
                f"metadata {key}: has {size} bytes, at most {VALUE_LIMIT} are allowed; make it"
                " shorter, or keep it in the bucket and pass its path",
            )
        total += len(key.encode()) + size
    if total > TOTAL_LIMIT:
        raise pulumi.RunError(
            f"metadata: has {total} bytes in all, at most {TOTAL_LIMIT} are allowed; make"
            " outlast:args shorter",
        )
