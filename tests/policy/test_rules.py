"""What a reviewer refuses: each rule fires on what breaks it and passes what keeps it."""

import json
from typing import Any

import pytest

from outlast.cli.review.rules import load
from outlast.costs import pricing

rules = load()

ZONE = "europe-west4-a"

TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
PROJECT_MEMBER = "gcp:projects/iAMMember:IAMMember"
LABELS = {
    "managed-by": "outlast",
    "project": "outlast",
    "stack": "dev",
    "component": "vm-template",
    "experiment": "dev",
}
GOOD: dict[str, Any] = {
    "machineType": "e2-standard-2",
    "scheduling": {"terminationTime": "2026-11-29T11:13:15Z"},
    "labels": LABELS,
    "networkInterfaces": [{"network": "default"}],
    "metadata": {"startup-script": "#!/bin/bash\ncurl https://storage.googleapis.com/b\n"},
}
GOOD_BUCKET: dict[str, Any] = {
    "publicAccessPrevention": "enforced",
    "uniformBucketLevelAccess": True,
    "labels": {"managed-by": "outlast", "component": "checkpoint-bucket"},
}


BUCKET_POLICY = "gcp:storage/bucketIAMPolicy:BucketIAMPolicy"
PROJECT_POLICY = "gcp:projects/iAMPolicy:IAMPolicy"


def policy(role: str, who: str) -> str:
    return json.dumps({"bindings": [{"role": role, "members": [who]}]})


def broken(kind: str, inputs: dict[str, Any], limits: Any = None) -> list[str]:
    one = rules.Resource(kind, "it", inputs)
    return [found.rule for found in rules.check([one], limits or rules.Limits())]


def template(**changed: Any) -> dict[str, Any]:
    return {**GOOD, **changed}


def test_what_keeps_every_rule_passes():
    assert broken(TEMPLATE, GOOD) == []
    assert broken(rules.BUCKET, GOOD_BUCKET) == []
    run = template(scheduling={"maxRunDuration": {"seconds": 3600}})
    assert broken(TEMPLATE, run) == []
    reason = template(
        networkInterfaces=[{"accessConfigs": [{}]}], labels={**LABELS, "external-ip": "no-nat"}
    )
    assert broken(TEMPLATE, reason) == []
    assert broken(TEMPLATE, template(networkInterfaces=[{"accessConfigs": []}])) == []


