"""A budget needs a known price, which is pinned for the VM."""

import pytest

from tests.settings.test_settings import check, refusal

SMALL = {"outlast:machineType": "n2-standard-2", "outlast:externalIp": "true"}


def test_the_price_of_an_hour_is_pinned_and_the_worst_case_is_said():
    found = check({**SMALL, "outlast:budgetDollars": "0.5", "outlast:bootDiskGb": "73"})
    spec = found.run_spec("0" * 64)
    # 2 x 0.01208 + 8 x 0.00163 = 0.0372; disk 73 x 0.11 / 730 = 0.011; address 0.005: 0.0532.
    assert spec.budget_dollars == 0.5 and spec.hour_prices == {"n2-standard-2": 0.0532}
    # 0.5 / 0.0532 = 9.4 h, of 24.
    (said,) = [one for one in found.advice if "budgetDollars" in one]
    assert said.startswith(
        "outlast:budgetDollars 0.5: an hour of its VM costs $0.0532 (list prices"
    )
    assert "in the worst case its VMs cost $0.50, after 9 h 23 min by the budget" in said


def test_a_budget_above_the_limit_says_what_the_limit_costs():
    found = check({**SMALL, "outlast:budgetDollars": "100", "outlast:bootDiskGb": "73"})
    (said,) = [one for one in found.advice if "budgetDollars" in one]
    # 24 x 0.0532 = 1.2768.
    assert "in the worst case its VMs cost $1.28, after 1 d by its limit" in said


def test_every_machine_type_that_the_group_may_choose_is_priced():
    values = {
        "gcp:zone": "",
        "outlast:region": "europe-west4",
        "outlast:machineTypes": '["n2-standard-4"]',
        "outlast:budgetDollars": "5",
    }
    found = check({**SMALL, **values})
    assert set(found.hour_prices) == {"n2-standard-2", "n2-standard-4"}
    most = found.hour_prices["n2-standard-4"]
    assert most > found.hour_prices["n2-standard-2"]


def test_without_a_budget_no_price_reaches_the_vm():
    spec = check(SMALL).run_spec("0" * 64)
    assert spec.hour_prices == {} and "outlast-hour-prices" not in spec.to_metadata()
    assert "outlast-budget-dollars" not in spec.to_metadata()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"gcp:zone": "africa-south1-a", "outlast:budgetDollars": "5"},
            "outlast:budgetDollars 5: needs a known price, and that of n2-standard-2 Spot",
        ),
        ({"outlast:budgetDollars": "-1"}, "outlast:budgetDollars '-1': must be a number"),
        ({"outlast:budgetDollars": "much"}, "outlast:budgetDollars 'much': must be a number"),
        (
            {"outlast:budgetDollars": "5", "outlast:part": "foundation"},
            "outlast:budgetDollars '5.0' beside outlast:part foundation: is a run's",
        ),
    ],
)
def test_what_is_refused(values, said):
    assert said in refusal({**SMALL, **values})


def test_without_a_budget_an_unknown_price_refuses_nothing():
    check({**SMALL, "gcp:zone": "africa-south1-a"})
