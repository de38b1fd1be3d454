"""What to do about what Google refuses."""

from outlast.cloud import refusals


def test_a_message_is_answered_with_the_setting():
    refused = "Constraint constraints/compute.trustedImageProjects violated for project 1."
    assert "outlast:image" in refusals.remedy("CONDITION_NOT_MET", refused)
    assert "name more zones" in refusals.remedy("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "")
    assert "this quota" in refusals.remedy("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.")
    assert "noticeSec to 0" in refusals.remedy("INVALID_USAGE", "preemptionNoticeDuration: no")
    assert refusals.remedy("INTERNAL", "It failed.") == ""
