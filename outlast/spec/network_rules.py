"""Rules for how VMs are reached and what they reach, including their bucket, as pure functions.

A refusal is a sentence without the setting's namespace; `outlast/settings` raises it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT, ISOLATED = "default", "isolated"
"""Networks with a special name; anything else names an existing network."""

RANGE = "10.128.0.0/20"
"""Addresses of an isolated network's subnetwork, unless a setting names others."""

HEALTH_SOURCES = ("130.211.0.0/22", "35.191.0.0/16")
"""Source addresses of the platform's health checks (Google's sample
compute-firewall-rule-for-health-check-tag, read in November 2026)."""

IAP_SOURCES = ("35.235.240.0/20",)
"""Source addresses of Identity-Aware Proxy."""

OFF, OBSERVE, REPAIR = "off", "observe", "repair"
HEALTH_MODES = (OFF, OBSERVE, REPAIR)

HEALTH_PORT = 8099
"""Port of the VM's health process."""

REPAIR_MARGIN_SEC = 600
"""Seconds between the supervisor's own handling of a stuck trainer and the group's replacement of
the VM: room for the kill, the held verdict and the next attempt's restore.
"""

SSH_MODES = ("", "iap")
SOFT_DELETE_DAYS = (0, *range(7, 91))
"""What the platform takes."""

_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]*[a-z0-9]")
_BUCKET_CHARACTERS, _BUCKET_DOTTED = 63, 222
"""The most characters of a bucket's name, or of each part between dots; and of a whole name with
dots.
"""
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){3}")

_STOCK_IMAGE = re.compile(
    r"(?:.*/)?(?:projects/)?(?:[a-z][-a-z0-9]*-cloud|deeplearning-platform-release)/.*"
)


@dataclass(frozen=True)
class NetworkRules:
    """A stack's network and who may connect."""

    network: str
    """One of the special names above, or an existing network's name."""
    subnetwork: str
    """Empty for the network's own in the region."""
    external_ip: bool
    """Whether each VM has an external address."""
    nat: bool
    """Whether VMs without such an address reach the internet."""
    health: str
    health_limit_sec: int
    """Seconds without progress before a VM counts as UNHEALTHY."""
    ssh: bool
    """Whether SSH through Identity-Aware Proxy is allowed."""

    @property
    def isolated(self) -> bool:
        """Whether the network is the stack's own."""
        return self.network == ISOLATED

    @property
    def internet(self) -> bool:
        """Whether a VM reaches more than Google's APIs."""
        return self.external_ip or self.nat

    @property
    def checked(self) -> bool:
        """Whether VMs have health checks."""
        return self.health != OFF

    @property
    def tagged(self) -> bool:
        """Whether these VMs need a firewall rule."""
        return self.checked or self.ssh


def tag(experiment: str) -> str:
    """The network tag of an experiment's VMs."""
    return f"outlast-{experiment}"


def is_stock(image: str) -> bool:
    """Whether an image is one of the platform's own, without an interpreter baked in."""
    return _STOCK_IMAGE.fullmatch(image) is not None


def has_address(network: str, asked: str) -> bool:
    """Whether VMs have external addresses; if `asked` (`true`, `false` or empty) is empty, they
    have them in the default network, because without them VMs there cannot reach a bucket.
    """
    return asked == "true" if asked else network == DEFAULT


def refusal(rules: NetworkRules, needs: Sequence[str]) -> str | None:
    """Why this network cannot work; empty if it can. `needs`: what the run needs from the internet,
    in words.
    """
    if rules.isolated and rules.subnetwork:
        return (
            f"subnetwork {rules.subnetwork!r}: an isolated network has its own; leave it out, or"
            " set network to the name of the network that it is in"
        )
    if rules.isolated and rules.external_ip:
        return (
            "externalIp true: an isolated network has no external addresses; leave it out, or set"
            " nat to true if the VM needs the internet"
        )
    if rules.nat and rules.external_ip:
        return (
            "nat true: VMs with external addresses need none; leave it out, or set externalIp to"
            " false"
        )
    if needs and not rules.internet:
        return (
            f"network {rules.network!r}: its VMs have no external address and no NAT, they reach"
            f" Google's APIs only, and {' and '.join(needs)} from the internet; set nat to true,"
            " or use an image with everything baked in"
        )
    return None


def health_limit_sec(mode: str, stall_sec: int) -> int:
    """How old the last sign of progress may be, derived from the time after which the supervisor
    restarts a stuck trainer.

    With `observe`, a VM turns UNHEALTHY earlier, so that people see it in time. With `repair`, much
    later: only a VM whose supervisor has not acted is replaced.
    """
    return stall_sec // 2 if mode == OBSERVE else stall_sec + REPAIR_MARGIN_SEC


def health_refusal(mode: str, limit_sec: int, stall_sec: int) -> str | None:
    """Why the user's limit cannot work; empty if it can."""
    least = health_limit_sec(REPAIR, stall_sec)
    if mode == REPAIR and limit_sec < least:
        return (
            f"healthLimitSec {limit_sec}: with health repair must be at least {least}, which is"
            f" maxStallMinutes and {REPAIR_MARGIN_SEC} s, or the group would replace a VM whose"
            " supervisor is restarting a stuck trainer; raise it, or leave it out"
        )
    return None


def bucket_rule(name: str) -> str | None:
    """The platform's rule that a bucket's name breaks."""
    if name.startswith("gs://") or "/" in name:
        return "must be a bucket's bare name, without gs:// and without a path"
    parts = name.split(".")
    if not _BUCKET.fullmatch(name) or len(name) < 3:
        return (
            "must have 3 characters or more, lower-case letters, digits, dashes, underscores and"
            " dots, the first and the last a letter or digit"
        )
    if any(not part or part.startswith("-") or part.endswith("-") for part in parts):
        return "must have no two dots in a row and no dash beside a dot"
    if any(len(part) > _BUCKET_CHARACTERS for part in parts) or len(name) > _BUCKET_DOTTED:
        return (
            f"must have at most {_BUCKET_CHARACTERS} characters, with dots {_BUCKET_DOTTED} and"
            f" {_BUCKET_CHARACTERS} between two dots"
        )
    if _NUMBERS.fullmatch(name):
        return "must not look like an IP address"
    if name.startswith("goog") or "google" in name.replace("0", "o"):
        return "must not begin with goog or contain google: Google reserves such names"
    return None
