"""The run's budget: what its VMs may cost together, and when that is used up."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from outlast.base.numbers import dollars
from outlast.bucket import history, uptime
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import Damaged
from outlast.bucket.uptime import Life
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.metadata import Machine

_log = logging.getLogger(__name__)

HOUR_DOLLARS_MAX = 10_000.0
"""No VM costs so much an hour: a price above it was not written by Outlast."""


class Budget:
    """The budget of one run on this machine.

    A VM has no list of prices: `up` pins what an hour costs, by machine type, and each attempt
    records it. What earlier VMs cost is their time in the bucket's records by the price that they
    recorded themselves.
    """

    def __init__(self, spec: RunSpec, head_file: HeadFile, machine: Machine) -> None:
        self._dollars = spec.budget_dollars
        self._prices = spec.hour_prices
        self._head_file = head_file
        self._machine = machine
        self.deadline: datetime | None = None
        """When the money is used up, in server time; None without a budget."""
        self.bought_sec = 0.0
        """Seconds of this machine that the whole budget would pay for."""

    def begin(self) -> str:
        """Adds up what the run's VMs have cost, once this attempt's start is recorded. Returns a
        sentence if the budget is used up already, otherwise nothing. Raises HeadError and
        StoreError.
        """
        if not self._dollars:
            return ""
        store, layout = self._head_file.store, self._head_file.layout
        try:
            book = self._head_file.patience(lambda: history.read(store, layout))
            lives = self._head_file.patience(lambda: uptime.lives_of(store, layout, book))
        except ValueError as error:
            raise Damaged(f"what the run has cost is not known: {error}") from None
        own = self._machine.instance_id
        before = sum(life.hours * self._price_of(life) for life in lives if life.instance_id != own)
        began = min((life.start for life in lives if life.instance_id == own), default=store.now())
        hour = self._own_price()
        left = timedelta(hours=max(self._dollars - before, 0.0) / hour)
        self.deadline = began + left
        self.bought_sec = self._dollars / hour * 3600
        said = f"budget of {dollars(self._dollars)}: earlier VMs cost {dollars(before)}"
        _log.info(f"{said}, this one costs {dollars(hour)} an hour")
        if store.now() < self.deadline:
            return ""
        return (
            f"the run's {said}, so that it is used up; raise outlast:budgetDollars, and outlast"
            " resume continues it"
        )

    @property
    def message(self) -> str:
        """Why the run stops."""
        return (
            f"the run's budget of {dollars(self._dollars)} is used up; raise outlast:budgetDollars,"
            " and outlast resume continues it"
        )

    def _own_price(self) -> float:
        found = _price(self._prices, self._machine.machine_type)
        if found is None:
            raise Damaged(
                f"budget of {dollars(self._dollars)}: no price of machine type"
                f" {self._machine.machine_type} was pinned; run outlast up again"
            )
        return found

    def _price_of(self, life: Life) -> float:
        """What an hour of an earlier VM cost; as one of this machine if it recorded no price."""
        record = life.record
        pinned = record.spec.get("hour_prices") if record else None
        if record is not None and isinstance(pinned, Mapping):
            found = _price(pinned, record.machine_type)
            if found is not None:
                return found
        _log.info(f"VM {life.instance}: recorded no price, so it counts as one of this machine")
        return self._own_price()


def _price(prices: Mapping[str, object], machine_type: str) -> float | None:
    """Of a machine type, given bare or as a URL; None if there is none above 0."""
    return uptime.within(prices.get(machine_type.rpartition("/")[2]), HOUR_DOLLARS_MAX) or None
