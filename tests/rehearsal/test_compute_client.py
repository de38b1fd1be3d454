"""The Compute API by google-cloud-compute, whose REST transport other programs of a project use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as compute

from tests.rehearsal.local_cloud import PROJECT, FullCloud
from tests.rehearsal.test_compute import wait

ZONE = "europe-west4-a"
REGION = "europe-west4"
WAIT_SEC = 60.0
PLACE = {"project": PROJECT, "zone": ZONE}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[FullCloud]:
    cloud = FullCloud(tmp_path / "state")
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def client(cloud: FullCloud) -> Callable[[Any], Any]:
    """Makes a client of a local cloud."""
    anonymous = AnonymousCredentials()

    def make(kind: Any) -> Any:
        return kind(credentials=anonymous, client_options={"api_endpoint": cloud.url})

    return make


def template_of(name: str, **scheduling: Any) -> compute.InstanceTemplate:
    disk = compute.AttachedDisk(
        boot=True,
        auto_delete=True,
        initialize_params=compute.AttachedDiskInitializeParams(
            source_image=f"projects/{PROJECT}/global/images/family/outlast", disk_size_gb=10
        ),
    )
    spot = {
        "provisioning_model": "SPOT",
        "preemptible": True,
        "automatic_restart": False,
        "instance_termination_action": "DELETE",
    }
    return compute.InstanceTemplate(
        name=name,
        properties=compute.InstanceProperties(
            machine_type="e2-small",
            disks=[disk],
            network_interfaces=[compute.NetworkInterface(network="global/networks/default")],
            scheduling=compute.Scheduling(**{**spot, **scheduling}),
        ),
    )


def test_a_template_and_a_group_from_insert_to_delete(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    groups = client(compute.InstanceGroupManagersClient)
    name = "g1"
    template = template_of(name)
    templates.insert(project=PROJECT, instance_template_resource=template).result(WAIT_SEC)
    found = templates.get(project=PROJECT, instance_template=name)
    assert found.properties.scheduling.provisioning_model == "SPOT"
    assert found.kind == "compute#instanceTemplate" and found.creation_timestamp
    with pytest.raises(Conflict, match="already exists"):
        templates.insert(project=PROJECT, instance_template_resource=template)

    group = compute.InstanceGroupManager(
        name=name, base_instance_name=name, instance_template=found.self_link, target_size=0
    )
    groups.insert(**PLACE, instance_group_manager_resource=group).result(WAIT_SEC)
    assert name in [one.name for one in groups.list(**PLACE)]
    groups.resize(**PLACE, instance_group_manager=name, size=1).result(WAIT_SEC)
    assert groups.get(**PLACE, instance_group_manager=name).target_size == 1
    (member,) = groups.list_managed_instances(**PLACE, instance_group_manager=name)
    assert member.instance.rpartition("/")[2].startswith(f"{name}-")
    groups.resize(**PLACE, instance_group_manager=name, size=0).result(WAIT_SEC)
    with pytest.raises(BadRequest, match="already being used"):
        templates.delete(project=PROJECT, instance_template=name)

    groups.delete(**PLACE, instance_group_manager=name).result(WAIT_SEC)
    with pytest.raises(NotFound):
        groups.get(**PLACE, instance_group_manager=name)
    templates.delete(project=PROJECT, instance_template=name).result(WAIT_SEC)
    with pytest.raises(NotFound):
        templates.get(project=PROJECT, instance_template=name)


def test_lists_by_page_and_filter(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    for number in range(5):
        template = template_of(f"t{number}")
        templates.insert(project=PROJECT, instance_template_resource=template).result(WAIT_SEC)
    pager = templates.list(
        request=compute.ListInstanceTemplatesRequest(project=PROJECT, max_results=2)
    )
    pages = [[one.name for one in page.items] for page in pager.pages]
    assert pages == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    request = compute.ListInstanceTemplatesRequest(project=PROJECT, filter='name eq "t[13]"')
    assert [one.name for one in templates.list(request=request)] == ["t1", "t3"]
    wrong = compute.ListInstanceTemplatesRequest(project=PROJECT, filter="name =")
    with pytest.raises(BadRequest, match="filter"):
        templates.list(request=wrong)
    zones = client(compute.ZonesClient).list(project=PROJECT)
    assert ZONE in [zone.name for zone in zones]


def test_operations_are_got_and_waited_for(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    operations = client(compute.GlobalOperationsClient)
    made = templates.insert_unary(project=PROJECT, instance_template_resource=template_of("t1"))
    for call in (operations.get, operations.wait):
        found = call(project=PROJECT, operation=made.name)
        assert (found.status, found.target_id) == (
            compute.Operation.Status.DONE,
            templates.get(project=PROJECT, instance_template="t1").id,
        )
    with pytest.raises(NotFound):
        operations.get(project=PROJECT, operation="operation-none")


def test_refusals_are_the_clients_own_exceptions(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    groups = client(compute.InstanceGroupManagersClient)
    with pytest.raises(BadRequest, match="AutomaticRestart is true") as refused:
        templates.insert(
            project=PROJECT, instance_template_resource=template_of("t1", automatic_restart=True)
        )
    assert refused.value.errors[0]["reason"] == "invalid"
    templates.insert(project=PROJECT, instance_template_resource=template_of("t1")).result(WAIT_SEC)
    group = compute.InstanceGroupManager(
        name="g1",
        base_instance_name="g1",
        target_size=0,
        versions=[
            compute.InstanceGroupManagerVersion(instance_template="global/instanceTemplates/t1")
        ],
    )
    groups.insert(**PLACE, instance_group_manager_resource=group).result(WAIT_SEC)
    live = groups.get(**PLACE, instance_group_manager="g1")
    change = compute.InstanceGroupManager(
        fingerprint=live.fingerprint,
        instance_lifecycle_policy=compute.InstanceGroupManagerInstanceLifecyclePolicy(
            force_update_on_repair="YES"
        ),
    )
    patch = {"instance_group_manager": "g1", "instance_group_manager_resource": change}
    groups.patch(**PLACE, **patch).result(WAIT_SEC)
    changed = groups.get(**PLACE, instance_group_manager="g1")
    assert changed.instance_lifecycle_policy.force_update_on_repair == "YES"
    with pytest.raises(PreconditionFailed, match="fingerprint"):
        groups.patch(**PLACE, **patch)


def test_a_regional_group_and_its_health_check(client: Callable[[Any], Any]) -> None:
    where = {"project": PROJECT, "region": REGION}
    templates = client(compute.RegionInstanceTemplatesClient)
    groups = client(compute.RegionInstanceGroupManagersClient)
    checks = client(compute.HealthChecksClient)
    templates.insert(**where, instance_template_resource=template_of("t1")).result(WAIT_SEC)
    check = compute.HealthCheck(
        name="h1", type_="HTTP", http_health_check=compute.HTTPHealthCheck(port=8080)
    )
    checks.insert(project=PROJECT, health_check_resource=check).result(WAIT_SEC)
    link = checks.get(project=PROJECT, health_check="h1").self_link
    template = templates.get(**where, instance_template="t1").self_link
    group = compute.InstanceGroupManager(
        name="g1",
        base_instance_name="g1",
        target_size=0,
        versions=[compute.InstanceGroupManagerVersion(instance_template=template)],
        distribution_policy=compute.DistributionPolicy(target_shape="ANY"),
        update_policy=compute.InstanceGroupManagerUpdatePolicy(
            type_="OPPORTUNISTIC",
            minimal_action="REPLACE",
            replacement_method="RECREATE",
            instance_redistribution_type="NONE",
            max_surge=compute.FixedOrPercent(fixed=0),
            max_unavailable=compute.FixedOrPercent(fixed=3),
        ),
        auto_healing_policies=[
            compute.InstanceGroupManagerAutoHealingPolicy(health_check=link, initial_delay_sec=600)
        ],
    )
    groups.insert(**where, instance_group_manager_resource=group).result(WAIT_SEC)
    live = groups.get(**where, instance_group_manager="g1")
    assert live.distribution_policy.target_shape == "ANY"
    assert live.auto_healing_policies[0].initial_delay_sec == 600
    assert len(live.distribution_policy.zones) == 3
    with pytest.raises(BadRequest, match="health_check resource .*healthChecks/h1.* already"):
        checks.delete(project=PROJECT, health_check="h1")
    groups.delete(**where, instance_group_manager="g1").result(WAIT_SEC)
    templates.delete(**where, instance_template="t1").result(WAIT_SEC)
    checks.delete(project=PROJECT, health_check="h1").result(WAIT_SEC)


@pytest.mark.rehearsal
def test_a_vm_from_its_creation_to_its_end(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    groups = client(compute.InstanceGroupManagersClient)
    instances = client(compute.InstancesClient)
    templates.insert(project=PROJECT, instance_template_resource=template_of("t1")).result(WAIT_SEC)
    group = compute.InstanceGroupManager(
        name="g1",
        base_instance_name="g1",
        target_size=1,
        instance_template="global/instanceTemplates/t1",
    )
    groups.insert(**PLACE, instance_group_manager_resource=group).result(WAIT_SEC)
    name = {"instance_group_manager": "g1"}

    def running() -> Any:
        (member,) = groups.list_managed_instances(**PLACE, **name)
        return member if member.instance_status == "RUNNING" else None

    member = wait(running)
    vm = {"instance": member.instance.rpartition("/")[2]}
    live = instances.get(**PLACE, **vm)
    assert (live.status, live.id) == ("RUNNING", member.id)
    request = compute.ListInstancesRequest(**PLACE, filter="(status = RUNNING) (name = g1-*)")
    assert [one.name for one in instances.list(request=request)] == [live.name]
    everywhere = dict(instances.aggregated_list(project=PROJECT))
    assert [one.name for one in everywhere[f"zones/{ZONE}"].instances] == [live.name]
    assert instances.get_serial_port_output(**PLACE, **vm).next_ >= 0
    metadata = compute.Metadata(
        fingerprint=live.metadata.fingerprint, items=[compute.Items(key="a", value="b")]
    )
    instances.set_metadata(**PLACE, **vm, metadata_resource=metadata).result(WAIT_SEC)
    assert instances.get(**PLACE, **vm).metadata.items[0].key == "a"
    request = compute.InstanceGroupManagersDeleteInstancesRequest(instances=[member.instance])
    groups.delete_instances(
        **PLACE, **name, instance_group_managers_delete_instances_request_resource=request
    ).result(WAIT_SEC)
    assert groups.get(**PLACE, **name).target_size == 0
    assert wait(lambda: not list(instances.list(**PLACE)))
