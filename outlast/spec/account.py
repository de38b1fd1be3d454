"""Names of the service account of a stack's VMs."""

import hashlib

ACCOUNT_ID_LIMIT = 30
"""Characters of a service account's id (`accountId` of CreateServiceAccountRequest, discovery
document iam v1, revision 20261023)."""


def account_id(experiment: str) -> str:
    """The service account's id; a long name is cut and made unique by a digest."""
    whole = f"outlast-{experiment}"
    if len(whole) <= ACCOUNT_ID_LIMIT:
        return whole
    digest = short_digest(experiment)
    return f"{whole[: ACCOUNT_ID_LIMIT - len(digest) - 1].rstrip('-')}-{digest}"


def account_email(experiment: str, project: str) -> str:
    """The service account's address."""
    return f"{account_id(experiment)}@{project}.iam.gserviceaccount.com"


def short_digest(text: str) -> str:
    """A few characters of a digest, which distinguish texts in names."""
    return hashlib.sha256(text.encode()).hexdigest()[:7]
