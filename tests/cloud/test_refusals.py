"""What to do about what Google refuses."""

from pathlib import Path

from outlast.cloud import refusals

PAGE = Path(__file__).parents[2] / "docs" / "teams.md"


def test_the_page_has_every_constraint_with_what_satisfies_it():
    rows = {
        tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.startswith(("| `compute.", "| `gcp.", "| `iam.", "| `storage."))
    }
    assert rows == set(refusals.REMEDIES.items())


def test_a_message_is_answered_with_the_setting():
    refused = "Constraint constraints/compute.trustedImageProjects violated for project 1."
    assert "outlast:image" in refusals.remedy("CONDITION_NOT_MET", refused)
    assert "name more zones" in refusals.remedy("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "")
    assert "this quota" in refusals.remedy("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.")
    assert "noticeSec to 0" in refusals.remedy("INVALID_USAGE", "preemptionNoticeDuration: no")
    assert refusals.remedy("INTERNAL", "It failed.") == ""
