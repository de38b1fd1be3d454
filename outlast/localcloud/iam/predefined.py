"""The predefined roles whose permissions the local cloud knows."""

OBJECT_READ = {"storage.objects.get", "storage.objects.list"}
OBJECT_USE = OBJECT_READ | {
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.move",
    "storage.objects.restore",
    "storage.objects.update",
}
OBJECT_ADMIN = OBJECT_USE | {"storage.objects.getIamPolicy", "storage.objects.setIamPolicy"}
BUCKET_OWN = {
    "storage.buckets.get",
    "storage.buckets.getIamPolicy",
    "storage.buckets.setIamPolicy",
    "storage.buckets.update",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.list",
}

COMPUTE_VIEW = {
    f"compute.{kind}.{verb}"
    for kind in (
        *("disks", "firewalls", "globalOperations", "healthChecks", "images", "instances"),
        *("instanceGroupManagers", "instanceGroups", "instanceTemplates", "machineTypes"),
        *("networks", "regionOperations", "regions", "routers", "routes", "subnetworks"),
        *("zoneOperations", "zones"),
    )
    for verb in ("get", "list")
} | {
    "compute.images.getFromFamily",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
    "compute.projects.get",
}
NETWORK_USE = {
    "compute.networks.use",
    "compute.networks.useExternalIp",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
}

PREDEFINED_ROLES: dict[str, set[str]] = {
    "roles/owner": {"*"},
    "roles/editor": {"*"},
    "roles/viewer": {"storage.buckets.list"},
    "roles/storage.admin": {"storage.*"},
    "roles/storage.objectAdmin": OBJECT_ADMIN,
    "roles/storage.objectUser": OBJECT_USE,
    "roles/storage.objectViewer": OBJECT_READ,
    "roles/storage.objectCreator": {"storage.objects.create"},
    "roles/storage.bucketViewer": {"storage.buckets.get", "storage.buckets.list"},
    "roles/storage.legacyBucketReader": {"storage.buckets.get", "storage.objects.list"},
    "roles/storage.legacyBucketWriter": {
        "storage.buckets.get",
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.list",
    },
    "roles/storage.legacyBucketOwner": BUCKET_OWN,
    "roles/storage.legacyObjectReader": {"storage.objects.get"},
    "roles/storage.legacyObjectOwner": {
        "storage.objects.get",
        "storage.objects.getIamPolicy",
        "storage.objects.setIamPolicy",
        "storage.objects.update",
    },
    "roles/compute.viewer": COMPUTE_VIEW,
    "roles/compute.instanceAdmin.v1": {
        *(COMPUTE_VIEW | NETWORK_USE),
        "compute.disks.*",
        "compute.images.*",
        "compute.instanceGroupManagers.*",
        "compute.instanceGroups.*",
        "compute.instanceTemplates.*",
        "compute.instances.*",
    },
    "roles/compute.networkAdmin": {
        *(COMPUTE_VIEW | NETWORK_USE),
        "compute.healthChecks.*",
        "compute.networks.*",
        "compute.routers.*",
        "compute.subnetworks.*",
    },
    "roles/compute.securityAdmin": {
        *COMPUTE_VIEW,
        "compute.firewalls.*",
        "compute.networks.updatePolicy",
    },
    "roles/compute.admin": {"compute.*"},
    "roles/logging.logWriter": {"logging.logEntries.create"},
    "roles/monitoring.metricWriter": {"monitoring.timeSeries.create"},
    "roles/iam.roleAdmin": {"iam.roles.*"},
    "roles/iam.serviceAccountAdmin": {
        f"iam.serviceAccounts.{verb}"
        for verb in (
            *("create", "delete", "disable", "enable", "get", "getIamPolicy", "list"),
            *("setIamPolicy", "undelete", "update"),
        )
    },
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs"},
    "roles/resourcemanager.projectIamAdmin": {
        "resourcemanager.projects.get",
        "resourcemanager.projects.getIamPolicy",
        "resourcemanager.projects.setIamPolicy",
    },
    "roles/iam.serviceAccountTokenCreator": {"iam.serviceAccounts.getAccessToken"},
    "roles/serviceusage.serviceUsageConsumer": {"serviceusage.services.use"},
    "roles/billing.projectManager": {"resourcemanager.projects.createBillingAssignment"},
    "roles/secretmanager.admin": {"secretmanager.*"},
    "roles/secretmanager.secretAccessor": {"secretmanager.versions.access"},
    "roles/secretmanager.viewer": {
        "secretmanager.secrets.get",
        "secretmanager.secrets.list",
        "secretmanager.versions.get",
        "secretmanager.versions.list",
    },
}
"""Permissions by role. One that ends in `*` includes all with this prefix. Those of Compute Engine
and of administrators are from memory (docs/assumptions.md)."""
