"""Rules of secrets: which a VM reads, and that no other setting holds one."""

from collections.abc import Collection

from outlast.settings.reader import NAMESPACE, Reader, SettingsError
from outlast.spec import secrets

_REMEDIES = {
    "webhook": f"keep the address as a secret of Secret Manager, name that secret in"
    f" {NAMESPACE}:webhookSecret, and remove {NAMESPACE}:webhook",
    "gitUrl": f"keep the token as a secret of Secret Manager, name that secret in"
    f" {NAMESPACE}:gitSecret, and set {NAMESPACE}:gitUrl without it and without --secret",
    "secretEnv": "it holds names of secrets, which are no secrets; set it without --secret",
    "webhookSecret": "it is the name of a secret, which is no secret; set it without --secret",
    "gitSecret": "it is the name of a secret, which is no secret; set it without --secret",
}


def refuse_secret_values(secret_keys: Collection[str]) -> None:
    """Refuses every setting whose value, or a part of it, was set with --secret: all of them reach
    the state and the VM's metadata as plain text. `secret_keys` are full keys."""
    for full in sorted(secret_keys):
        key = full.removeprefix(f"{NAMESPACE}:")
        if key == full:
            continue
        remedy = _REMEDIES.get(
            key,
            "for a value that the trainer needs in secret, name a secret of Secret Manager in"
            f" {NAMESPACE}:secretEnv and read the variable in the trainer; set {full} without"
            " --secret",
        )
        raise SettingsError(
            f"{full}: is set with --secret, and would stand in plain text in the stack's state and"
            f" in the VM's metadata; {remedy}"
        )


def secret_env_of(read: Reader, cloud: str) -> dict[str, str]:
    """Variable of the trainer to the secret that it holds."""
    try:
        return secrets.check_variables(read.mapping("secretEnv"), cloud)
    except secrets.SecretNameError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def webhook_secret_of(read: Reader, cloud: str) -> str:
    """The secret that holds the webhook's address; empty for none."""
    text = read.text("webhookSecret")
    if text and read.text("webhook"):
        raise SettingsError(
            f"{NAMESPACE}:webhookSecret beside {NAMESPACE}:webhook: both give the address; leave"
            " one of them out"
        )
    try:
        return secrets.check_name("webhookSecret", text, cloud)
    except secrets.SecretNameError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None
