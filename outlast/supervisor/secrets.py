"""Reads secrets from Secret Manager with the VM's own token, and masks them in output.

SecretRefused      the same try fails again, on every machine; one sentence for people
SecretUnavailable a later try or another machine may succeed
"""

import base64
import json
import logging
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import Patience, Trouble
from outlast.supervisor.metadata import Metadata, MetadataError

_log = logging.getLogger(__name__)

ENDPOINT = "https://secretmanager.googleapis.com/"
ENDPOINT_VARIABLE = "OUTLAST_SECRET_MANAGER_ENDPOINT"
BYTES_MAX = 65_536
"""Maximum size of a version in Secret Manager, in bytes."""
MASK = b"***"
MASKED_BYTES_MIN = 6
"""A shorter secret is not masked: it would also mask ordinary words in the log."""
MASKED_LINE_BYTES_MIN = 8
"""In a secret of several lines, each line with at least this many bytes is also masked alone."""
_ENCODED_BYTES_MIN = 8
_PART_BYTES_MIN = 3
"""The start of a secret at a stream's very end is masked if it is longer than this."""


class SecretRefused(Exception):
    """The run cannot get the secret that its settings name."""


class SecretUnavailable(Exception):
    """The secret could not be read here and now."""


class _Forbidden(Exception):
    """401 or 403."""

    trouble = Trouble.FORBIDDEN


class _Unanswered(Exception):
    """No answer, or an answer that may differ next time."""

    trouble = Trouble.SILENT


@dataclass(frozen=True)
class SecretReader:
    """Reads secrets for this VM."""

    metadata: Metadata
    patience: Patience

    def read(self, setting: str, name: str) -> bytes:
        """Returns the bytes of the secret `name` (`projects/P/secrets/NAME/versions/V`); `setting`
        names it in errors. Raises SecretRefused, SecretUnavailable, and whatever the clock's
        `sleep` raises."""
        try:
            return self.patience(lambda: self._ask(f"{setting} {name}", name))
        except _Forbidden as error:
            raise SecretRefused(str(error)) from None
        except _Unanswered as error:
            raise SecretUnavailable(str(error)) from None

    def _ask(self, field: str, name: str) -> bytes:
        try:
            token = self.metadata.token()
        except MetadataError as error:
            raise _Unanswered(f"{field}: no token for this VM ({error})") from None
        url = f"{os.environ.get(ENDPOINT_VARIABLE, ENDPOINT)}v1/{name}:access"
        try:
            answer = ask(url, what=field, headers={"Authorization": f"Bearer {token}"})
            return base64.b64decode(answer.object()["payload"].get("data", ""))
        except RequestFailed as error:
            if error.status in (401, 403):
                self.metadata.forget_token()
            raise _refusal(field, name, error.status) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Unanswered(f"{field}: no usable answer ({type(error).__name__})") from None


def _refusal(field: str, name: str, status: int) -> Exception:
    _, project, _, secret, *_ = name.split("/")
    gcloud = f"gcloud secrets versions {{}} {secret} --project {project}"
    if status in (401, 403):
        return _Forbidden(
            f"{field}: may not be read by this VM; grant its service account"
            " roles/secretmanager.secretAccessor on it, as pulumi up does"
        )
    if status == 404:
        add = gcloud.format("add")
        return SecretRefused(
            f"{field}: does not exist, or has no version; add one with {add} --data-file FILE"
        )
    if status == 400:
        listed = gcloud.format("list")
        return SecretRefused(
            f"{field}: is disabled or destroyed ({listed}); enable it, or add a version"
        )
    return _Unanswered(f"{field}: {f'status {status}' if status else 'no answer'}")


# ---------------------------------------------------------------------------------------------
# A trainer's variables


@dataclass
class TrainerSecrets:
    """The trainer's secret variables, and the mask of its output. Safe to share between threads."""

    reader: SecretReader
    names: Mapping[str, str]
    """Variable to secret."""
    mask: "Mask" = field(default_factory=lambda: Mask())
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """Variable to value, once `load` has read them."""

    def load(self) -> None:
        """Reads the current values of all secrets. Raises SecretRefused and SecretUnavailable."""
        for variable, name in self.names.items():
            setting = f"secretEnv.{variable}"
            value = self.reader.read(setting, name).rstrip(b"\r\n")  # left by echo
            if not value or b"\0" in value:
                what = "holds a null byte, and a variable cannot" if value else "is empty"
                raise SecretRefused(f"{setting} {name}: {what}; add a version with a value")
            if len(value) < MASKED_BYTES_MIN and variable not in self.environment:
                _log.info(
                    f"{setting}: has fewer than {MASKED_BYTES_MIN} bytes, so it is not masked in"
                    " what the trainer prints"
                )
            self.mask.add(value)
            self.environment[variable] = os.fsdecode(value)


