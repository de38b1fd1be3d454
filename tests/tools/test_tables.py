"""The generated pages are what the code declares now, and say what a reader looks for."""

import subprocess
import sys
from pathlib import Path

import yaml

from outlast.base.folders import PACKAGE

ROOT = PACKAGE.parent

TABLES = [sys.executable, str(ROOT / "tools" / "tables.py")]


def test_the_pages_are_up_to_date():
    done = subprocess.run([*TABLES, "--check"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_key_and_every_component_has_its_row():
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    text = (ROOT / "docs" / "configuration.md").read_text()
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    kinds |= {list: "array", dict: "object"}
    for key, entry in declared.items():
        assert f"| `{key}` | {kinds[type(entry['default'])]} |" in text, key
    page = (ROOT / "docs" / "components.md").read_text()
    for file in (ROOT / "components").glob("*.py"):
        if 'super().__init__("outlast:index:' in file.read_text():
            assert f"`components/{file.name}`." in page, file.name


def test_a_stale_page_is_named_with_the_remedy(tmp_path: Path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "components").mkdir()
    (tmp_path / "docs").mkdir()
    script = tmp_path / "tools" / "tables.py"
    script.write_text((ROOT / "tools" / "tables.py").read_text())
    (tmp_path / "Pulumi.yaml").write_text("name: a\nconfig:\n  b: c\n")
    (tmp_path / "outlast").symlink_to(ROOT / "outlast")
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "docs/configuration.md: is out of date; run make tables" in done.stderr
    subprocess.run(command[:-1], check=True, capture_output=True, timeout=60)
    made = (tmp_path / "docs" / "configuration.md").read_text()
    assert "## What is trained" in made and '| `trainer` | string | `"digits"` |' in made
    project = yaml.safe_load((tmp_path / "Pulumi.yaml").read_text())
    assert project["name"] == "a" and project["config"]["trainer"]["default"] == "digits"
