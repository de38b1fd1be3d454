"""The one identity with which the program, commands and dynamic providers call Google's APIs.

It is found in the provider's order, so that all of them are the same account:

1. `gcp:accessToken`, then `gcp:credentials`; if the stack sets neither, the variables
   `GOOGLE_OAUTH_ACCESS_TOKEN`, then `GOOGLE_CREDENTIALS` and its older names. A value is the text
   or the path of a file with it.
2. Google's default credentials.
3. On top of either, `gcp:impersonateServiceAccount` (or `GOOGLE_IMPERSONATE_SERVICE_ACCOUNT`) with
   `gcp:impersonateServiceAccountDelegates`.

Source: https://registry.terraform.io/providers/hashicorp/google/latest/docs/guides/provider_reference
(authentication, 2026-11-30) and the provider's own configuration code.
"""

import functools
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN, KEY = "accessToken", "credentials"
IMPERSONATE, DELEGATES = "impersonateServiceAccount", "impersonateServiceAccountDelegates"
SETTINGS = tuple(f"gcp:{name}" for name in (TOKEN, KEY, IMPERSONATE, DELEGATES))
"""Settings of a stack that say who it is."""
TOKEN_VARIABLE = "GOOGLE_OAUTH_ACCESS_TOKEN"
KEY_VARIABLES = ("GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON", "GCLOUD_KEYFILE_JSON")
IMPERSONATE_VARIABLE = "GOOGLE_IMPERSONATE_SERVICE_ACCOUNT"
ENDPOINT_VARIABLE = "GOOGLE_IAM_CREDENTIALS_CUSTOM_ENDPOINT"

_of_stack: dict[str, str] = {}
"""The stack's settings, by full key; set by `use_settings`."""


@dataclass(frozen=True)
class Source:
    """Where the identity comes from; all empty for the default credentials."""

    token: str = ""
    key: str = ""
    named: str = ""
    """The setting or variable that has the token or the key, for errors."""
    account: str = ""
    """The service account that is impersonated."""
    delegates: tuple[str, ...] = ()

    @property
    def is_given(self) -> bool:
        """Whether a setting or variable names the identity."""
        return bool(self.token or self.key or self.account)


def use_settings(values: Mapping[str, Any]) -> None:
    """Makes a stack's settings (by full key) decide about this process's identity."""
    _of_stack.clear()
    for key in SETTINGS:
        value = values.get(key)
        if value:
            _of_stack[key] = value if isinstance(value, str) else json.dumps(value)


def source() -> Source:
    """Where this process's identity comes from. Raises GoogleAuthError for bad delegates."""
    from google.auth.exceptions import GoogleAuthError

    def setting(name: str) -> str:
        return _of_stack.get(f"gcp:{name}", "")

    token, key, named = setting(TOKEN), setting(KEY), f"gcp:{TOKEN if setting(TOKEN) else KEY}"
    if not token and not key:
        token = os.environ.get(TOKEN_VARIABLE, "")
        name = next((one for one in KEY_VARIABLES if os.environ.get(one)), "")
        key = os.environ.get(name, "")
        named = TOKEN_VARIABLE if token else name
    try:
        delegates = json.loads(setting(DELEGATES) or "[]")
        if not (isinstance(delegates, list) and all(isinstance(one, str) for one in delegates)):
            raise ValueError
    except ValueError:
        raise GoogleAuthError(f"gcp:{DELEGATES}: must be a list of service accounts") from None
    return Source(
        token=token,
        key="" if token else key,
        named=named if token or key else "",
        account=setting(IMPERSONATE) or os.environ.get(IMPERSONATE_VARIABLE, ""),
        delegates=tuple(delegates),
    )


def find() -> "Credentials":
    """This process's credentials; those of one source are looked up once.

    Raises GoogleAuthError, whose text is one sentence, if there are none.
    """
    from google.auth.exceptions import GoogleAuthError

    found = _made(source())
    if isinstance(found, str):
        raise GoogleAuthError(found)
    return found


