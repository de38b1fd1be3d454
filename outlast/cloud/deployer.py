"""The permissions of an account that runs `outlast up` and `outlast destroy`, by what each is for.

`examples/roles/deployer.yaml` is the same as a role; a test compares the two, and another tries
each permission on the local cloud.
"""

from collections.abc import Mapping

STEPS: Mapping[str, tuple[str, ...]] = {
    "find the bucket": (
        "storage.buckets.get",
        "storage.buckets.list",
    ),
    "declare the bucket": (
        "storage.buckets.create",
        "storage.buckets.update",
    ),
    "let the vm use the bucket": (
        "storage.buckets.getIamPolicy",
        "storage.buckets.setIamPolicy",
    ),
    "upload the code": (
        "storage.objects.create",
        "storage.objects.delete",
    ),
    "read the runs": (
        "storage.objects.get",
        "storage.objects.list",
    ),
    "declare a network": (
        "compute.networks.create",
        "compute.networks.delete",
        "compute.networks.get",
    ),
    "declare a subnetwork": (
        "compute.networks.updatePolicy",
        "compute.subnetworks.create",
        "compute.subnetworks.delete",
        "compute.subnetworks.get",
    ),
    "declare a nat": (
        "compute.routers.create",
        "compute.routers.delete",
        "compute.routers.get",
        "compute.routers.update",
    ),
    "declare a firewall rule": (
        "compute.firewalls.create",
        "compute.firewalls.delete",
        "compute.firewalls.get",
        "compute.firewalls.update",
    ),
    "declare a health check": (
        "compute.healthChecks.create",
        "compute.healthChecks.delete",
        "compute.healthChecks.get",
        "compute.healthChecks.update",
    ),
    "declare the role": (
        "iam.roles.create",
        "iam.roles.delete",
        "iam.roles.get",
        "iam.roles.update",
    ),
    "restore the role": ("iam.roles.undelete",),
    "declare the account": (
        "iam.serviceAccounts.create",
        "iam.serviceAccounts.delete",
        "iam.serviceAccounts.get",
        "iam.serviceAccounts.update",
    ),
    "let the vm leave": (
        "resourcemanager.projects.getIamPolicy",
        "resourcemanager.projects.setIamPolicy",
    ),
    "let the vm read a secret": (
        "secretmanager.secrets.get",
        "secretmanager.secrets.getIamPolicy",
        "secretmanager.secrets.setIamPolicy",
    ),
    "declare the template": (
        "compute.instanceTemplates.create",
        "compute.instanceTemplates.delete",
        "compute.instanceTemplates.get",
        "iam.serviceAccounts.actAs",
    ),
    "declare the group": (
        "compute.instanceGroupManagers.create",
        "compute.instanceGroupManagers.delete",
        "compute.instanceGroupManagers.get",
        "compute.instanceGroupManagers.update",
        "compute.instanceTemplates.useReadOnly",
        "compute.instances.create",
    ),
    "wait until it is done": (
        "compute.globalOperations.get",
        "compute.regionOperations.get",
        "compute.zoneOperations.get",
    ),
    "look up network and quotas": (
        "compute.projects.get",
        "compute.regions.get",
    ),
    "find what a state has lost": (
        "compute.firewalls.list",
        "compute.healthChecks.list",
        "compute.images.list",
        "compute.instanceGroupManagers.list",
        "compute.instanceTemplates.list",
        "compute.instances.list",
        "compute.networks.list",
        "compute.routers.list",
        "compute.subnetworks.list",
        "iam.roles.list",
        "iam.serviceAccounts.list",
    ),
}
