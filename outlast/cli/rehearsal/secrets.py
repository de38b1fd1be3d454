"""Secrets of a rehearsal: the local cloud's Secret Manager gets one for each secret that the stack
names.

A variable of `outlast:secretEnv` gets the value that your shell has for it, as on a laptop, else a
stand-in. The webhook gets an address that leads nowhere, so that a rehearsal sends no message.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.cli import cloud as clouds
from outlast.cli.errors import UsageError
from outlast.spec import secrets

VARIABLES = "outlast:secretEnv"
WEBHOOK = "outlast:webhookSecret"
WEBHOOK_KEY = "outlast:webhookKeySecret"
GIT = "outlast:gitSecret"
WEBHOOK_NAME = "rehearsal-webhook"
WEBHOOK_KEY_NAME = "rehearsal-webhook-key"
WEBHOOK_ADDRESS = "https://webhook.invalid/rehearsal"
"""No name below `invalid` is ever found."""


@dataclass(frozen=True)
class Secrets:
    """The secrets for the local cloud's Secret Manager."""

    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The values by secret name."""
    notes: tuple[str, ...] = ()
    """Sentences about them for people."""

    def create(self, cloud: clouds.LocalCloud) -> None:
        """Creates them. Raises CloudError."""
        path = f"/secretmanager/v1/projects/{clouds.PROJECT}/secrets"
        for name, value in self.values.items():
            cloud.call("POST", f"{path}?secretId={name}", {"replication": {"automatic": {}}})
            payload = {"payload": {"data": base64.b64encode(value).decode()}}
            cloud.call("POST", f"{path}/{name}:addVersion", payload)

    def without(self, audit: Mapping[str, Any]) -> dict[str, Any]:
        """What the local cloud has at the end, without these secrets, which no stack created."""
        left = [name for name in audit.get("secrets", []) if name not in self.values]
        return {**audit, "secrets": left}


def take_over(
    config: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], Secrets]:
    """The settings, with the stack's secrets replaced by those of the local cloud, and these
    secrets. Settings that break a rule stay, so that the program refuses them. Raises UsageError if
    a secret has no stand-in.
    """
    if config.get(GIT):
        raise UsageError(
            f"{GIT} {config[GIT]!r}: a rehearsal does not have your token or key; rehearse a "
            "checkout of the repository, with outlast:source instead of outlast:delivery git."
        )
    changed, values, notes = dict(config), dict[str, bytes](), list[str]()
    variables = config.get(VARIABLES)
    if variables and isinstance(variables, Mapping) and _is_good(variables):
        changed[VARIABLES] = {str(name): str(name) for name in variables}
        for name in map(str, variables):
            # A shell's variable may contain any bytes.
            own = environ.get(name, "").encode(errors="surrogateescape")
            values[name] = own or f"rehearsal-stand-in-for-{name}".encode()
            had = "your environment's value" if own else "a stand-in, it is not in your environment"
            notes.append(f"secretEnv.{name}: {had}")
    if config.get(WEBHOOK) and _is_name(config[WEBHOOK]):
        changed[WEBHOOK] = WEBHOOK_NAME
        values[WEBHOOK_NAME] = WEBHOOK_ADDRESS.encode()
        notes.append(
            "webhookSecret: an address that leads nowhere, so that a rehearsal sends no message"
        )
        if config.get(WEBHOOK_KEY) and _is_name(config[WEBHOOK_KEY]):
            changed[WEBHOOK_KEY] = WEBHOOK_KEY_NAME
            values[WEBHOOK_KEY_NAME] = b"rehearsal-stand-in-for-the-key"
    return changed, Secrets(values, tuple(notes))


def _is_good(variables: Mapping[Any, Any]) -> bool:
    try:
        secrets.check_variables({str(name): value for name, value in variables.items()}, "project")
    except secrets.SecretNameError:
        return False
    return True


def _is_name(text: Any) -> bool:
    try:
        return bool(secrets.check_name("webhookSecret", str(text), "project"))
    except secrets.SecretNameError:
        return False
