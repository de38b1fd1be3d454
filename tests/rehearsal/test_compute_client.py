"""The Compute API by google-cloud-compute, whose REST transport other programs of a project use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as compute

from tests.rehearsal.local_cloud import PROJECT, FullCloud

ZONE = "europe-west4-a"
WAIT_SEC = 20.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Callable[[Any], Any]]:
    """Makes a client of a local cloud."""
    cloud = FullCloud(tmp_path / "state")
    anonymous = AnonymousCredentials()

    def make(kind: Any) -> Any:
        return kind(credentials=anonymous, client_options={"api_endpoint": cloud.url})

    yield make
    assert cloud.stop() == 0
    cloud.http.close()


def test_a_template_and_a_group_from_insert_to_delete(client: Callable[[Any], Any]) -> None:
    templates = client(compute.InstanceTemplatesClient)
    groups = client(compute.InstanceGroupManagersClient)
    name = "g1"
    disk = compute.AttachedDisk(
        boot=True,
        auto_delete=True,
        initialize_params=compute.AttachedDiskInitializeParams(
            source_image=f"projects/{PROJECT}/global/images/family/outlast", disk_size_gb=10
        ),
    )
    template = compute.InstanceTemplate(
        name=name,
        properties=compute.InstanceProperties(
            machine_type="e2-small",
            disks=[disk],
            network_interfaces=[compute.NetworkInterface(network="global/networks/default")],
            scheduling=compute.Scheduling(
                provisioning_model="SPOT",
                preemptible=True,
                automatic_restart=False,
                instance_termination_action="DELETE",
            ),
        ),
    )
    templates.insert(project=PROJECT, instance_template_resource=template).result(WAIT_SEC)
    found = templates.get(project=PROJECT, instance_template=name)
    assert found.properties.scheduling.provisioning_model == "SPOT"
    assert name in [one.name for one in templates.list(project=PROJECT)]

    group = compute.InstanceGroupManager(
        name=name, base_instance_name=name, instance_template=found.self_link, target_size=0
    )
    place = {"project": PROJECT, "zone": ZONE}
    groups.insert(**place, instance_group_manager_resource=group).result(WAIT_SEC)
    assert name in [one.name for one in groups.list(**place)]
    groups.resize(**place, instance_group_manager=name, size=1).result(WAIT_SEC)
    assert groups.get(**place, instance_group_manager=name).target_size == 1
    (member,) = groups.list_managed_instances(**place, instance_group_manager=name)
    assert member.instance.rpartition("/")[2].startswith(f"{name}-")
    groups.resize(**place, instance_group_manager=name, size=0).result(WAIT_SEC)

    groups.delete(**place, instance_group_manager=name).result(WAIT_SEC)
    with pytest.raises(NotFound):
        groups.get(**place, instance_group_manager=name)
    templates.delete(project=PROJECT, instance_template=name).result(WAIT_SEC)
    with pytest.raises(NotFound):
        templates.get(project=PROJECT, instance_template=name)
