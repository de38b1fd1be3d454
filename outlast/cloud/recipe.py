"""Checks the recipe in `outlast:imageRecipe` and computes its hash.

It reads nothing but the recipe's files in the checkout. The hash covers the image's content but not
how its builder runs, so a larger builder causes no new bake.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlast.base.codec import canonical_json
from outlast.base.folders import PACKAGE
from outlast.base.suggest import did_you_mean
from outlast.spec import bundle as bundles
from outlast.spec import keys, startup_script
from outlast.spec.delivery import VALUE_LIMIT

DEFAULT_FAMILY = "outlast"
DEFAULT_MACHINE_TYPE = "e2-standard-4"
DEFAULT_LIMIT_MINUTES = 120
DEFAULT_DISK_GB = 50
DISK_TYPE = "pd-balanced"
DISK_GB_LEAST, DISK_GB_MOST = 10, 65_536
"""Of any boot disk."""
"""The builder's defaults."""
LIMIT_MINUTES = 1440
OPEN, PROPRIETARY = "open", "proprietary"
"""NVIDIA's kernel modules."""
PLAIN_NAMES_FROM = 590
"""First driver branch that supports no Pascal and Volta, and whose packages do not name it (NVIDIA
Driver Installation Guide, "Recent updates", read in November 2026).
"""

FAMILY_LIMIT = 40
"""The longest family: the platform allows names of 63 characters (`name` of Instance, discovery
document compute v1, revision 20261106), and those of builder and image are longer.
"""

BUILDER = "bake-"
"""Prefix of the builder's name, before the image's name."""

KEY = "outlast:imageRecipe"
"""The setting with which a message about a recipe begins."""

WHAT = "packages, requirements, driver, cuda, script, data or trainers"
_KEYS = frozenset(
    {"family", "base", "packages", "requirements", "driver", "cuda", "script", "data", "trainers"}
    | {"project", "shareWith", "machineType", "zone", "limitMinutes", "diskGb"}
    | {"driverModules"}
)
_FAMILY = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_PACKAGE = re.compile(r"[a-z0-9][-+.a-z0-9]+(?:=[-+.:~A-Za-z0-9]+)?")
_DRIVER = re.compile(r"[0-9]{3}(?:\.[0-9]+)*")
_MODULES = re.compile(f"{OPEN}|{PROPRIETARY}")
_CUDA = re.compile(r"[0-9]{2}\.[0-9]")
_DRIVER_PACKAGES = ("nvidia-", "cuda-drivers")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"(?:https://[^\s/@]+/|gs://[a-z0-9][-_.a-z0-9]*/)[^\s#'\"\\]+")
_PATH = re.compile(r"(?=.{1,255}$)[A-Za-z0-9_][-A-Za-z0-9_.]*(?:/[A-Za-z0-9_][-A-Za-z0-9_.]*)*")
PROJECT = r"(?:[a-z0-9][-.a-z0-9]*:)?[a-z][-a-z0-9]*"
_PROJECT = re.compile(PROJECT)
MACHINE = re.compile(r"[a-z][-a-z0-9]*")
ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
_MEMBER = re.compile(r"(?:serviceAccount|user|group):[^\s:@]+@[^\s:@]+")


class RecipeError(ValueError):
    """A recipe that breaks a rule; one sentence, then what to do."""


@dataclass(frozen=True)
class Data:
    """A data file of the image, at /opt/outlast/data/`path`."""

    url: str
    sha256: str
    path: str


