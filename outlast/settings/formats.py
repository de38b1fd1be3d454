"""Formats of single values, which pydantic checks in `keys`, each with its rule in words."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from outlast.cloud import images
from outlast.cloud import recipe as recipes
from outlast.machines import machines
from outlast.spec import identity, keys, network_rules
from outlast.spec.pin import Pin
from outlast.spec.run_spec import BadSpec, parse_checkpoint_every

EMPTY = "or leave it empty"
GS_PATH = re.compile(r"gs://[a-z0-9][-_.a-z0-9]*(?:/(?!\.{1,2}(?:/|$))[^/#'\\\\\s]+)+/?")
DATA_PATHS_LIMIT = 16
"""The platform allows 20 conditional bindings of one role and member; the bucket's own is one of
them.
"""


@dataclass(frozen=True)
class Rule:
    """A rule for a value; pydantic's error of type `rule` has the words in its context."""

    holds: Callable[[Any], object]
    rule: str
    """The words of the rule, such as "must be …"."""
    otherwise: str = ""
    """An alternative to setting the key, such as "or leave it empty"."""
    shown: Callable[[Any], object] = lambda value: value
    """The value as shown in the message."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def check(self, value: Any) -> Any:
        """The value. Raises pydantic's error."""
        if self.holds(value):
            return value
        words = {"rule": self.rule, "otherwise": self.otherwise, "value": self.shown(value)}
        raise PydanticCustomError("rule", "{rule}", words)


def one_of(*known: str) -> Rule:
    """One of these values."""
    rule = f"must be {machines.either([one for one in known if one])}"
    return Rule(known.__contains__, rule, EMPTY if "" in known else "")


def matching(pattern: re.Pattern[str], rule: str, otherwise: str = "") -> Rule:
    """A text that matches the whole pattern."""
    return Rule(lambda value: isinstance(value, str) and pattern.fullmatch(value), rule, otherwise)


def _is_below(text: str) -> bool:
    path = PurePosixPath(text)
    return not (path.is_absolute() or ".." in path.parts or path == PurePosixPath("."))


def _is_range(text: str) -> bool:
    try:
        return 8 <= ipaddress.IPv4Network(text).prefixlen <= 29 and "/" in text
    except ValueError:
        return False


def _is_checkpoint_every(text: str) -> bool:
    try:
        return bool(parse_checkpoint_every(text))
    except BadSpec:
        return False


def _is_pinned(text: str) -> bool:
    try:
        return not text or GS_PATH.fullmatch(Pin.parse(text).path) is not None
    except ValueError:
        return False


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return not url or (parts.scheme == "https" and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        return False


_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
ABSOLUTE = Rule(
    lambda text: not text or PurePosixPath(text).is_absolute(), "must be an absolute path", EMPTY
)
CHECKPOINT_EVERY = Rule(
    _is_checkpoint_every, "must be auto, seconds such as 30s, or steps such as 200"
)
DISK_TYPE = matching(recipes.MACHINE, "must be a disk type's bare name such as pd-balanced")
FOLDER_BELOW = Rule(
    lambda text: not text or _is_below(text),
    "must be a folder below the one that the command runs in",
)
HTTPS = Rule(_is_https, "must be an https address", EMPTY, shown=keys.without_person)
NO_PASSWORD = Rule(
    lambda url: "@" not in urlsplit(url).netloc,
    "must not contain a user or password, which would be readable in the stack's state and in the "
    "VM's metadata",
    "to an address that needs none",
    shown=keys.without_person,
)
IMAGE = matching(
    re.compile(
        # Forms that the provider resolves.
        r"(?:https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/"
        rf"projects/{recipes.PROJECT}/|projects/{recipes.PROJECT}/)?"
        rf"global/images/(?:family/)?{_NAME}|(?:{recipes.PROJECT}/|family/)?{_NAME}"
    ),
    f"must name an image or an image family, such as {images.DEBIAN}",
)
IP_RANGE = Rule(
    lambda text: _is_range(text),
    "must be an IPv4 range whose host bits are 0, from /8 to /29, such as 10.128.0.0/20",
)
KMS_KEY = matching(
    re.compile(
        rf"(?:projects/{recipes.PROJECT}/locations/[-a-z0-9]+/keyRings/[-\w]+/cryptoKeys/[-\w]+)?"
    ),
    "must be a key's full name, projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY",
    EMPTY,
)
MACHINE_TYPE = matching(recipes.MACHINE, "must be a machine type's bare name such as e2-standard-2")
PROJECT = matching(
    re.compile(rf"(?:{recipes.PROJECT})?"), "must be a project's id such as my-project-123", EMPTY
)
NETWORK = matching(
    re.compile(rf"(?:projects/{recipes.PROJECT}/global/networks/)?{_NAME}"),
    "must be default, isolated or the name of an existing network",
)
PINNED = Rule(
    _is_pinned,
    "must be a run's checkpoint in a bucket with its digest, as outlast checkpoints EXPERIMENT"
    " prints it",
    EMPTY,
)
RUN = Rule(
    lambda text: not text or identity.RUN_PATTERN.fullmatch(text),
    "must be a run's ten digits, 0-9 and a-f",
    EMPTY,
)
SERVICE_ACCOUNT = matching(
    re.compile(r"(?:[-a-z0-9]+@[-a-z0-9.]+\.gserviceaccount\.com)?"),
    "must be a service account's address, which ends in gserviceaccount.com",
    EMPTY,
)
SOFT_DELETE_DAYS = Rule(
    network_rules.SOFT_DELETE_DAYS.__contains__, "must be 0, or 7 to 90, as the platform allows"
)
SUBNETWORK = matching(
    re.compile(rf"(?:projects/{recipes.PROJECT}/regions/[-a-z0-9]+/subnetworks/)?(?:{_NAME})?"),
    "must be the name of a subnetwork in the zone's region",
)
UNLISTED = matching(
    recipes.MACHINE, "must be a region, a zone or a machine type, such as europe-west4"
)
YES_NO = Rule(lambda text: text.lower() in ("true", "false", ""), "must be true or false", EMPTY)
_GLOB = Rule(
    lambda glob: isinstance(glob, str) and glob.strip(), "must be a list of globs, such as *.pt"
)
_DATA = matching(GS_PATH, "must be gs://BUCKET/PATH, an object or a folder")
_NO_WILDCARD = Rule(
    lambda path: "*" not in path,
    "must not contain wildcards; a folder means everything below it",
    "to the folder",
)
_FEW_PATHS = Rule(
    lambda paths: len(paths) <= DATA_PATHS_LIMIT,
    f"at most {DATA_PATHS_LIMIT} are allowed, because each is an IAM binding; name a folder above"
    " them",
    shown=lambda paths: f"{len(paths)} paths",
)

Count = Annotated[int, Field(ge=0)]
Dollars = Annotated[float, Field(ge=0, le=1_000_000)]
Minutes = Annotated[int, Field(ge=1, le=525_600)]
"""A year at most."""
RunMinutes = Annotated[int, Field(ge=1, le=172_800)]
"""120 days at most, as the platform allows (page "Limit the run time of a VM", read in November
2026).
"""
Seconds = Annotated[int, Field(ge=1, le=86_400)]
"""A day at most."""
SecondsOr0 = Annotated[int, Field(ge=0, le=86_400)]
Globs = tuple[Annotated[Any, _GLOB], ...]
DataPaths = Annotated[
    tuple[Annotated[Any, _DATA, _NO_WILDCARD], ...],
    _FEW_PATHS,
    AfterValidator(lambda paths: tuple(dict.fromkeys(paths))),
]
