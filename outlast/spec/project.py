"""Reads the packages of a trainer from a requirements file, or from a folder with one, with a
`pyproject.toml`, or with both; and says whether its project can be built.

The program calls it at preview and the supervisor on the VM, with the same answer.
"""

import configparser
import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging import utils

from outlast.spec import requirements
from outlast.spec.requirements import Requirements, RequirementsError, Tree

PROJECT = "pyproject.toml"
SETUP = "setup.py"

_SETUPTOOLS = ("setuptools.build_meta", "setuptools.build_meta:__legacy__")
_FOLDERS_LEFT_OUT = re.compile(
    r"[._].*|ci|bin|debian|docs?|documentation|manpages|news|newsfragments|changelog|tests?"
    r"|unit_tests?|examples?|scripts|tools|utils?|python|build|dist|v?env|requirements|tasks"
    r"|fabfile|site_scons|benchmarks?|exercises?|htmlcov|.*-stubs"
)
"""Folders that setuptools does not take for packages if there is no `src`."""
_MODULES_LEFT_OUT = re.compile(
    r"[._].*|setup|conftest|tests?|examples?|build|toxfile|noxfile|pavement|dodo|tasks|fabfile"
    r"|[Ss][Cc]onstruct|conanfile|manage|benchmarks?|exercises?"
)


@dataclass(frozen=True)
class Need:
    """The packages of a trainer."""

    requirements: Requirements | None = None
    """The requirements; None if only a build of the project shows them."""
    name: str = "requirements"
    """What they are called: `requirements`, or `dependencies` of a project."""
    is_project: bool = False
    """Whether the project itself is built."""
    with_dependencies: bool = False
    """Whether only the build shows its dependencies."""
    unbuilt: str = ""
    """Why the project is not built; empty if it is, or there is none."""


def read(name: str, tree: Tree, *, alone: bool = False) -> Need:
    """Reads what the file or folder `name` of `tree` asks for; `alone` as in `requirements.read`.
    Raises RequirementsError.
    """
    if not tree.is_folder(name):
        requirements.refuse_other_forms(name)
        return Need(_not_empty(requirements.read(name, tree, alone=alone)))
    file, project = _path(name, requirements.NAME), _path(name, PROJECT)
    asked = None if tree.read(file) is None else requirements.read(file, tree)
    if tree.read(project) is not None:
        return _project(name, project, tree, asked)
    if asked is not None:
        return Need(_not_empty(asked))
    if _has(tree, name, SETUP):
        return Need(None, "project", True, True)
    raise RequirementsError(_nothing(name, tree))


def _nothing(name: str, tree: Tree) -> str:
    said = f"{name}: holds neither {PROJECT} nor {requirements.NAME}"
    for other in ("environment.yml", "environment.yaml", "Pipfile", "poetry.lock", "uv.lock"):
        if _has(tree, name, other):
            try:
                requirements.refuse_other_forms(_path(name, other))
            except RequirementsError as error:
                return f"{said}; {error}"
    return f"{said}; set outlast:requirements to a folder that does, or to a file"


def _not_empty(found: Requirements) -> Requirements:
    if not found.wanted:
        raise RequirementsError(
            f"{found.files[0]}: asks for no package; name one, or leave out outlast:requirements"
        )
    return found


def _project(folder: str, file: str, tree: Tree, asked: Requirements | None) -> Need:
    """The project's own wheel, and its dependencies if they can be read without building it and
    no requirements file names them."""
    data = tree.read(file) or b""
    try:
        stated = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RequirementsError(f"{file}: is not valid TOML ({error}); correct it") from None
    table = stated.get("project")
    if not isinstance(table, dict) and "build-system" not in stated:
        if asked is not None:  # A file with tool settings only; the requirements count.
            return Need(_not_empty(asked))
        if _table(stated, "tool", "poetry"):
            raise RequirementsError(
                f"{file}: has [tool.poetry] and no [build-system], so pip cannot build it; add"
                " [build-system] with poetry-core, or a requirements.txt beside it (poetry export)"
            )
        raise RequirementsError(
            f"{file}: has no [project]; add it, or a {requirements.NAME} beside it"
        )
    table = table if isinstance(table, dict) else {}
    unbuilt = _why_not_built(folder, stated, table, tree)
    is_own = not unbuilt and not _names_itself(asked)
    if asked is not None:
        asked = asked if is_own else _not_empty(asked)
        return Need(asked, "requirements", is_own, False, unbuilt)
    needs = table.get("dependencies", [])
    if not isinstance(needs, list):
        raise RequirementsError(f"{file} project.dependencies: must be a list of texts; correct it")
    dynamic = table.get("dynamic", [])
    if not isinstance(dynamic, list):
        raise RequirementsError(f"{file} project.dynamic: must be a list of texts; correct it")
    if not table or "dependencies" in dynamic:
        if unbuilt:
            raise RequirementsError(
                f"{file}: {unbuilt}, and its dependencies are not in [project]; add a"
                f" {requirements.NAME} beside it"
            )
        return Need(None, "project", True, True)
    found = requirements.of_list(f"{file} project.dependencies", needs, tree=tree)
    _refuse_other_sources(file, stated, found)
    if unbuilt and not found.wanted:
        raise RequirementsError(
            f"{file}: {unbuilt}, and it has no dependencies; leave out outlast:requirements"
        )
    return Need(found, "dependencies", is_own, False, unbuilt)