# ---------------------------------------------------------------------------------------------
# The mask


class Mask:
    """Replaces secrets in bytes and texts with ``***``: in plain form, in base64, in a URL and in
    JSON. Without secrets it changes nothing."""

    def __init__(self) -> None:
        self._secrets: set[bytes] = set()
        self._patterns: tuple[bytes, ...] = ()
        """Longest first."""
        self._any: re.Pattern[bytes] | None = None
        self._lock = threading.Lock()

    def add(self, secret: bytes) -> None:
        """Masks this secret too, from now on; ignores one that is too short."""
        with self._lock:
            if len(secret) < MASKED_BYTES_MIN or secret in self._secrets:
                return
            self._secrets.add(secret)
            found = {form for each in self._secrets for form in _forms(each)}
            self._patterns = tuple(sorted(found, key=lambda form: (-len(form), form)))
            self._any = re.compile(b"|".join(map(re.escape, self._patterns)))

    def data(self, data: bytes) -> bytes:
        """Masks all of the data at once."""
        masked, held = self.split(data)
        return masked + self.rest(held)

    def text(self, text: str) -> str:
        """Masks all of the text at once."""
        if self._any is None:
            return text
        return self.data(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the masked data as far as it is certain, and the unmasked end that may be the
        start of a secret. Either may be empty."""
        if self._any is None:
            return data, b""
        hold = self._hold(data)
        pieces, done = [], 0
        for match in self._any.finditer(data):
            if match.start() >= hold:
                break
            pieces += [data[done : match.start()], MASK]
            done = match.end()
        hold = max(hold, done)
        return b"".join([*pieces, data[done:hold]]), data[hold:]

    def rest(self, held: bytes) -> bytes:
        """Masks the end of a stream: whole secrets, and the start of one if at least half of it is
        there."""
        if self._any is None or not held:
            return held
        masked = self._any.sub(MASK, held)
        for pattern in self._patterns:
            for size in range(len(pattern) - 1, max((len(pattern) - 1) // 2, _PART_BYTES_MIN), -1):
                if masked.endswith(pattern[:size]):
                    return masked[:-size] + MASK
        return masked

    def stream(self) -> "MaskedStream":
        """A mask for bytes that arrive in pieces."""
        return MaskedStream(self)

    def _hold(self, data: bytes) -> int:
        """The index of the end that may become a secret with the bytes that follow."""
        hold = len(data)
        for pattern in self._patterns:
            start = max(0, len(data) - len(pattern) + 1)
            while (start := data.find(pattern[:1], start, hold)) >= 0:
                if pattern.startswith(data[start:]):
                    hold = start
                    break
                start += 1
        return hold


class MaskedStream:
    """The mask of one stream: also masks a secret that is written in several pieces."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes that can be shown now."""
        masked, self._held = self._mask.split(self._held + data)
        return masked

    def end(self) -> bytes:
        """Returns the bytes that were held back, masked."""
        held, self._held = self._held, b""
        return self._mask.rest(held)


def _forms(secret: bytes) -> Iterator[bytes]:
    """Yields the forms of the secret: plain and encoded."""
    yield secret
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MASKED_LINE_BYTES_MIN)
    yield urllib.parse.quote(secret, safe="").encode()
    yield urllib.parse.quote_plus(secret, safe="").encode()
    yield urllib.parse.quote(secret).encode()
    text = secret.decode(errors="replace")
    yield json.dumps(text)[1:-1].encode()
    yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    yield repr(text)[1:-1].encode()
    # In base64 a secret has one of three forms, depending on its offset in the text (user:secret).
    # The characters at both ends also hold bits of its neighbours and are left out.
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret)
        begin = (before * 8 + 5) // 6
        whole = (before + len(secret)) * 8 // 6
        core = encoded[begin:whole]
        if len(core) >= _ENCODED_BYTES_MIN:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