def for_storage() -> "Credentials":
    """The credentials of a storage client. Raises GoogleAuthError.

    On a VM they are the metadata server's, also in the local cloud: otherwise the client would be
    anonymous there, and permissions would not be rehearsed. With another emulator they are none,
    unless a setting or variable names them.
    """
    from google.auth import compute_engine
    from google.auth.credentials import AnonymousCredentials

    if os.environ.get("GCE_METADATA_HOST"):
        return compute_engine.Credentials()
    if os.environ.get("STORAGE_EMULATOR_HOST") and not source().is_given:
        return AnonymousCredentials()
    return find()


def token() -> str:
    """An access token. Raises GoogleAuthError, whose text is one sentence, or OSError."""
    found = find()
    if not found.valid:
        # Here, because a token that was given needs none of it.
        from google.auth.transport.requests import Request

        found.refresh(Request())
    return str(found.token)


def described() -> str:
    """Where the identity comes from and, if that is known without a call, who it is; no secret.
    Raises GoogleAuthError."""
    given = source()
    origin = given.named or "Google's default credentials"
    if given.account:
        return f"{given.account}, impersonated from {origin}"
    email = getattr(find(), "service_account_email", "") or getattr(find(), "account", "")
    return f"{email}, from {origin}" if email and "@" in email else origin


def first_line(error: Exception) -> str:
    """The sentence of an error about credentials."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@functools.cache
def _made(source: Source) -> "Credentials | str":
    """The credentials, or why there are none; kept, because finding none takes seconds."""
    from google.auth.exceptions import GoogleAuthError

    try:
        own = _own(source)
    except (GoogleAuthError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{source.named}: " if source.named else ""
        return f"{what}no credentials ({first_line(error)})"
    if not source.account:
        return own
    return _impersonated(own, source)


def _impersonated(own: "Credentials", source: Source) -> "Credentials":
    from google.auth import impersonated_credentials
    from google.auth.exceptions import RefreshError

    endpoint = os.environ.get(ENDPOINT_VARIABLE, "").rstrip("/")
    path = f"projects/-/serviceAccounts/{source.account}:generateAccessToken"

    class Impersonated(impersonated_credentials.Credentials):
        """Its errors are one sentence with the account and the server's words."""

        def refresh(self, request: Any) -> None:
            try:
                super().refresh(request)
            except RefreshError as error:
                if not _is_about_impersonation(error):
                    raise
                raise RefreshError(
                    f"service account {source.account} cannot be impersonated"
                    f" ({_message_of(error)}); grant yourself"
                    " roles/iam.serviceAccountTokenCreator on it"
                ) from None

    return Impersonated(
        source_credentials=own,
        target_principal=source.account,
        target_scopes=[SCOPE],
        delegates=list(source.delegates),
        iam_endpoint_override=f"{endpoint}/{path}" if endpoint else None,
    )


def _is_about_impersonation(error: Exception) -> bool:
    return len(error.args) > 1 and isinstance(error.args[1], str)


def _message_of(error: Exception) -> str:
    """The server's words in an error of google-auth, whose second argument is the body."""
    try:
        return str(json.loads(error.args[1])["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(error.args[0])


def _own(source: Source) -> "Credentials":
    """The credentials before any impersonation."""
    import google.auth

    if source.token:
        return _given_token(_text_of(source.token), source.named)
    if not source.key:
        return google.auth.default(scopes=[SCOPE])[0]
    with warnings.catch_warnings():
        # The warning is about keys of unknown origin; this one is the operator's own setting.
        warnings.simplefilter("ignore", DeprecationWarning)
        info = json.loads(_text_of(source.key))
        return google.auth.load_credentials_from_dict(info, scopes=[SCOPE])[0]


def _given_token(text: str, named: str) -> "Credentials":
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials as Token

    class Given(Token):
        """A token that nothing here can renew."""

        def refresh(self, request: Any) -> None:
            raise RefreshError(f"the token in {named} is refused or has expired; set a new one")

    return Given(text)


def _text_of(value: str) -> str:
    """The value itself, or the content of the file that it names."""
    text = value.strip()
    if not text.startswith("{"):
        path = Path(text).expanduser()
        try:
            if path.is_file():
                return path.read_text().strip()
        except (OSError, ValueError):  # no path: a token may be longer than a name
            pass
    return text
