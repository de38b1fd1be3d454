"""Writes the pages that are tables of what the code declares.

    python tools/tables.py           writes docs/configuration.md and docs/components.md
    python tools/tables.py --check   says which of them is out of date; exit 1

The config table is Pulumi.yaml's, the components' inputs and outputs are their TypedDicts and
annotated attributes with the docstrings below them, read without importing anything.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESOURCES = {"pulumi.ComponentResource", "ComponentResource", "Resource"}
MADE = "<!-- Made by `make tables`; edit what it is made from. -->"

CONFIGURATION = """# Every setting

{made}

For people who write the settings of a stack. These are in `Pulumi.<stack>.yaml`, below `config:`,
each as `outlast:KEY`;
`pulumi config set outlast:KEY VALUE` writes one, with `--path outlast:args.epochs` a part of one.
`outlast/settings` checks them all before it asks the cloud for anything.
The provider has its own: `gcp:project` (required), `gcp:zone` and `gcp:region`.
"""
KINDS = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}
"""A key's type is its default's."""

COMPONENTS = """# Every component

{made}

For people who use the components in a program of their own. Each component is one file in
`components/`; the dynamic resources are in `outlast/dynamic/`; `__main__.py` wires them. Inputs are
a dictionary; those in *italics* are optional.
"""


@dataclass(frozen=True)
class Field:
    """One input or output."""

    name: str
    type: str
    about: str
    optional: bool = False


@dataclass(frozen=True)
class Component:
    """What one class declares."""

    name: str
    file: str
    about: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


def pages() -> dict[Path, str]:
    """The pages by their paths."""
    return {
        ROOT / "docs" / "configuration.md": configuration((ROOT / "Pulumi.yaml").read_text()),
        ROOT / "docs" / "components.md": components(
            sorted((ROOT / "components").glob("*.py"))
            + sorted((ROOT / "outlast" / "dynamic").glob("*.py"))
        ),
    }


def configuration(text: str) -> str:
    """The page of every key; the comments in `config:` are its headings."""
    declared = yaml.safe_load(text)["config"]
    lines = [CONFIGURATION.format(made=MADE)]
    for heading, keys in _sections(text):
        lines += [f"## {heading}", "", "| key | type | default | |", "|---|---|---|---|"]
        for key in keys:
            entry = declared[key]
            default = json.dumps(entry["default"])
            kind = KINDS[type(entry["default"])]
            row = (f"`{key}`", kind, f"`{default}`", entry["description"])
            lines.append(f"| {' | '.join(map(_cell, row))} |")
        lines.append("")
    return "\n".join(lines)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    heading, keys = "Settings", list[str]()
    for line in text.partition("\nconfig:\n")[2].splitlines():
        if line.startswith("  # "):
            if keys:
                yield heading, keys
            heading, keys = line.removeprefix("  # "), []
        elif match := re.match(r"  ([A-Za-z]\w*):", line):
            keys.append(match[1])
        elif line and not line.startswith(" "):
            break
    if keys:
        yield heading, keys


def components(files: list[Path]) -> str:
    """The page of every component's inputs and outputs."""
    lines = [COMPONENTS.format(made=MADE)]
    for component in (one for file in files for one in _components(file)):
        lines += [f"## {component.name}", "", f"`{component.file}`. {component.about}"]
        for title, fields in (("input", component.inputs), ("output", component.outputs)):
            if not fields:
                continue
            lines += ["", f"| {title} | type | |", "|---|---|---|"]
            for one in fields:
                name = f"*{one.name}*" if one.optional else one.name
                row = (name, f"`{one.type}`", one.about)
                lines.append(f"| {' | '.join(map(_cell, row))} |")
        lines.append("")
    return "\n".join(lines)


def _components(file: Path) -> Iterator[Component]:
    tree = ast.parse(file.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, node in classes.items():
        if not any(ast.unparse(base) in RESOURCES for base in node.bases):
            continue
        args = classes.get(f"{name}Args")
        yield Component(
            name,
            file.relative_to(ROOT).as_posix(),
            _joined(ast.get_docstring(node)),
            tuple(_fields(args)) if args else (),
            tuple(_fields(node)),
        )


def _fields(node: ast.ClassDef) -> Iterator[Field]:
    """Annotated attributes, each with the docstring below it."""
    for index, item in enumerate(node.body):
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        after = node.body[index + 1] if index + 1 < len(node.body) else None
        about = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            about = str(after.value.value)
        kind = ast.unparse(item.annotation).replace("pulumi.", "")
        optional = kind.startswith("NotRequired[")
        if optional:
            kind = kind.removeprefix("NotRequired[").removesuffix("]")
        yield Field(item.target.id, kind, _joined(about), optional)


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> int:
    stale = [path for path, text in pages().items() if not _is(path, text)]
    if "--check" in argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: is out of date; run make tables", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        print(path.relative_to(ROOT))
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
