"""Rules of the network and of who may come in."""

import re

from outlast.cloud import recipe as recipes
from outlast.settings.reader import NAMESPACE, Reader, SettingsError, bad, matching
from outlast.settings.rules.limits import LIMIT_RUN_MINUTES, LIMIT_WAIT_SEC
from outlast.spec import delivery, network_rules

_NETWORK = re.compile(
    rf"(?:projects/{recipes.PROJECT}/global/networks/)?[a-z](?:[-a-z0-9]{{0,61}}[a-z0-9])?"
)
_SUBNETWORK = re.compile(
    rf"(?:projects/{recipes.PROJECT}/regions/[-a-z0-9]+/subnetworks/)?"
    r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)?"
)


def network_of(read: Reader, git: delivery.Git | None) -> network_rules.NetworkRules:
    """The network and who may come in. Raises SettingsError for what cannot be."""
    network = matching(
        "network",
        read.text("network"),
        _NETWORK,
        "must be default, isolated or the name of an existing network",
    )
    stall_sec = read.integer("maxStallMinutes", 1, LIMIT_RUN_MINUTES) * 60
    health = read.choice("health", *network_rules.HEALTH_MODES)
    asked_sec = read.integer("healthLimitSec", 0, LIMIT_WAIT_SEC)
    if asked_sec and health == network_rules.OFF:
        raise SettingsError(
            f"{NAMESPACE}:healthLimitSec {asked_sec} beside {NAMESPACE}:health off: nothing asks"
            f" for the VM's health; leave it out, or set {NAMESPACE}:health to observe or repair"
        )
    found = network_rules.NetworkRules(
        network=network,
        subnetwork=matching(
            "subnetwork",
            read.text("subnetwork"),
            _SUBNETWORK,
            "must be the name of a subnetwork in the zone's region",
        ),
        external_ip=network_rules.has_address(network, _yes_no("externalIp", read)),
        nat=read.boolean("nat"),
        health=health,
        health_limit_sec=asked_sec or network_rules.health_limit_sec(health, stall_sec),
        ssh=read.choice("ssh", *network_rules.SSH_MODES) != "",
    )
    why = network_rules.refusal(found, _needs_internet(read, git))
    if why and (base := read.text("foundation")):
        why += f"; the network is set in stack {base}"
    why = why or network_rules.health_refusal(health, found.health_limit_sec, stall_sec)
    if why:
        raise SettingsError(f"{NAMESPACE}:{why}")
    return found


def _yes_no(key: str, read: Reader) -> str:
    """`true`, `false` or empty."""
    text = read.text(key).lower()
    if text not in ("true", "false", ""):
        raise bad(key, text, "must be true or false", "or leave it empty")
    return text


def _needs_internet(read: Reader, git: delivery.Git | None) -> list[str]:
    """What a boot fetches from elsewhere than Google's APIs, in words."""
    if read.text("part") == "foundation":
        return []
    needs = []
    if git is not None:
        needs.append(f"the trainer is fetched from {git.url}")
    if network_rules.is_stock(read.text("image")) and not read.mapping("imageRecipe"):
        needs.append(f"a VM of the stock image {read.text('image')} installs its packages")
    if read.text("delivery") == delivery.GIT:
        needs.append(f"a VM fetches the code from {read.text('gitUrl').rpartition('@')[2]}")
    packages = git.requirements if git is not None else read.text("requirements")
    if packages:
        needs.append(f"what {packages} names is installed")
    return needs
