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
    "roles/compute.viewer": {
        "compute.instanceGroupManagers.get",
        "compute.instanceGroupManagers.list",
        "compute.instances.get",
        "compute.instances.list",
    },
    "roles/compute.instanceAdmin.v1": {"compute.*"},
    "roles/compute.admin": {"compute.*"},
    "roles/logging.logWriter": {"logging.logEntries.create"},
    "roles/monitoring.metricWriter": {"monitoring.timeSeries.create"},
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs"},
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
"""Permissions by role. One that ends in `*` includes all with this prefix."""