@pytest.mark.parametrize(
    ("kind", "inputs", "rule"),
    [
        (TEMPLATE, template(scheduling={"provisioningModel": "SPOT"}), "run-limit"),
        ("gcp:compute/instance:Instance", template(scheduling=None), "run-limit"),
        (rules.BUCKET, {**GOOD_BUCKET, "publicAccessPrevention": "inherited"}, "public-access"),
        (rules.BUCKET, {**GOOD_BUCKET, "uniformBucketLevelAccess": False}, "public-access"),
        (MEMBER, {"member": "allUsers", "role": "roles/storage.objectViewer"}, "public-access"),
        (
            "gcp:storage/bucketIAMBinding:BucketIAMBinding",
            {"members": ["user:a@b.c", "allAuthenticatedUsers"], "role": "roles/storage.admin"},
            "public-access",
        ),
        (
            "gcp:storage/bucketACL:BucketACL",
            {"roleEntities": ["READER:allUsers"]},
            "public-access",
        ),
        (TEMPLATE, template(networkInterfaces=[{"accessConfigs": [{}]}]), "external-ip"),
        (TEMPLATE, template(networkInterfaces=[{"ipv6AccessConfigs": [{}]}]), "external-ip"),
        (PROJECT_MEMBER, {"member": "user:a@b.c", "role": "roles/editor"}, "primitive-role"),
        (
            "gcp:projects/iAMBinding:IAMBinding",
            {"members": ["user:a@b.c"], "role": "roles/owner"},
            "primitive-role",
        ),
        (BUCKET_POLICY, {"policyData": policy("roles/storage.admin", "allUsers")}, "public-access"),
        (PROJECT_POLICY, {"policyData": policy("roles/owner", "user:a@b.c")}, "primitive-role"),
        (PROJECT_POLICY, {"policyData": "unknown before up"}, "unjudged"),
        (PROJECT_POLICY, {"policyData": {"bindings": []}}, "unjudged"),
        *(
            (PROJECT_POLICY, {"policyData": text}, "unjudged")
            for text in (
                '{"bindings": [{"role": "roles/owner", "members": ["user:a"]}], "bindings": []}',
                '{"bindings": [], "Bindings": [{"role": "roles/owner", "members": ["user:a"]}]}',
                '{"Bindings": [{"role": "roles/owner", "members": ["user:a"]}]}',
                '{"bindings": [{"Role": "roles/owner", "members": ["user:a"]}]}',
                '{"bindings": [{"role": "roles/x", "members": [], "Members": ["allUsers"]}]}',
                '{"bindings": {"role": "roles/owner", "members": ["user:a"]}}',
            )
        ),
        (
            "gcp:storage/bucketIAMMember:BucketIAMMember",
            {"member": " allusers", "role": "roles/storage.objectViewer"},
            "public-access",
        ),
        (TEMPLATE, template(scheduling={"maxRunDuration": {"seconds": 0}}), "run-limit"),
        (TEMPLATE, template(scheduling={"maxRunDuration": {"nanos": 1}}), "run-limit"),
        ("gcp:storage/bucketACL:BucketACL", {"predefinedAcl": "publicRead"}, "public-access"),
        ("gcp:storage/bucketACL:BucketACL", {"defaultAcl": "READER:allUsers"}, "public-access"),
        (
            "gcp:storage/objectACL:ObjectACL",
            {"predefinedAcl": "authenticatedRead"},
            "public-access",
        ),
        (
            "gcp:storage/bucketAccessControl:BucketAccessControl",
            {"entity": "allUsers", "role": "READER"},
            "public-access",
        ),
        (
            "gcp:serviceaccount/iAMMember:IAMMember",
            {"member": "allUsers", "role": "roles/iam.serviceAccountTokenCreator"},
            "public-access",
        ),
        (
            "gcp:secretmanager/secretIamPolicy:SecretIamPolicy",
            {"policyData": policy("roles/owner", "user:a@b.c")},
            "primitive-role",
        ),
        ("gcp:compute/instanceFromTemplate:InstanceFromTemplate", GOOD, "unjudged"),
        ("gcp:compute/projectMetadata:ProjectMetadata", {"metadata": {}}, "unjudged"),
        ("gcp:serviceaccount/key:Key", {}, "unjudged"),
        ("gcp:container/cluster:Cluster", {}, "unjudged"),
        ("gcp:cloudrunv2/job:Job", {}, "unjudged"),
        ("gcp:cloudfunctionsv2/function:Function", {}, "unjudged"),
        ("gcp:bigquery/datasetAccess:DatasetAccess", {"iamMember": "allUsers"}, "unjudged"),
        ("gcp:cloudidentity/groupMembership:GroupMembership", {}, "unjudged"),
        ("gcp:deploymentmanager/deployment:Deployment", {}, "unjudged"),
        ("gcp:osconfig/osPolicyAssignment:OsPolicyAssignment", {}, "unjudged"),
        ("gcp:sql/databaseInstance:DatabaseInstance", {}, "unjudged"),
        ("google-native:compute/v1:Instance", {}, "unjudged"),
        ("command:local:Command", {"create": "id"}, "unjudged"),
        ("kubernetes:core/v1:Pod", {}, "unjudged"),
        ("aws:ec2/instance:Instance", {}, "unjudged"),
        (PROJECT_MEMBER, {"member": "user:a@b.c", "role": "roles/admin"}, "primitive-role"),
        (PROJECT_MEMBER, {"member": "user:a@b.c", "role": "roles/writer"}, "primitive-role"),
        (
            "gcp:storage/bucketIAMMember:BucketIAMMember",
            {"member": "principalSet://goog/public:all", "role": "roles/storage.objectViewer"},
            "public-access",
        ),
        (
            rules.RANKED_GROUP,
            {"allInstancesConfig": {"metadata": {"token": "ghp_" + "a" * 36}}},
            "secret",
        ),
        (TEMPLATE, template(machineType="a3-highgpu-16g"), "gpu-ceiling"),
        (TEMPLATE, template(guestAccelerators=[{"type": "t4", "count": 9}]), "gpu-ceiling"),
        (TEMPLATE, template(labels={"managed-by": "outlast"}), "labels"),
        (rules.BUCKET, {**GOOD_BUCKET, "labels": {}}, "labels"),
    ],
)
def test_each_rule_fires(kind, inputs, rule):
    assert broken(kind, inputs) == [rule]


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ((True, 0), (False, 0), "versions True → False"),
        ((False, 1209600), (False, 604800), "seconds of soft delete 1209600 → 604800"),
        ((True, 604800.0), (False, 0), "seconds of soft delete 604800 → 0, versions True → False"),
        ((True, 604800), (True, 604800), None),
        ((False, 0), (True, 604800), None),
        ((True, 604800), (None, None), None),
        ((None, None), (False, 0), None),
        ((True, 604800), ("unknown", "unknown"), None),
    ],
)
def test_a_bucket_that_protects_less_than_before_is_refused(before, now, lost):
    def bucket(versions, seconds):
        protection = {
            "versioning": {"enabled": versions} if versions is not None else None,
            "softDeletePolicy": {"retentionDurationSeconds": seconds}
            if seconds != "unknown"
            else seconds,
        }
        return {**GOOD_BUCKET, **protection}

    one = rules.Resource(rules.BUCKET, "it", bucket(*now), bucket(*before))
    found = rules.check([one])
    assert [broken.rule for broken in found] == (["weaker-bucket"] if lost else [])
    assert all(f"({lost}), and other stacks" in broken.why for broken in found)
    assert rules.check([rules.Resource(rules.BUCKET, "it", bucket(*now))]) == []


