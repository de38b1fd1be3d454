"""The walls of docs/design.md: which part may know of which.

Each rule is a function from files to the sentences about what breaks it, and each has a test with
planted files that it must find.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import outlast

ROOT = Path(__file__).parent.parent

_LIBRARY = ("base", "protocol", "spec", "cloud", "bucket")
"""Each knows those before it."""
WALLS: dict[str, set[str]] = {
    **{part: set(_LIBRARY[:place]) for place, part in enumerate(_LIBRARY)},
    # The VM.
    "supervisor": set(_LIBRARY),
    # The trainer's process.
    "loop": {"base", "protocol", "spec"},
    "trainers": {"base", "protocol", "spec", "loop"},
    # The program. Settings ask a trainer for its flags.
    "machines": {"base"},
    "costs": {"base", "machines"},
    "settings": {*_LIBRARY, "machines", "costs", "trainers"},
    "dynamic": set(_LIBRARY),
    "components": {"base", "spec", "settings", "dynamic"},
    "__main__": {"settings", "components"},
    "policy": {"spec", "machines", "costs"},
    # The operator's machine.
    "cli": {*_LIBRARY, "machines", "costs", "settings"},
    "localcloud": set(),
    # What a user's program imports: `outlast.train`, `outlast.open` and so on.
    "outlast": {"loop", "notebook"},
    "notebook": {"base", "spec", "loop", "bucket", "cli"},
    "examples": {"outlast"},
    # The project's own tools.
    "tools": {"base", "cloud", "machines", "settings", "cli"},
    "bench": {
        *("outlast", *_LIBRARY, "loop", "trainers", "supervisor"),
        *("settings", "costs", "cli", "localcloud"),
    },
}
"""What each part may import, in functions and for types as well. A part is a folder or a module of
the package, or a folder of the checkout; `outlast` is the package's own `__init__`."""
SHARED_FOLDERS = ("components", "policy", "trainers")
"""Folders of the checkout that are parts of the package. A user may have such folders, so that
nothing imports them by their short names."""
NOT_IMPORTED = frozenset({*SHARED_FOLDERS, "startup", "tests", "bench", "tools", "examples"})
STANDARD_LIBRARY_ONLY = ("base", "protocol", "bucket.layout")
FREE_OF_SURROUNDINGS = "components"


def files_of(root: Path) -> dict[Path, str]:
    """The part of each Python file of the project, its tests aside."""
    found = {}
    for file in sorted(root.rglob("*.py")):
        where = file.relative_to(root).parts
        if where[0].startswith(".") or "__pycache__" in where or where[0] in ("tests", "build"):
            continue
        if where[:3] == ("outlast", "cli", "template"):  # a new project's own
            found[file] = "examples"
            continue
        part = where[1] if where[0] == "outlast" else where[0]
        found[file] = "outlast" if part == "__init__.py" else part.removesuffix(".py")
    return found


def part_of(name: str, parts: Iterable[str]) -> str | None:
    """The part that an imported name belongs to; None if it is not the project's."""
    first, _, rest = name.partition(".")
    if first != "outlast":
        return first if first in NOT_IMPORTED else None
    second = rest.partition(".")[0]
    return second if second in parts else "outlast"


