"""Converts property values of the engine's protocol to plain Python and back.

Secrets arrive unwrapped, because the provider does not accept them: the engine marks as secret what
was secret in the inputs, and what the provider itself marks. Whole numbers become int."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format, struct_pb2

SIGNATURE = "4dabf18193072939515e22adb298388d"
ASSET = "c44067f5952c0a294b673a41bacd8c17"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
UNKNOWN_TEXTS = {UNKNOWN_TEXT} | {
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # the engine has one for each kind of value
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
    "030794c1-ac77-496b-92df-f27374a8bd58",
    "e48ece36-62e2-4504-bad9-02848725956a",
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
}


class Unknown:
    """A value that a preview does not know yet. There is one: UNKNOWN."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Hidden:
    """An output that the provider marks as secret."""

    value: Any


@dataclass(frozen=True)
class Asset:
    """A file or text that goes into an object."""

    hash: str
    """The SHA-256 of the content in hex, from the engine."""
    path: str | None = None
    text: str | None = None

    def read(self) -> bytes:
        """Returns the content; raises ValueError if it cannot be read or has changed since the
        engine hashed it."""
        if self.text is not None:
            data = self.text.encode()
        else:
            try:
                data = Path(self.path or "").read_bytes()
            except OSError as error:
                raise ValueError(
                    f"source {self.path!r}: {error.strerror}; relative to {Path.cwd()}, the "
                    "checkout of the local cloud."
                ) from None
        if self.hash and hashlib.sha256(data).hexdigest() != self.hash:
            raise ValueError(f"source {self.path!r}: changed since the engine read it; try again.")
        return data


def decode(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Converts the engine's properties to Python values."""
    return {key: _decode(value) for key, value in json_format.MessageToDict(struct).items()}


def _decode(value: Any) -> Any:
    if isinstance(value, str):
        return UNKNOWN if value in UNKNOWN_TEXTS else value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    signature = value.get(SIGNATURE)
    if signature == SECRET:
        return _decode(value.get("value"))
    if signature == OUTPUT:
        return _decode(value["value"]) if "value" in value else UNKNOWN
    if signature == ASSET:
        if value.get("uri"):
            raise ValueError(f"source {value['uri']!r}: must be a file or a text, not an address.")
        text = None if value.get("path") else value.get("text", "")
        return Asset(value.get("hash", ""), value.get("path") or None, text)
    if signature is not None:
        raise ValueError(f"a value of signature {signature}: must be plain data or an asset.")
    return {key: _decode(item) for key, item in value.items()}


def encode(properties: dict[str, Any]) -> struct_pb2.Struct:
    """Converts Python values to the engine's properties, without None."""
    struct = struct_pb2.Struct()
    struct.update({key: _encode(item) for key, item in properties.items() if item is not None})
    return struct


def _encode(value: Any) -> Any:
    if isinstance(value, Unknown):
        return UNKNOWN_TEXT
    if isinstance(value, Hidden):
        return {SIGNATURE: SECRET, "value": _encode(value.value)}
    if isinstance(value, Asset):
        content = {"path": value.path} if value.path else {"text": value.text}
        return {SIGNATURE: ASSET, "hash": value.hash, **content}
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def holds_unknown(value: Any) -> bool:
    """Whether a part of the value is unknown in a preview."""
    if isinstance(value, dict):
        return any(holds_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(holds_unknown(item) for item in value)
    return isinstance(value, Unknown)