# Made up and put together here, so that no scanner takes this file for a leak.
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE", "a private key"),
        (json.dumps({"type": "service_account", "private_key": "x"}), "a service account's key"),
        ("export KEY=AKIA" + "ABCDEFGHIJKLMNOP", "an AWS access key"),
        ("ghp_" + "a1" * 18, "a GitHub token"),
        ("github_pat_" + "a1" * 12, "a GitHub token"),
        ("glpat-" + "a1" * 10, "a GitLab token"),
        ("AIza" + "a" * 35, "a Google API key"),
        ("ya29." + "a" * 30, "a Google access token"),
        ("hf_" + "a" * 34, "a Hugging Face token"),
        ("xoxb-" + "1" * 12, "a Slack token"),
        ("git clone https://me:s3cret@example.com/a.git", "a password in an address"),
    ],
)
def test_a_secret_in_metadata_is_named_and_not_shown(value, what):
    one = rules.Resource(TEMPLATE, "it", template(metadata={"outlast-arg-note": value}))
    (found,) = rules.check([one])
    assert found.rule == "secret" and f"metadata outlast-arg-note holds {what};" in found.why
    assert value not in found.why


@pytest.mark.parametrize(
    "value",
    [
        "https://storage.googleapis.com:443/b/o@v1",
        "gs://bucket/data/a@b.csv",
        "http://${HOST}:${PORT}@",
        "mail me@example.com",
        "akia",
    ],
)
def test_what_only_looks_like_a_secret_passes(value):
    assert broken(TEMPLATE, template(metadata={"key": value})) == []


def test_the_ceiling_counts_the_stack_and_is_the_organisations():
    four = rules.Resource(TEMPLATE, "a", template(machineType="g2-standard-48"))
    assert rules.check([four, four]) == []
    (found,) = rules.check([four, four, four])
    assert found.rule == "gpu-ceiling" and "have 12 GPUs, and 8 are allowed" in found.why
    assert rules.check([four], rules.Limits(gpus=3))


def test_the_ceilings_take_the_dearest_machine_type_that_a_group_ranks():
    own = rules.Resource(TEMPLATE, "a", template(machineType="a2-highgpu-1g"))
    ranked = ["a2-highgpu-1g", "a2-megagpu-16g"]
    policy = {"instanceSelections": [{"name": n, "machineTypes": [n]} for n in ranked]}
    group = rules.Resource(rules.RANKED_GROUP, "g", {"instanceFlexibilityPolicy": policy})
    assert rules.check([own], rules.Limits(gpus=1)) == []
    (found,) = rules.check([own, group], rules.Limits(gpus=1))
    assert found.rule == "gpu-ceiling" and "have 16 GPUs, and 1 are allowed" in found.why
    priced = pricing.dearest([one.inputs for one in rules.choices(own, [own, group])], ZONE)
    assert priced.hour == pricing.vm({**own.inputs, "machineType": ranked[1]}, ZONE).hour
    assert priced.hour > pricing.vm(own.inputs, ZONE).hour > 0


def test_a_choice_without_a_known_price_makes_the_sum_a_lower_bound():
    known = {"machineType": "n2-highcpu-80", "scheduling": {"provisioningModel": "SPOT"}}
    sums = pricing.dearest([known, {**known, "machineType": "x9-mega-2"}], ZONE)
    assert sums.hour == pricing.vm(known, ZONE).hour and sums.said().startswith("at least")


def test_an_organisation_may_require_its_own_labels():
    asked = rules.Limits(labels=("cost-centre",))
    assert broken(TEMPLATE, GOOD, asked) == ["labels"]
    assert broken(TEMPLATE, template(labels={**LABELS, "cost-centre": "a"}), asked) == []


def test_what_a_rule_cannot_judge_is_allowed_by_name_only():
    cluster = "gcp:container/cluster:Cluster"
    limits = rules.parse({"unjudged": {"allowed": [cluster]}}).limits
    assert broken(cluster, {}, limits) == []
    assert broken("gcp:container/nodePool:NodePool", {}, limits) == ["unjudged"]
    good = {"policyData": policy("roles/storage.objectViewer", "user:a@b.c")}
    for kind in (BUCKET_POLICY, PROJECT_POLICY):
        assert broken(kind, good) == []
    harmless = ("gcp:pubsub/topic:Topic", "gcp:serviceaccount/account:Account")
    others = ("pulumi:providers:gcp", "pulumi:pulumi:Stack", "my:training:Pair", "random:id:Id")
    for kind in (*harmless, "gcp:secretmanager/secretVersion:SecretVersion", *others):
        assert broken(kind, {}) == []
    with pytest.raises(ValueError, match="^unjudged: allowed 'x' must be a list of types$"):
        rules.parse({"unjudged": {"allowed": "x"}})