def _names_itself(asked: Requirements | None) -> bool:
    """Whether the requirements have a line such as `-e .`, which builds the project already."""
    return asked is not None and any(one.source.local == "." for one in asked.wanted)


def _refuse_other_sources(file: str, stated: Mapping[str, Any], found: Requirements) -> None:
    """uv may take packages from sources that pip does not know, and pip would install others."""
    named = _table(stated, "tool", "uv", "sources")
    names = {one.name for one in found.wanted}
    for name in named:
        if utils.canonicalize_name(name) in names:
            raise RequirementsError(
                f"{file} tool.uv.sources.{name}: pip does not read it, and would install another"
                f" {name} from the index; add a {requirements.NAME} beside it (uv export"
                " --no-emit-project --output-file requirements.txt)"
            )


# ---------------------------------------------------------------------------------------------
# Whether a project can be built


def _why_not_built(
    folder: str, stated: Mapping[str, Any], table: Mapping[str, Any], tree: Tree
) -> str:
    """Why pip cannot, or need not, build a wheel of the project; empty if it can. For unknown build
    backends, only a build shows it.
    """
    if _table(stated, "tool", "uv").get("package") is False:
        return "[tool.uv] says package = false"
    if _table(stated, "tool", "poetry").get("package-mode") is False:
        return "[tool.poetry] says package-mode = false"
    builder = _table(stated, "build-system").get("build-backend", _SETUPTOOLS[1])
    if builder in _SETUPTOOLS:
        return _setuptools(folder, stated, tree)
    if builder == "hatchling.build":
        return _hatchling(folder, stated, str(table.get("name", "")), tree)
    return ""


def _setuptools(folder: str, stated: Mapping[str, Any], tree: Tree) -> str:
    said = _table(stated, "tool", "setuptools")
    names = tree.names(folder)
    if said.keys() & {"packages", "py-modules", "package-dir", "ext-modules"} or SETUP in names:
        return ""
    if "src/" in names or _says_packages(tree.read(_path(folder, "setup.cfg"))):
        return ""
    folders = (name[:-1] for name in names if name.endswith("/"))
    packages = [one for one in folders if one.isidentifier()]
    packages = [one for one in packages if not _FOLDERS_LEFT_OUT.fullmatch(one)]
    modules = [name[:-3] for name in names if name.endswith(".py")]
    modules = [one for one in modules if not _MODULES_LEFT_OUT.fullmatch(one)]
    kind, found = ("folders", packages) if packages else ("modules", modules)
    if len(found) < 2:
        return ""
    some = ", ".join(sorted(found)[:4])
    return f"it has several {kind} at its top ({some}), and does not say which are packaged"


def _says_packages(setup_cfg: bytes | None) -> bool:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string((setup_cfg or b"").decode())
    except (configparser.Error, ValueError):
        return True  # the build says what is wrong with it
    return any(
        parser.has_option("options", key) for key in ("packages", "py_modules", "package_dir")
    )


def _hatchling(folder: str, stated: Mapping[str, Any], name: str, tree: Tree) -> str:
    build = _table(stated, "tool", "hatch", "build")
    wheel = _table(build, "targets", "wheel")
    says = {"packages", "include", "only-include", "force-include"}
    if says & {*build, *wheel} or wheel.get("bypass-selection") is True:
        return ""
    module = re.sub(r"[-_.]+", "_", name)
    folders = [one for one in tree.names(folder) if one.endswith("/")]
    for one in dict.fromkeys((module, module.lower())):
        places = [f"{one}/__init__.py", f"src/{one}/__init__.py", f"{one}.py"]
        places += [f"{parent}{one}/__init__.py" for parent in folders]
        if any(_has(tree, folder, place) for place in places):
            return ""
    return f"it has no folder {module.lower()}, and does not say what is packaged"


def _table(of: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A table inside tables; empty if there is none."""
    for name in names:
        found = of.get(name)
        of = found if isinstance(found, dict) else {}
    return of


def _path(folder: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(folder, name))


def _has(tree: Tree, folder: str, name: str) -> bool:
    return tree.read(_path(folder, name)) is not None