def imported(tree: ast.AST) -> Iterator[str]:
    """The names that a file imports, wherever it does; relative ones begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))


def crossings(files: Mapping[Path, str]) -> list[str]:
    """The imports that no row of WALLS allows, and the parts without a row."""
    found = [f"part {part}: has no row in WALLS" for part in sorted({*files.values()} - {*WALLS})]
    for file, part in files.items():
        for name in imported(ast.parse(file.read_text())):
            if name.startswith("."):
                found.append(f"{file.name} of {part}: relative import {name}")
                continue
            needed = part_of(name, WALLS)
            by_short_name = name.partition(".")[0] in SHARED_FOLDERS
            allowed = {None, part, *WALLS.get(part, ())}
            if by_short_name or needed not in allowed:
                found.append(f"{file.name} of {part}: imports {name}")
    return found


def plant(root: Path, part: str, text: str) -> None:
    """Write a file of a part into the checkout at `root`."""
    places = {"outlast": "outlast/__init__.py", "__main__": "__main__.py"}
    alone = ("bench", "tools", "examples", *SHARED_FOLDERS)
    folder = part if part in alone else f"outlast/{part}"
    file = root / places.get(part, f"{folder}/planted.py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_each_part_imports_only_what_its_row_allows():
    files = files_of(ROOT)
    assert {*files.values()} == {*WALLS}, "a row of WALLS without files"
    assert not (found := crossings(files)), "\n".join(found)


@pytest.mark.parametrize("part", WALLS)
@pytest.mark.parametrize(
    "form",
    [
        "import outlast.{other}.thing as x",
        "from outlast.{other}.thing import x",
        "from outlast import {other}",
        "def late():\n    from outlast.{other} import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from outlast.{other} import x",
        "import importlib\nimportlib.import_module('outlast.{other}.thing')",
    ],
)
def test_planted_imports_are_found(tmp_path: Path, part: str, form: str):
    inside = {*WALLS} - {"outlast", "__main__", "bench", "tools", "examples", part}
    plant(tmp_path, part, "\n".join(form.format(other=other) for other in sorted(inside)))
    found = crossings(files_of(tmp_path))
    named = {part_of(sentence.rpartition(" ")[2], WALLS) for sentence in found}
    assert named == inside - WALLS[part] and len(found) == len(named)


def test_a_part_without_a_row_and_odd_forms_of_imports_are_found(tmp_path: Path):
    for part, text in {
        "weather": "",
        "cli": "from . import runs",
        "supervisor": "import trainers.dummy",
        "trainers": "from trainers import flags",
        "bucket": "import outlast",
        "spec": "from tests.stores import BUCKET",
        "loop": "from tools import setup",
    }.items():
        plant(tmp_path, part, text)
    assert sorted(crossings(files_of(tmp_path))) == [
        "part weather: has no row in WALLS",
        "planted.py of bucket: imports outlast",
        "planted.py of cli: relative import ..runs",
        "planted.py of loop: imports tools.setup",
        "planted.py of spec: imports tests.stores.BUCKET",
        "planted.py of supervisor: imports trainers.dummy",
        "planted.py of trainers: imports trainers.flags",
    ]


def test_the_arrows_between_parts_make_no_circle():
    assert not cycle(WALLS), " -> ".join(cycle(WALLS))


def test_the_packages_own_names_come_from_the_parts_of_its_row():
    homes = {part_of(home, WALLS) for home in outlast._HOMES.values()}
    assert homes == WALLS["outlast"]


def modules(files: Mapping[Path, str], root: Path) -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for file in files:
        where = file.relative_to(root)
        if where.parts[0] not in ("outlast", *SHARED_FOLDERS) or "hosts" in where.parts:
            continue
        name = ".".join(where.with_suffix("").parts)
        name = name if name.startswith("outlast") else f"outlast.{name}"
        found[name.removesuffix(".__init__")] = file
    return found


def needs(name: str, text: str, known: Iterable[str]) -> set[str]:
    """The modules that one imports, in functions too; not what only types need."""
    found = set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for one in imported(tree):
        found.add(one if one in known else one.rpartition(".")[0])
    return {one for one in found if one in known and one != name}


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Some modules that import each other in a circle; empty if there are none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(graph[name]):
                if found := walk(other, [*path, name]):
                    return found
            done.add(name)
        return []

    for name in sorted(graph):
        if found := walk(name, []):
            return found
    return []


def circle(root: Path) -> tuple[int, list[str]]:
    """How many modules there are, and some that import each other in a circle."""
    known = modules(files_of(root), root)
    graph = {name: needs(name, file.read_text(), known) for name, file in known.items()}
    return len(known), cycle(graph)


def test_no_modules_import_each_other_in_a_circle():
    count, found = circle(ROOT)
    assert count > 300 and not found, " -> ".join(found)


def test_a_planted_circle_is_found(tmp_path: Path):
    plant(tmp_path, "base", "from outlast.spec import planted")
    plant(tmp_path, "spec", "def late():\n    import outlast.cli.planted")
    plant(tmp_path, "cli", "from outlast.base.planted import thing")
    there = ["outlast.base.planted", "outlast.spec.planted", "outlast.cli.planted"]
    assert circle(tmp_path) == (3, [*there, there[0]]) or circle(tmp_path)[1][0] in there
    plant(tmp_path, "cli", "import json")
    assert circle(tmp_path) == (3, [])


def from_packages(text: str) -> list[str]:
    """The modules that a file needs beside the standard library and Outlast."""
    tops = {name.partition(".")[0] for name in imported(ast.parse(text))}
    return sorted(tops - sys.stdlib_module_names - {"outlast"})


@pytest.mark.parametrize("part", STANDARD_LIBRARY_ONLY)
def test_what_all_sides_share_needs_the_standard_library_only(part: str):
    found = {
        name: file
        for name, file in modules(files_of(ROOT), ROOT).items()
        if f"{name}.".startswith(f"outlast.{part}.")
    }
    assert found
    for name, file in found.items():
        assert not from_packages(file.read_text()), name


def test_a_planted_package_is_found():
    text = "import os\ndef late():\n    import numpy.random\n    from google.cloud import storage"
    assert from_packages(text) == ["google", "numpy"]


def asks_surroundings(text: str) -> str | None:
    """Where a component's text reads the environment, the clock or the configuration itself."""
    found = re.search(r"os\.environ|getenv|datetime\.now|time\.time|pulumi\.Config", text)
    return found and found[0]


