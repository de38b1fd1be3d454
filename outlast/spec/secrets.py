"""Secrets of Secret Manager that a VM reads: how the settings name them, and for which variables.

The program and the supervisor read it alike. Only names are known here, never a secret itself.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from outlast.base.codec import canonical_json
from outlast.spec import keys

VARIABLES_LIMIT = 32
"""Each secret is an IAM binding and a call at the start of each attempt."""

_NAME = re.compile(
    r"(?:projects/(?P<project>[a-z0-9:.-]+)/secrets/)?(?P<name>[A-Za-z0-9_-]{1,255})"
    r"(?:/versions/(?P<version>[1-9][0-9]*|latest))?"
)
"""A secret's name has at most 255 characters (`secretId`, discovery document secretmanager v1,
revision 20261021)."""
_A_SECRET_ITSELF = re.compile(
    # Where a name should stand, the beginning of a token is enough, and so is what in a longer
    # text would be any hash: W&B, Comet and Neptune; a key file; user:password.
    r"gh[opsur]_|github_pat_|gl[a-z]{2,5}-[A-Za-z0-9_-]{10}|ATCTT|-----BEGIN|\S{60,}:"
    r"|^(?:local-|wandb_v[0-9]+_)?[0-9a-f]{40}$|^hf_[A-Za-z0-9]{20}|^sk-[A-Za-z0-9_-]{20}"
    r"|^AIza[A-Za-z0-9_-]{30}|^GOCSPX-|^eyJ[A-Za-z0-9_-]{20}"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = {
    # The system's and the shell's.
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TERM", "LANG", "TZ", "TMPDIR"),
    *("IFS", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND", "CDPATH", "HOSTNAME"),
    *("GCONV_PATH", "LOCPATH", "NLSPATH", "MALLOC_CONF", "GLIBC_TUNABLES", "VIRTUAL_ENV"),
    # What Outlast gives a command or a trainer.
    *("RUN_ID", "ATTEMPT", "LOG_DIR", "CHECKPOINT_DIR", "RESULT_DIR", "DATA_DIR", "OUTPUT_URI"),
    # Where the VM finds Google.
    *("METADATA_BASE", "GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"),
    *("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"),
    # What torchrun gives its processes.
    *("RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
}
_RESERVED_PREFIXES = ("LD_", "DYLD_", "OUTLAST_", "PYTHON", "LC_", "TORCHELASTIC_", "BASH_FUNC_")


class SecretNameError(ValueError):
    """A setting breaks a rule; the message is a sentence that begins with the setting's name."""


def looks_secret(text: str) -> bool:
    """Whether a text that should name something is a token or a key itself."""
    return keys.find(text) is not None or _A_SECRET_ITSELF.search(text) is not None


def check_name(key: str, text: str, project: str) -> str:
    """`projects/P/secrets/NAME/versions/V` of what the setting `key` names; empty for empty.

    `project` owns a secret that is named without one. SecretNameError: it is not such a name. The
    message does not repeat the value, which may be the secret itself.
    """
    if not text:
        return ""
    if looks_secret(text):
        raise SecretNameError(
            f"{key}: looks like a token or a key itself, which must not stand in a configuration;"
            " withdraw it, keep a new one as a secret of Secret Manager, and name that secret here"
        )
    match = _NAME.fullmatch(text)
    if match is None:
        raise SecretNameError(
            f"{key}: its value of {len(text)} characters must name a secret of Secret Manager, "
            "NAME or projects/PROJECT/secrets/NAME, with /versions/N at the end for one version; "
            f"set outlast:{key}"
        )
    owner, version = match["project"] or project, match["version"] or "latest"
    return f"projects/{owner}/secrets/{match['name']}/versions/{version}"


def parts(name: str) -> tuple[str, str, str]:
    """(project, name, version) of a secret as `check_name` returns it."""
    _, project, _, secret, _, version = name.split("/")
    return project, secret, version


def check_variables(names: Mapping[str, Any], project: str) -> dict[str, str]:
    """Variable to secret, as `check_name` returns it. Raises SecretNameError."""
    if len(names) > VARIABLES_LIMIT:
        raise SecretNameError(
            f"secretEnv: names {len(names)} variables, at most {VARIABLES_LIMIT} are allowed; put"
            " several values into one secret, as JSON for example"
        )
    found = {}
    for variable, name in sorted(names.items()):
        check_variable(variable)
        key = f"secretEnv.{variable}"
        if not isinstance(name, str) or not name.strip():
            raise SecretNameError(
                f"{key}: must be the name of a secret of Secret Manager; set outlast:{key}"
            )
        found[variable] = check_name(key, name.strip(), project)
    return found


def check_variable(name: str) -> None:
    """SecretNameError if a trainer's variable cannot have this name."""
    if not _VARIABLE.fullmatch(name):
        shown = "" if looks_secret(name) else f" {name[:80]!r}"
        raise SecretNameError(
            f"secretEnv{shown}: must be a variable's name, letters, digits and underscores and no"
            " digit first, such as WANDB_API_KEY; set outlast:secretEnv"
        )
    if name.upper() in _RESERVED or name.upper().startswith(_RESERVED_PREFIXES):
        raise SecretNameError(
            f"secretEnv {name!r}: is a reserved variable, which the system, Python or Outlast sets"
            " for the trainer; choose another name"
        )


def to_json(variables: Mapping[str, str]) -> str:
    """For the metadata; empty for none."""
    return canonical_json(dict(variables)).decode() if variables else ""


def from_json(text: str) -> dict[str, str]:
    """Variable to secret. ValueError for anything that `to_json` did not write."""
    if not text:
        return {}
    try:
        found = json.loads(text)
        for variable, name in found.items():
            check_variable(variable)
            if check_name("secret-env", name, "") != name:
                raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError("secret-env: must be JSON of variables and their secrets' names") from None
    return found
