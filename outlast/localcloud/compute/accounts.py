"""Service accounts of VMs."""

from collections.abc import Mapping
from typing import Any


def service_account(properties: Mapping[str, Any], project_number: str) -> str:
    """The e-mail of a VM's service account; empty if it has none."""
    accounts = properties.get("serviceAccounts") or []
    if not accounts:
        return ""
    email = accounts[0].get("email") or "default"
    return default_account(project_number) if email == "default" else email


def default_account(project_number: str) -> str:
    """The e-mail of the project's default service account."""
    return f"{project_number}-compute@developer.gserviceaccount.com"