def test_components_read_no_environment_clock_or_configuration():
    files = [file for file, part in files_of(ROOT).items() if part == FREE_OF_SURROUNDINGS]
    assert len(files) > 10
    for file in files:
        assert not asks_surroundings(file.read_text()), file.name
    for planted in ("os.environ['A']", "os.getenv('A')", "datetime.now()", "pulumi.Config()"):
        assert asks_surroundings(f"x = {planted}\n")


def knows_the_local_cloud(text: str) -> str | None:
    """Where a text says where the local cloud is; only the environment may."""
    found = re.search(r"127\.0\.0\.1|localhost|_local/|\brehearsal\b/", text)
    return found and found[0]


def test_no_production_file_knows_where_the_local_cloud_is():
    """`outlast.cli`, which starts it, knows loopback."""
    parts = ("base", "bucket", "loop", "supervisor", "trainers", "components", "__main__")
    production = [file for file, part in files_of(ROOT).items() if part in parts]
    production += sorted((ROOT / "startup").glob("*.sh"))
    assert {file.suffix for file in production} == {".py", ".sh"}
    for file in production:
        assert not knows_the_local_cloud(file.read_text()), file.relative_to(ROOT)
    for planted in ("http://127.0.0.1:80", "localhost:80", "_local/state", "rehearsal/cloud"):
        assert knows_the_local_cloud(planted)


def loaded(statement: str, *names: str) -> str:
    """Which of these modules are loaded after a statement in a new process."""
    code = f"import sys; {statement}; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engines_plugin_loads_the_run_pin_without_the_gcp_package():
    names = ("pulumi_gcp", "outlast.dynamic.run_pin")
    assert loaded("import outlast.dynamic.run_pin", *names) == "['outlast.dynamic.run_pin']\n"


def test_importing_outlast_costs_nothing():
    names = ("google", "numpy", "click", "outlast.cli", "outlast.supervisor", "outlast.loop")
    assert loaded("import outlast", *names) == "[]\n"
    assert loaded("import outlast; outlast.train", *names) == "['outlast.loop']\n"
