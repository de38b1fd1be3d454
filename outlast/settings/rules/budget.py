"""Rules for a run's budget: it needs a known price, which is pinned for the VM."""

from collections.abc import Mapping
from typing import Any

from outlast.base.numbers import duration
from outlast.costs import pricing
from outlast.settings.errors import NAMESPACE, SettingsError


def hour_prices(
    billed: Mapping[str, Any], machine_types: tuple[str, ...], zone: str
) -> dict[str, pricing.Sum]:
    """What an hour of a VM costs, by its machine type."""
    return {name: pricing.billed_vm(billed, name, zone) for name in machine_types}


def check_budget(
    dollars: float, limit_minutes: int, prices: Mapping[str, pricing.Sum], zone: str
) -> str:
    """A sentence on the worst case. Raises SettingsError if a price is unknown: the VM could not
    know when the budget is used up.
    """
    key = f"{NAMESPACE}:budgetDollars {dollars:g}"
    unknown = dict.fromkeys(what for one in prices.values() for what in one.unknown)
    if unknown:
        raise SettingsError(
            f"{key}: needs a known price, and that of {', '.join(unknown)} in {zone} is not in the"
            f" list of {pricing.date()}; choose a machine with a known price, refresh the list with"
            f" outlast costs --refresh-prices, or leave out {NAMESPACE}:budgetDollars and limit the"
            f" run by {NAMESPACE}:maxRunMinutes"
        )
    hour = max(one.hour for one in prices.values())
    limit = limit_minutes / 60
    hours = min(dollars / hour, limit)
    until = "its limit" if hours == limit else "the budget"
    return (
        f"{key}: an hour of its VM costs {pricing.dollars(hour)} (list prices of {pricing.date()}),"
        f" so that in the worst case its VMs cost {pricing.dollars(hour * hours)}, after"
        f" {duration(hours * 3600)} by {until}; requests, storage and traffic are not part of the"
        " budget"
    )