@dataclass(frozen=True)
class Recipe:
    """A checked recipe."""

    family: str
    base: str
    """Image or family, in any form that the provider accepts."""
    packages: tuple[str, ...] = ()
    requirements: str = ""
    """File of the checkout, locked with hashes."""
    driver: str = ""
    modules: str = OPEN
    """The driver's kernel modules."""
    cuda: str = ""
    script: str = ""
    """File of the checkout."""
    data: tuple[Data, ...] = ()
    trainers: bool = False
    """Whether the image contains the bundle."""
    project: str = ""
    """Project of the image and its builder."""
    share_with: tuple[str, ...] = ()
    """Members that may also boot from the project's images."""
    machine_type: str = DEFAULT_MACHINE_TYPE
    zone: str = ""
    limit_minutes: int = DEFAULT_LIMIT_MINUTES
    disk_gb: int = DEFAULT_DISK_GB

    @property
    def family_path(self) -> str:
        """The form that templates take."""
        return f"projects/{self.project}/global/images/family/{self.family}"

    @property
    def branch(self) -> int:
        """The driver's branch; 0 without a driver."""
        return int(self.driver.partition(".")[0] or 0)

    @property
    def installs_driver(self) -> bool:
        """Whether it installs a GPU driver, or might, because a script's effects are unknown."""
        packaged = any(one.startswith(_DRIVER_PACKAGES) for one in self.packages)
        return bool(self.driver or self.script) or packaged

    @property
    def installs_python(self) -> bool:
        """Whether it installs another Python, or might, because a script's effects are unknown."""
        return bool(self.script) or any(one.startswith("python3.") for one in self.packages)

    @property
    def needs_token(self) -> bool:
        """Whether the builder reads the bucket."""
        return self.trainers or any(one.url.startswith("gs://") for one in self.data)


def check(
    given: Mapping[str, Any], *, base: str, project: str, zone: str, modules: str = OPEN
) -> Recipe:
    """Checks the recipe in a stack's configuration; `base`, `project`, `zone` and `modules` are the
    stack's defaults. Raises RecipeError.
    """
    for key in given:
        if key not in _KEYS:
            hint = did_you_mean(key, sorted(_KEYS), f"its parts are {_words(_KEYS)}")
            raise RecipeError(f"{KEY}.{key}: is not part of a recipe; {hint}")
    recipe = Recipe(
        family=_text(given, "family", DEFAULT_FAMILY, _FAMILY, "must be a name such as outlast"),
        base=_text(given, "base", base, re.compile(r"\S+"), "must name an image or a family"),
        packages=tuple(
            _part(where, one, _PACKAGE, "must be a package's name, or NAME=VERSION")
            for where, one in _list(given, "packages")
        ),
        requirements=_text(given, "requirements", ""),
        driver=_text(given, "driver", "", _DRIVER, "must be a branch (580) or a version"),
        modules=_text(
            given, "driverModules", modules, _MODULES, f"must be {OPEN} or {PROPRIETARY}"
        ),
        cuda=_text(given, "cuda", "", _CUDA, "must be a version such as 12.9"),
        script=_text(given, "script", ""),
        data=tuple(_data(where, one) for where, one in _list(given, "data")),
        trainers=_boolean(given, "trainers"),
        project=_text(given, "project", project, _PROJECT, "must be a project's id"),
        share_with=tuple(
            _part(where, one, _MEMBER, "must be serviceAccount:, user: or group: and a mail")
            for where, one in _list(given, "shareWith")
        ),
        machine_type=_text(
            given, "machineType", DEFAULT_MACHINE_TYPE, MACHINE, "must be a machine type"
        ),
        zone=_text(given, "zone", zone, ZONE, "must be a zone such as europe-west4-a"),
        limit_minutes=_integer(given, "limitMinutes", DEFAULT_LIMIT_MINUTES, 1, LIMIT_MINUTES),
        disk_gb=_integer(given, "diskGb", DEFAULT_DISK_GB, DISK_GB_LEAST, DISK_GB_MOST),
    )
    if len(recipe.family) > FAMILY_LIMIT:
        raise _bad("family", recipe.family, f"must have at most {FAMILY_LIMIT} characters")
    if not recipe.zone:
        raise _bad("zone", "", "must be the builder's zone, such as europe-west4-a")
    paths = [one.path for one in recipe.data]
    if len(set(paths)) < len(paths):
        raise _bad("data", ", ".join(paths), "each must have its own path; set path")
    installed = (recipe.packages, recipe.requirements, recipe.driver, recipe.cuda, recipe.script)
    if not (any(installed) or recipe.data or recipe.trainers):
        raise RecipeError(
            f"{KEY}: installs nothing; add {WHAT}, or leave out imageRecipe, because stock images"
            " work without a bake"
        )
    return recipe


