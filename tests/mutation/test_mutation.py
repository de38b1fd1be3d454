"""A change that no test notices fails the run, unless a reason is written for it."""

import json
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.run import Change, Group, Outcome, change_of, explained, faults, table

MODULE = "outlast/bucket/boot.py"
CHANGE = Change("outlast.bucket.boot.decide", "if now >= end:", "if now > end:")
OTHER = Change("outlast.bucket.boot.decide", "return 1", "return 2")


def test_a_change_without_a_reason_is_named() -> None:
    outcome = Outcome(unnoticed={CHANGE, OTHER})
    (said,) = faults(outcome, [OTHER], [MODULE])
    assert said.startswith("no test notices this change: outlast.bucket.boot.decide\n")
    assert "- if now >= end:\n" in said and said.endswith("+ if now > end:")


@pytest.mark.parametrize(
    ("noticed", "expected"),
    [({CHANGE}, "is noticed by a test"), (set(), "does not occur any more")],
)
def test_a_reason_without_its_survivor_is_named(noticed: set[Change], expected: str) -> None:
    (said,) = faults(Outcome(noticed=noticed), [CHANGE], [MODULE])
    assert expected in said and str(CHANGE) in said
    assert list(faults(Outcome(), [CHANGE], ["outlast/bucket/boo.py"])) == []
    assert list(faults(Outcome(endless={CHANGE}), [CHANGE], [MODULE])) == []


def test_a_reason_is_demanded(tmp_path: Path) -> None:
    file = tmp_path / "survivors.yaml"
    rows = [{"old": CHANGE.old, "new": CHANGE.new, "why": "both are the same"}]
    file.write_text(json.dumps({CHANGE.function: rows}))
    assert explained(file) == {CHANGE: "both are the same"}
    del rows[0]["why"]
    file.write_text(json.dumps({CHANGE.function: rows}))
    with pytest.raises(ValueError, match="has no `why`"):
        explained(file)


def test_each_committed_reason_is_of_a_module_that_is_changed() -> None:
    modules = [module for group in run.GROUPS.values() for module in group.modules]
    ours = tuple(f"{module.removesuffix('.py').replace('/', '.')}." for module in modules)
    assert [change for change in explained() if not change.function.startswith(ours)] == []
    files = [*modules, *(test for group in run.GROUPS.values() for test in group.tests)]
    assert [name for name in files if not (run.ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("a.b.x_decide__mutmut_3", "a.b.decide"),
        ("a.b.x__first_head__mutmut_3", "a.b._first_head"),
        ("a.b.xǁHeadFileǁ_pace__mutmut_12", "a.b.HeadFile._pace"),
        ("a.b.xǁHeadǁ__init____mutmut_1", "a.b.Head.__init__"),
    ],
)
def test_a_change_is_known_by_its_lines(name: str, function: str) -> None:
    diff = "--- f\n+++ f\n@@ -1,3 +1,2 @@\n x\n-    go(a,\n-       b)\n+    go(a)\n"
    assert change_of(name, diff) == Change(function, "go(a, b)", "go(a)")


def test_the_table_counts_each_kind() -> None:
    outcome = Outcome(seconds=90)
    outcome.counts.update(killed=3, timeout=1, survived=2, suspicious=1)
    _, row = table({"head": outcome})
    assert row.split() == ["head", "3", "1", "2", "1", "1.5"]


@pytest.mark.long
def test_what_a_test_reaches_is_changed_and_noticed(tmp_path: Path) -> None:
    group = Group(("outlast/bucket/records.py",), ("tests/bucket/test_boot.py",))
    run.prepare(tmp_path, group)
    outcome = run.change_all(tmp_path, 1)
    assert outcome.counts["killed"] > 0
    assert {change.function for change in outcome.noticed} == {
        "outlast.bucket.records.write_record"
    }
