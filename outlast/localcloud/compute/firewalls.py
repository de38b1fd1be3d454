"""Decides which packets a network's firewall rules allow.

Nothing is routed here: the answer matters for health checks, which the real platform also blocks
without a rule."""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from outlast.localcloud.base.state import Entry
from outlast.localcloud.compute.declared_kinds import DEFAULT_NETWORK, FIREWALL
from outlast.localcloud.compute.links import Json

DEFAULT_PRIORITY = 1000


def lets_in(
    rules: Iterable[Mapping[str, Any]],
    *,
    network: str,
    tags: Iterable[str],
    account: str,
    source: str,
    port: int,
) -> bool:
    """Whether TCP from an address reaches a port of a VM with these tags and this account. The
    matching rule with the lowest priority number decides; at the same priority, a denial wins."""
    own = set(tags)
    meant = [
        rule
        for rule in rules
        if rule.get("direction", "INGRESS") == "INGRESS"
        and not rule.get("disabled")
        and rule["network"].rpartition("/")[2] == network.rpartition("/")[2]
        and _is_target(rule, own, account)
        and _is_from(rule, source)
        and _covers(rule, port)
    ]
    meant.sort(key=lambda rule: (int(rule.get("priority", DEFAULT_PRIORITY)), "allowed" in rule))
    return bool(meant) and "allowed" in meant[0]


def _is_target(rule: Mapping[str, Any], tags: set[str], account: str) -> bool:
    wanted, accounts = rule.get("targetTags") or [], rule.get("targetServiceAccounts") or []
    return (not wanted and not accounts) or bool(tags & set(wanted)) or account in accounts


def _is_from(rule: Mapping[str, Any], source: str) -> bool:
    """Whether a rule matches a source address; rules with source tags or accounts match only
    VMs."""
    address = ipaddress.ip_address(source)
    return any(address in ipaddress.ip_network(one) for one in rule.get("sourceRanges") or [])


def _covers(rule: Mapping[str, Any], port: int) -> bool:
    for entry in rule.get("allowed") or rule.get("denied") or []:
        if str(entry.get("IPProtocol")).lower() not in ("tcp", "6", "all"):
            continue
        ports = entry.get("ports") or []
        ranges = [str(one).partition("-") for one in ports]
        if not ports or any(int(low) <= port <= int(high or low) for low, _, high in ranges):
            return True
    return False


class Firewalls:
    """The declared firewall rules of a project."""

    def __init__(self, declared: Mapping[str, Entry]) -> None:
        """`declared` holds all declared objects, by path."""
        self._declared = declared

    def lets_in(self, properties: Json, account: str, sources: Iterable[str], port: int) -> bool:
        """Whether TCP from all of these addresses reaches a port of a VM."""
        interface = (properties.get("networkInterfaces") or [{}])[0]
        entries = [
            self._declared[key] for key in self._declared if key.startswith(f"{FIREWALL.path}/")
        ]
        return all(
            lets_in(
                [entry["body"] for entry in entries],
                network=self._network_behind(interface),
                tags=(properties.get("tags") or {}).get("items") or [],
                account=account,
                source=source,
                port=port,
            )
            for source in sources
        )

    def _network_behind(self, interface: Json) -> str:
        """The network of a VM's interface, named directly or by its subnetwork."""
        if interface.get("network"):
            return str(interface["network"])
        path = str(interface.get("subnetwork") or "").partition("/regions/")[2]
        entry = self._declared.get(f"regions/{path}")
        return str(entry["body"]["network"]) if entry else DEFAULT_NETWORK
