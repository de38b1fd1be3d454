"""Rules for the network and for access to VMs."""

from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import Keys
from outlast.spec import delivery, network_rules


def network_of(given: Keys, git: delivery.Git | None) -> network_rules.NetworkRules:
    """The network and the access to VMs. Raises SettingsError for what is impossible."""
    network, health, asked_sec = given.network, given.health, given.health_limit_sec
    stall_sec = given.max_stall_minutes * 60
    if asked_sec and health == network_rules.OFF:
        raise SettingsError(
            f"{NAMESPACE}:healthLimitSec {asked_sec} beside {NAMESPACE}:health off: nothing checks"
            f" the VM's health; leave it out, or set {NAMESPACE}:health to observe or repair"
        )
    found = network_rules.NetworkRules(
        network=network,
        subnetwork=given.subnetwork,
        external_ip=network_rules.has_address(network, given.external_ip.lower()),
        nat=given.nat,
        health=health,
        health_limit_sec=asked_sec or network_rules.health_limit_sec(health, stall_sec),
        ssh=given.ssh != "",
    )
    why = network_rules.refusal(found, _needs_internet(given, git))
    if why and (base := given.foundation):
        why += f"; the network is set in stack {base}"
    why = why or network_rules.health_refusal(health, found.health_limit_sec, stall_sec)
    if why:
        raise SettingsError(f"{NAMESPACE}:{why}")
    return found


def _needs_internet(given: Keys, git: delivery.Git | None) -> list[str]:
    """What a boot fetches from outside of Google's APIs, in words."""
    if given.part != "experiment":
        return []
    needs = []
    if git is not None:
        needs.append(f"the trainer is fetched from {git.url}")
    if network_rules.is_stock(given.image) and not given.image_recipe:
        needs.append(f"a VM of the stock image {given.image} installs its packages")
    if given.delivery == delivery.GIT:
        needs.append(f"a VM fetches the code from {given.git_url.rpartition('@')[2]}")
    packages = git.requirements if git is not None else given.requirements
    if packages:
        needs.append(f"what {packages} names is installed")
    return needs