def network_refusal(
    recipe: Recipe, *, project: str, region: str, network: str, subnetwork: str, internet: bool
) -> str | None:
    """Why the recipe's builder cannot work in the stack's network. `project` and `region` are the
    stack's; `internet` says whether a VM reaches more than Google's APIs.
    """
    if not internet:
        return (
            f"{KEY} beside outlast:network {network!r}: the builder installs from the internet, and"
            " VMs have no external address and no NAT there; set outlast:nat to true, or bake the"
            " family in a stack that reaches the internet and name it in outlast:image"
        )
    if recipe.project != project and network != "default" and "/" not in network:
        return (
            f"{KEY}.project {recipe.project!r}: the builder is in that project, and outlast:network"
            f" {network!r} in {project}; leave out project, or set outlast:network to default"
        )
    if recipe.zone.rpartition("-")[0] != region and (subnetwork or network == "isolated"):
        return (
            f"{KEY}.zone {recipe.zone!r}: the builder's subnetwork is in {region}; set it to a zone"
            " of that region, or leave it out"
        )
    return None


@dataclass(frozen=True)
class Baked:
    """A recipe with its files: the image's name, and what its builder receives."""

    recipe: Recipe
    hash: str
    files: Mapping[str, bytes]
    """`vm`, and of `requirements` and `script` what the recipe has."""

    @property
    def image(self) -> str:
        """The image's name."""
        return image_name(self.recipe.family, self.hash)

    @property
    def state(self) -> dict[str, Any]:
        """The recipe as stored in a stack's state, with files by name."""
        return asdict(self.recipe)

    @property
    def builder(self) -> str:
        """The name of the builder and of its disk."""
        return f"{BUILDER}{self.image}"


def read(recipe: Recipe, root: Path, *, bundle_sha256: str = "") -> Baked:
    """The recipe with its files from the project `root`; `bundle_sha256` if the trainers are baked
    in. Raises RecipeError.
    """
    files = {"vm": (PACKAGE / bundles.REQUIREMENTS).read_bytes()}
    if recipe.requirements:
        files["requirements"] = _locked(root, recipe.requirements)
    if recipe.script:
        files["script"] = _file(root, "script", recipe.script)
        if not files["script"].startswith(b"#!"):
            raise _bad("script", recipe.script, "must begin with #! and its interpreter")
    for name, data in files.items():
        size = len(encoded(data))
        if size > VALUE_LIMIT:
            raise RecipeError(
                f"{KEY}.{name}: has {size} bytes compressed, at most {VALUE_LIMIT} fit into the"
                " builder's metadata; keep large files in the bucket and name them under data"
            )
    script = startup_script.read("bake.sh", PACKAGE / "startup")
    content = {
        **asdict(recipe),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
        "bake": hashlib.sha256(script.encode()).hexdigest(),
        "bundle": bundle_sha256 if recipe.trainers else "",
    }
    for key in ("share_with", "machine_type", "zone", "limit_minutes", "requirements", "script"):
        del content[key]
    return Baked(recipe, hashlib.sha256(canonical_json(content)).hexdigest(), files)


def _locked(root: Path, name: str) -> bytes:
    """A requirements file with hashes, which must name every package that it includes."""
    from outlast.spec import requirements  # most recipes have none, and it loads slowly

    _file(root, "requirements", name)
    try:
        requirements.refuse_other_forms(name)
        found = requirements.read(name, requirements.Folder(root), alone=True)
    except requirements.RequirementsError as error:
        raise RecipeError(f"{KEY}.requirements {error}") from None
    if not found.is_hashed or found.constraints:
        rule = "must be locked with hashes, without constraints; write it with uv pip compile"
        raise _bad("requirements", name, f"{rule} --generate-hashes")
    return found.data


