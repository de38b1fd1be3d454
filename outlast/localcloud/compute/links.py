"""Addresses of objects in the project, the fields that all their JSON begins with, and
fingerprints."""

import base64
import hashlib
import json
from typing import Any

from outlast.localcloud.base.clock import to_rfc3339

Json = dict[str, Any]

HOST = "https://www.googleapis.com/compute"


class Links:
    """The addresses of one project, of v1; `in_version` adapts them."""

    def __init__(self, project: str) -> None:
        self._project = project

    def link(self, path: str) -> str:
        """The address of an object in the project."""
        return f"{HOST}/v1/projects/{self._project}/{path}"

    def head(self, kind: str, path: str, number: str, created: float) -> Json:
        """The fields that the JSON of every object begins with."""
        return {
            "kind": f"compute#{kind}",
            "id": number,
            "name": path.rpartition("/")[2],
            "creationTimestamp": to_rfc3339(created),
            "selfLink": self.link(path),
        }


def in_version(value: Any, version: str) -> Any:
    """An answer with the links of the requested version."""
    if isinstance(value, dict):
        return {key: in_version(item, version) for key, item in value.items()}
    if isinstance(value, list):
        return [in_version(item, version) for item in value]
    if isinstance(value, str) and value.startswith(f"{HOST}/"):
        return f"{HOST}/{version}/{value[len(HOST) + 1 :].partition('/')[2]}"
    return value


def fingerprint(number: int) -> str:
    """A counter as a fingerprint."""
    return base64.b64encode(number.to_bytes(8, "big")).decode()


def fingerprint_of(content: Any) -> str:
    """The fingerprint of content that a client must read before it changes it."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()
