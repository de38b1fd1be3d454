"""The walls of docs/design.md: which part may know of which."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_OPERATOR = {"cli", "cloud", "costs", "dynamic", "localcloud", "machines", "settings"}
_FORBIDDEN = {
    "trainers": {"supervisor", "components", *_OPERATOR},
    "outlast/base": {
        *("bucket", "components", "loop", "protocol", "spec", "supervisor", "trainers"),
        *_OPERATOR,
    },
    "outlast/spec": {"loop", "supervisor", "components", "trainers", *_OPERATOR},
    "outlast/loop": {"supervisor", "components", "trainers", *_OPERATOR},
    "outlast/bucket": {"loop", "supervisor", "components", "trainers", *_OPERATOR},
    "outlast/supervisor": {"loop", "components", *_OPERATOR},
    "outlast/cloud": {"cli", "settings", "supervisor", "components"},
    "outlast/cli": {"components", "dynamic", "localcloud"},
    "outlast/dynamic": {"cli", "settings", "supervisor"},
    "outlast/settings": {"cli", "dynamic", "localcloud", "loop", "supervisor"},
    "outlast/machines": {"cli", "settings", "components"},
    "components": {"cli", "loop", "localcloud", "supervisor"},
}
FORBIDDEN = {
    folder: {f"outlast.{part}" for part in parts} | {"components", "trainers", "startup", "policy"}
    for folder, parts in _FORBIDDEN.items()
}
"""Their top-level names, too: they would be imported twice, and a user may have such folders."""
ENVIRONMENT_FREE = "components"
STANDARD_LIBRARY_ONLY = (
    "outlast/base/codec.py",
    "outlast/bucket/layout.py",
    "outlast/base/exits.py",
    "outlast/base/names.py",
    "outlast/base/numbers.py",
    "outlast/protocol.py",
    "outlast/base/scratch_space.py",
)


def files_of(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"{folder} holds no Python file"
    return found


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_local_cloud_imports_no_production_code():
    for file in files_of("outlast/localcloud"):
        for name in imported(file):
            top = name.split(".")[0]
            assert top != "policy", f"{file} imports {name}"
            assert top != "outlast" or name.startswith("outlast.localcloud"), f"{file}: {name}"


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_arrows_point_one_way(folder):
    for file in files_of(folder):
        for name in imported(file):
            bad = [
                wall for wall in FORBIDDEN[folder] if name == wall or name.startswith(wall + ".")
            ]
            assert not bad, f"{file.relative_to(ROOT)} imports {name}"


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    files = [file for file in files_of("outlast") if "hosts" not in file.parts]
    files += [*files_of("components"), *files_of("trainers")]
    found = {}
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "outlast" else ("outlast", *parts))
        found[name.removesuffix(".__init__")] = file
    return found


def needs(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The modules that one imports, in functions too; not what only types need."""
    found = set()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one in known else str(node.module) for one in whole]
        found |= {one for one in names if one in known and one != name}
    return found


def cycle(graph: dict[str, set[str]]) -> list[str]:
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


def test_no_modules_import_each_other_in_a_circle():
    known = modules()
    assert len(known) > 300
    graph = {name: needs(name, file, known) for name, file in known.items()}
    assert graph["outlast.cli.stack"] and not cycle(graph), " -> ".join(cycle(graph))


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}
    assert cycle(graph) == ["b", "c", "d", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_components_read_no_environment_clock_or_configuration():
    for file in files_of(ENVIRONMENT_FREE):
        text = file.read_text()
        assert not re.search(r"os\.environ|getenv|datetime\.now|time\.time|pulumi\.Config", text), (
            file.name
        )


@pytest.mark.parametrize("file", STANDARD_LIBRARY_ONLY)
def test_what_both_sides_share_needs_the_standard_library_only(file):
    for name in imported(ROOT / file):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top == "outlast", f"{file} imports {name}"


def test_no_production_file_knows_where_the_local_cloud_is():
    """The environment alone says it; `outlast.cli`, which starts it, knows loopback."""
    parts = ("base", "bucket", "loop", "supervisor")
    production = [file for part in parts for file in files_of(f"outlast/{part}")]
    production += [*files_of("trainers"), *files_of("components"), ROOT / "__main__.py"]
    production += sorted((ROOT / "startup").glob("*.sh"))
    for file in production:
        assert not re.search(r"127\.0\.0\.1|localhost|_local/|\brehearsal\b/", file.read_text()), (
            file.relative_to(ROOT)
        )


def test_the_engines_plugin_loads_the_run_pin_without_the_gcp_package():
    code = "import sys, outlast.dynamic.run_pin; print('pulumi_gcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_importing_outlast_costs_nothing():
    code = (
        "import sys, outlast; outlast.train; "
        "print([name for name in ('google', 'numpy', 'click', 'outlast.cli', 'outlast.supervisor') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