def image_name(family: str, hash: str) -> str:
    """The name of the image of a recipe with this hash."""
    return f"{family}-{hash[:10]}"


def encoded(data: bytes) -> str:
    """A file, compressed for the builder's metadata."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def from_dict(given: Mapping[str, Any]) -> Recipe:
    """The recipe from a stack's state, whose numbers may have become floats."""
    return Recipe(
        **{
            **given,
            "packages": tuple(given["packages"]),
            "share_with": tuple(given["share_with"]),
            "data": tuple(Data(**one) for one in given["data"]),
            "limit_minutes": int(given["limit_minutes"]),
            "disk_gb": int(given["disk_gb"]),
        }
    )


def _file(root: Path, key: str, name: str) -> bytes:
    """Reads a file of the checkout that may leave this machine."""
    path = bundles.inside(root, name)
    if path is None or not path.is_file():
        raise _bad(key, name, "must be a file in the checkout")
    if not bundles.may_leave(path, root):
        raise _bad(
            key,
            name,
            "must not be a key, a hidden file or a file that git ignores: these never enter an"
            " image",
        )
    data = path.read_bytes()
    found = keys.find(data)
    if found is not None:
        raise _bad(
            key, name, f"line {found.line} holds {found.what}, and keys never enter an image"
        )
    return data


def _data(where: str, given: Any) -> Data:
    if not isinstance(given, Mapping) or not set(given) <= {"url", "sha256", "path"}:
        raise _bad(where, given, "must have url, sha256 and perhaps path")
    url = _part(
        f"{where}.url", given.get("url"), _URL, "must begin with https:// or gs://, without a user"
    )
    sha256 = _part(
        f"{where}.sha256",
        given.get("sha256"),
        _SHA256,
        "must be the file's 64 hexadecimal digits, in quotes",
    )
    path = given.get("path") or url.partition("?")[0].rpartition("/")[2]
    rule = "must be a relative path, without .., of at most 255 characters"
    return Data(url, sha256, _part(f"{where}.path", path, _PATH, rule))


def _text(
    given: Mapping[str, Any],
    key: str,
    default: str,
    pattern: re.Pattern[str] | None = None,
    rule: str = "",
) -> str:
    value = given.get(key)
    if value in (None, ""):
        return default
    text = str(value).strip()
    if isinstance(value, list | Mapping | bool) or (pattern and not pattern.fullmatch(text)):
        raise _bad(key, value, rule or "must be a file in the checkout")
    return text


def _part(key: str, value: Any, pattern: re.Pattern[str], rule: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _bad(key, value, rule)
    return value


def _list(given: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    """The items, each with its key in the recipe."""
    value = given.get(key)
    if value in (None, ""):
        return []
    if not isinstance(value, list):
        raise _bad(key, value, "must be a list")
    return [(f"{key}[{index}]", one) for index, one in enumerate(value)]


def _boolean(given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key)
    if value in (None, ""):
        return False
    if str(value).lower() not in ("true", "false"):
        raise _bad(key, value, "must be true or false")
    return str(value).lower() == "true"


def _integer(given: Mapping[str, Any], key: str, default: int, least: int, most: int) -> int:
    value = given.get(key)
    text = str(default if value in (None, "") else value)
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise _bad(key, text, f"must be a whole number from {least} to {most}")
    return int(text)


def _bad(key: str, value: Any, rule: str) -> RecipeError:
    shown = keys.without_person(repr(value))
    return RecipeError(f"{KEY}.{key} {shown}: {rule}; correct it in the recipe")


def _words(keys: frozenset[str]) -> str:
    return ", ".join(sorted(keys))
