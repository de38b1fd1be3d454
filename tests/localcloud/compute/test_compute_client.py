"""The Compute API by google-cloud-compute, whose REST transport other programs of a project use."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as compute

from tests.localcloud.compute.test_compute import wait
from tests.localcloud.local_cloud import PROJECT, FullCloud, LocalCloud
from tests.localcloud.scenarios.test_scenario_platform import ok, start

ZONE = "europe-west4-a"
REGION = "europe-west4"
WAIT_SEC = 60.0
PLACE = {"project": PROJECT, "zone": ZONE}


@pytest.fixture
def client(full_cloud: FullCloud) -> Callable[[Any], Any]:
    """Makes a client of a local cloud."""
    return maker(full_cloud)


@pytest.fixture(scope="module")
def without_guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = start(tmp_path_factory.mktemp("platform"))
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def platform(without_guests: LocalCloud) -> Callable[[Any], Any]:
    """Makes a client of a local cloud whose VMs are no processes, and in which nothing exists."""
    ok(without_guests, "POST", "/_local/reset")
    return maker(without_guests)


def maker(cloud: LocalCloud) -> Callable[[Any], Any]:
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
            machine_type="n2-standard-2",
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


def vm_of(name: str) -> compute.Instance:
    properties = template_of(name, **STANDARD).properties
    return compute.Instance(
        name=name,
        machine_type=f"zones/{ZONE}/machineTypes/{properties.machine_type}",
        disks=properties.disks,
        network_interfaces=properties.network_interfaces,
        scheduling=properties.scheduling,
    )


STANDARD = {
    "provisioning_model": "STANDARD",
    "preemptible": False,
    "automatic_restart": True,
    "instance_termination_action": None,
}


def test_labels_tags_and_machine_type_of_a_vm_change(platform: Callable[[Any], Any]) -> None:
    instances = platform(compute.InstancesClient)
    instances.insert(**PLACE, instance_resource=vm_of("vm1")).result(WAIT_SEC)
    vm = {**PLACE, "instance": "vm1"}

    def live() -> compute.Instance:
        return instances.get(**vm)

    labels = compute.InstancesSetLabelsRequest(
        labels={"team": "a"}, label_fingerprint=live().label_fingerprint
    )
    instances.set_labels(**vm, instances_set_labels_request_resource=labels).result(WAIT_SEC)
    assert live().labels == {"team": "a"}
    with pytest.raises(PreconditionFailed, match="Labels fingerprint"):
        instances.set_labels(**vm, instances_set_labels_request_resource=labels)
    tags = compute.Tags(items=["web"], fingerprint=live().tags.fingerprint)
    instances.set_tags(**vm, tags_resource=tags).result(WAIT_SEC)
    assert live().tags.items == ["web"]
    with pytest.raises(PreconditionFailed, match="tags fingerprint"):
        instances.set_tags(**vm, tags_resource=tags)

    larger = compute.InstancesSetMachineTypeRequest(
        machine_type=f"zones/{ZONE}/machineTypes/n2-standard-4"
    )
    with pytest.raises(BadRequest, match="only while it is TERMINATED") as refused:
        instances.set_machine_type(**vm, instances_set_machine_type_request_resource=larger)
    assert refused.value.errors[0]["reason"] == "resourceNotReady"
    stays = compute.Scheduling(on_host_maintenance="TERMINATE")
    instances.set_scheduling(**vm, scheduling_resource=stays).result(WAIT_SEC)
    instances.stop(**vm).result(WAIT_SEC)
    instances.set_machine_type(**vm, instances_set_machine_type_request_resource=larger).result(
        WAIT_SEC
    )
    spot = compute.Scheduling(provisioning_model="SPOT", preemptible=True, automatic_restart=False)
    instances.set_scheduling(**vm, scheduling_resource=spot).result(WAIT_SEC)
    found = live()
    assert found.machine_type.endswith("/n2-standard-4")
    assert (found.scheduling.provisioning_model, found.scheduling.automatic_restart) == (
        "SPOT",
        False,
    )


def test_a_request_id_makes_a_call_once(platform: Callable[[Any], Any]) -> None:
    instances = platform(compute.InstancesClient)
    request = compute.InsertInstanceRequest(
        **PLACE, instance_resource=vm_of("vm1"), request_id=str(uuid.uuid4())
    )
    first = instances.insert_unary(request)
    assert instances.insert_unary(request).name == first.name
    with pytest.raises(Conflict, match="already exists"):
        instances.insert(**PLACE, instance_resource=vm_of("vm1"))
    wrong = compute.InsertInstanceRequest(
        **PLACE, instance_resource=vm_of("vm2"), request_id="twice"
    )
    with pytest.raises(BadRequest, match="Must be a UUID"):
        instances.insert(wrong)


def test_a_disk_is_attached_and_detached(platform: Callable[[Any], Any]) -> None:
    instances, disks = platform(compute.InstancesClient), platform(compute.DisksClient)
    instances.insert(**PLACE, instance_resource=vm_of("vm1")).result(WAIT_SEC)
    vm = {**PLACE, "instance": "vm1"}
    disk = compute.Disk(name="data", size_gb=20)
    disks.insert(**PLACE, disk_resource=disk).result(WAIT_SEC)
    source = disks.get(**PLACE, disk="data").self_link
    attached = compute.AttachedDisk(source=source, device_name="rows")
    instances.attach_disk(**vm, attached_disk_resource=attached).result(WAIT_SEC)
    assert [one.device_name for one in instances.get(**vm).disks][1:] == ["rows"]
    assert disks.get(**PLACE, disk="data").users == [instances.get(**vm).self_link]
    with pytest.raises(BadRequest, match="already being used by"):
        disks.delete(**PLACE, disk="data")
    instances.detach_disk(**vm, device_name="rows").result(WAIT_SEC)
    assert len(instances.get(**vm).disks) == 1
    disks.delete(**PLACE, disk="data").result(WAIT_SEC)


def test_members_of_given_names_and_a_canary(platform: Callable[[Any], Any]) -> None:
    templates = platform(compute.InstanceTemplatesClient)
    groups = platform(compute.InstanceGroupManagersClient)
    for name in ("t1", "t2"):
        templates.insert(project=PROJECT, instance_template_resource=template_of(name)).result(
            WAIT_SEC
        )
    policy = compute.InstanceGroupManagerUpdatePolicy(
        type_="PROACTIVE",
        minimal_action="REPLACE",
        replacement_method="RECREATE",
        max_surge=compute.FixedOrPercent(fixed=0),
        max_unavailable=compute.FixedOrPercent(fixed=2),
    )
    group = compute.InstanceGroupManager(
        name="g1",
        base_instance_name="g1",
        target_size=0,
        update_policy=policy,
        instance_template="global/instanceTemplates/t1",
    )
    groups.insert(**PLACE, instance_group_manager_resource=group).result(WAIT_SEC)
    name = {"instance_group_manager": "g1"}
    asked = compute.InstanceGroupManagersCreateInstancesRequest(
        instances=[compute.PerInstanceConfig(name=one) for one in ("one", "two", "three")]
    )
    groups.create_instances(
        **PLACE, **name, instance_group_managers_create_instances_request_resource=asked
    ).result(WAIT_SEC)
    assert groups.get(**PLACE, **name).target_size == 3

    def members() -> list[Any]:
        return list(groups.list_managed_instances(**PLACE, **name))

    assert {member.instance.rpartition("/")[2] for member in members()} == {"one", "two", "three"}
    versions = [
        compute.InstanceGroupManagerVersion(instance_template="global/instanceTemplates/t1"),
        compute.InstanceGroupManagerVersion(
            name="canary",
            instance_template="global/instanceTemplates/t2",
            target_size=compute.FixedOrPercent(percent=34),
        ),
    ]
    change = compute.InstanceGroupManager(versions=versions)
    groups.patch(**PLACE, **name, instance_group_manager_resource=change).result(WAIT_SEC)
    wait(lambda: groups.get(**PLACE, **name).status.version_target.is_reached)
    found = groups.get(**PLACE, **name)
    assert [version.target_size.calculated for version in found.versions] == [2, 1]
    wait(lambda: groups.get(**PLACE, **name).status.is_stable)
    templates_of = [member.version.instance_template[-2:] for member in members()]
    assert sorted(templates_of) == ["t1", "t1", "t2"]
    assert [m.version.name for m in members() if m.version.name] == ["canary"]


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
    disks = dict(client(compute.DisksClient).aggregated_list(project=PROJECT))
    assert [one.name for one in disks[f"zones/{ZONE}"].disks] == [live.name]
    said = wait(lambda: instances.get_serial_port_output(**PLACE, **vm).contents)
    assert "startup scripts" in said
    later = compute.GetSerialPortOutputInstanceRequest(**PLACE, **vm, start=len(said.encode()))
    assert instances.get_serial_port_output(request=later).start == len(said.encode())
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
    done = dict(client(compute.GlobalOperationsClient).aggregated_list(project=PROJECT))
    assert [one.operation_type for one in done["global"].operations] == ["insert"]
    kinds = [one.operation_type for one in done[f"zones/{ZONE}"].operations]
    assert kinds[-1] == "insert" and "setMetadata" in kinds
    in_zone = client(compute.ZoneOperationsClient).list(**PLACE)
    assert list(in_zone) == list(done[f"zones/{ZONE}"].operations)
