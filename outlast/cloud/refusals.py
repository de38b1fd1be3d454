"""What to do about VMs that Google refuses: organization policies, and the errors of a group.

Sources: "Organization policy constraints" (Resource Manager documentation, read in November 2026);
the messages of groups in public reports, for example 2i2c-org/infrastructure#489 for
CONDITION_NOT_MET.
"""

import re
from collections.abc import Mapping

EXTERNAL_IP = "compute.vmExternalIpAccess"
TRUSTED_IMAGES = "compute.trustedImageProjects"
GUEST_ATTRIBUTES = "compute.disableGuestAttributesAccess"
CLOUD_NAT = "compute.restrictCloudNATUsage"
LOCATIONS = "gcp.resourceLocations"
SOFT_DELETE = "storage.softDeletePolicySeconds"
RETENTION = "storage.retentionPolicySeconds"
NO_ACCOUNTS = "iam.disableServiceAccountCreation"

REMEDIES: Mapping[str, str] = {
    EXTERNAL_IP: "set outlast:externalIp to false, or outlast:network to isolated; what VMs need"
    " from the internet then takes outlast:nat true or a baked image",
    TRUSTED_IMAGES: "set outlast:image to an image of an allowed project, or bake one into it with"
    " outlast:imageRecipe.project",
    GUEST_ATTRIBUTES: "a bake reports by guest attributes: set outlast:image to an image that is"
    " baked elsewhere, or have the project exempted",
    CLOUD_NAT: "set outlast:nat to false; the image must then have everything that VMs need",
    LOCATIONS: "set outlast:zone, outlast:zones or outlast:region to an allowed location, and"
    " outlast:bucket to a bucket in one",
    SOFT_DELETE: "set outlast:softDeleteDays to an allowed number of days",
    RETENTION: "objects of a run are replaced and deleted, which a retention policy forbids: have"
    " the project exempted",
    NO_ACCOUNTS: "set outlast:serviceAccount to an existing service account",
    "compute.requireShieldedVm": "set outlast:shieldedVm to true, and outlast:image to one that"
    " supports it",
    "compute.requireOsLogin": "nothing: VMs work with OS Login, and it is added to them",
    "compute.skipDefaultNetworkCreation": "the project may have no network default: set"
    " outlast:network to isolated, or to an existing one",
    "compute.restrictSharedVpcSubnetworks": "set outlast:network and outlast:subnetwork to an"
    " allowed subnetwork",
    "compute.disableSerialPortAccess": "nothing: only the serial port of a VM cannot be read",
    "gcp.restrictNonCmekServices": "set outlast:kmsKey to a key of the region",
    "iam.disableServiceAccountKeyCreation": "nothing: Outlast creates no keys",
    "iam.allowedPolicyMemberDomains": "nothing, unless outlast:imageRecipe.shareWith names members"
    " of other domains",
    "storage.uniformBucketLevelAccess": "nothing: Outlast's bucket has it",
    "storage.publicAccessPrevention": "nothing: Outlast's bucket has it",
}
"""What satisfies each constraint."""

_CONSTRAINT = re.compile(r"constraints/([A-Za-z]+\.[A-Za-z]+)")

_BY_CODE = (
    ("QUOTA", "ask for more of this quota, or choose another machine type or region"),
    ("RESOURCE_POOL_EXHAUSTED", "it keeps trying; name more zones or machine types"),
)
_NOTICE = re.compile(r"preemption_?notice", re.IGNORECASE)


def is_disabled(message: str) -> bool:
    """Whether a message says that the project has not enabled an API."""
    low = message.lower()
    return any(
        one in low for one in ("has not been used in project", "it is disabled", "api is disabled")
    )


def constraint_of(message: str) -> str:
    """The constraint that a message names, without `constraints/`; empty for none."""
    found = _CONSTRAINT.search(message)
    return found[1] if found else ""


def remedy(code: str, message: str) -> str:
    """What to do about an error of a group; empty if the platform's message must do."""
    constraint = constraint_of(message)
    if constraint:
        return REMEDIES.get(constraint, "")
    if _NOTICE.search(message):
        return "set outlast:noticeSec to 0, because this machine type takes no notice"
    return next((action for part, action in _BY_CODE if part in code), "")
