"""A stack's configuration as the engine hands it to the program: texts, the defaults put in."""

import json
from pathlib import Path
from typing import Any

import yaml

from outlast import settings

ROOT = Path(__file__).resolve().parents[2]

LOCAL_CLOUD = {
    "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "http://127.0.0.1:1/compute/beta/",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",
}


def defaults() -> dict[str, str]:
    """Pulumi.yaml's defaults, and nothing that has none."""
    return {f"outlast:{key}": text(entry["default"]) for key, entry in settings.declared().items()}


def of_file(name: str) -> dict[str, str]:
    """The defaults, and the values of `Pulumi.<name>.yaml` over them."""
    own = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
    return {**defaults(), **{key: text(value) for key, value in own.items()}}


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
