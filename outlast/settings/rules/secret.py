"""Rules for secrets: which ones a VM reads, and that no other setting contains one."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from outlast.settings.errors import NAMESPACE, SettingsError
from outlast.settings.keys import Keys
from outlast.spec import secrets

_REMEDIES = {
    "webhook": f"keep the address as a secret in Secret Manager, name that secret in"
    f" {NAMESPACE}:webhookSecret, and remove {NAMESPACE}:webhook",
    "gitUrl": f"keep the token as a secret in Secret Manager, name that secret in"
    f" {NAMESPACE}:gitSecret, and set {NAMESPACE}:gitUrl without it and without --secret",
    "secretEnv": "it contains names of secrets, which are not secret; set it without --secret",
    "webhookSecret": "it is the name of a secret, which is not secret; set it without --secret",
    "webhookKeySecret": "it is the name of a secret, which is not secret; set it without --secret",
    "gitSecret": "it is the name of a secret, which is not secret; set it without --secret",
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
            "for a secret value that the trainer needs, name a secret in Secret Manager in"
            f" {NAMESPACE}:secretEnv and read the variable in the trainer; set {full} without"
            " --secret",
        )
        raise SettingsError(
            f"{full}: is set with --secret, but would be in plain text in the stack's state and"
            f" in the VM's metadata; {remedy}"
        )


def refuse_plain_values(
    values: Mapping[str, Any],
    secret_keys: Collection[str],
    variables: Collection[str],
    command: str,
    args: Mapping[str, Any],
) -> None:
    """Refuses a variable of `secretEnv` that the stack's settings also contain in plain text: it
    would be in a file, in the state and in the VM's metadata, and no longer secret. `values` and
    `secret_keys` are by full key, `command` and `args` are the settings.
    """
    for name in sorted(variables):
        own = f"{NAMESPACE}:secretEnv.{name}"
        for key in args:
            if _same(key, name):
                raise SettingsError(
                    f"{NAMESPACE}:args.{key} beside {own}: is in plain text; leave it out, and"
                    f" read the variable {name} in the trainer"
                )
        if re.search(rf"(?<![\w$]){re.escape(name)}=(?![\"']?\$|\s|$)", _words(command), re.M):
            raise SettingsError(
                f"{NAMESPACE}:command beside {own}: sets {name} in plain text; leave that out, the"
                " VM sets the variable for the command"
            )
        for full in sorted(values):
            space, _, key = full.partition(":")
            if space != NAMESPACE and full not in secret_keys and _same(key, name):
                raise SettingsError(
                    f"{full} beside {own}: is in plain text in the stack's settings; remove it "
                    f"with pulumi config rm {full}, and change the key, because others may have "
                    "read it"
                )


def _words(command: str) -> str:
    """The command's line, or its words, one on each line."""
    found = json.loads(command) if command else ""
    return found if isinstance(found, str) else "\n".join(found)


def _same(key: object, variable: str) -> bool:
    """Whether a setting's name matches the variable: api-key, apiKey and API_KEY match."""
    return re.sub(r"[^a-z0-9]", "", str(key).lower()) == re.sub(r"[^a-z0-9]", "", variable.lower())


def plain_tokens(command: str, args: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning for each setting of the run that looks like a token or a key."""
    words = {f"args.{key}": str(value).split() for key, value in args.items()}
    words["command"] = re.split(r"[\s=,\"']+", _words(command))
    return tuple(
        f"{NAMESPACE}:{key}: looks like it contains a token or a key, in plain text; keep it as a"
        f" secret in Secret Manager, and name that in {NAMESPACE}:secretEnv"
        for key, found in words.items()
        if any(map(secrets.looks_secret, found))
    )


def secret_env_of(given: Keys, cloud: str) -> dict[str, str]:
    """The secret for each variable of the trainer."""
    try:
        return secrets.check_variables(given.secret_env, cloud)
    except secrets.SecretNameError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def webhook_secret_of(given: Keys, cloud: str) -> str:
    """The secret that holds the webhook's address; empty for none."""
    text = given.webhook_secret
    if text and given.webhook:
        raise SettingsError(
            f"{NAMESPACE}:webhookSecret beside {NAMESPACE}:webhook: both give the address; leave"
            " out one of them"
        )
    try:
        return secrets.check_name("webhookSecret", text, cloud)
    except secrets.SecretNameError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None


def webhook_key_secret_of(given: Keys, cloud: str) -> str:
    """The secret that holds the key of the messages' signature; empty for none."""
    text = given.webhook_key_secret
    if text and not (given.webhook or given.webhook_secret):
        raise SettingsError(
            f"{NAMESPACE}:webhookKeySecret without {NAMESPACE}:webhook: there is no message to"
            f" sign; set {NAMESPACE}:webhook or {NAMESPACE}:webhookSecret, or leave it out"
        )
    try:
        return secrets.check_name("webhookKeySecret", text, cloud)
    except secrets.SecretNameError as error:
        raise SettingsError(f"{NAMESPACE}:{error}") from None
