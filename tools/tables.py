"""Writes what follows from the code: two pages of tables, and the config part of Pulumi.yaml.

    python tools/tables.py           writes docs/configuration.md, docs/components.md, Pulumi.yaml
    python tools/tables.py --check   says which of them is out of date; exit 1

Settings are declared in `outlast/settings/keys.py`. The components' inputs and outputs are their
TypedDicts and annotated attributes with the docstrings below them.
"""

import ast
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic.alias_generators import to_snake

ROOT = Path(__file__).resolve().parent.parent
RESOURCES = {"pulumi.ComponentResource", "ComponentResource", "Resource", "StackComponent"}
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

ARGUMENTS = '''"""The arguments of Experiment and Foundation. Made by `make tables` from `keys`."""

from typing import Any, TypedDict


class ExperimentArgs(TypedDict, total=False):
    """Settings by their names in Python; each that is left out has its default."""
'''
TYPES = {str: "str", int: "int", bool: "bool", list: "list[Any]", dict: "dict[str, Any]"}

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
        ROOT / "docs" / "configuration.md": configuration(),
        ROOT / "outlast" / "settings" / "experiment_args.py": arguments(),
        ROOT / "Pulumi.yaml": project((ROOT / "Pulumi.yaml").read_text()),
        ROOT / "docs" / "components.md": components(
            sorted((ROOT / "components").glob("*.py"))
            + sorted((ROOT / "outlast" / "dynamic").glob("*.py"))
        ),
    }


def configuration() -> str:
    """The page of every key."""
    lines = [CONFIGURATION.format(made=MADE)]
    for heading, settings in _sections():
        lines += [f"## {heading}", "", "| key | type | default | |", "|---|---|---|---|"]
        for key, entry in settings.items():
            default = json.dumps(entry["default"])
            kind = KINDS[type(entry["default"])]
            row = (f"`{key}`", kind, f"`{default}`", entry["description"])
            lines.append(f"| {' | '.join(map(_cell, row))} |")
        lines.append("")
    return "\n".join(lines)


def project(text: str) -> str:
    """Pulumi.yaml with every key below its `config:`, which is its last part."""
    above, _, _ = text.partition("\nconfig:\n")
    lines = [above, "config:"]
    for heading, settings in _sections():
        lines.append(f"  # {heading}")
        for key, entry in settings.items():
            lines.append(f"  {key}:")
            lines.append(f"    description: {_scalar(entry['description'])}")
            lines.append(f"    default: {json.dumps(entry['default'])}")
    return "\n".join(lines) + "\n"


def arguments() -> str:
    """The module with ExperimentArgs."""
    lines = [ARGUMENTS]
    for heading, settings in _sections():
        lines += [f"\n    # {heading}"] if len(lines) > 1 else [f"    # {heading}"]
        for key, entry in settings.items():
            kind = TYPES[type(entry["default"])]
            default = json.dumps(entry["default"])
            about = textwrap.wrap(f"{entry['description']}. Default: `{default}`", 90)
            lines.append(f"    {to_snake(key)}: {kind}")
            if len(about) == 1 and len(about[0]) < 85:
                lines.append(f'    """{about[0]}"""')
            else:
                about[0] = f'"""{about[0]}'
                lines += [f"    {line}" for line in (*about, '"""')]
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    """A text as YAML; in quotes only if it needs them."""
    try:
        plain = yaml.safe_load(f"x: {text}") == {"x": text}
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)


def _sections() -> Iterator[tuple[str, dict[str, Mapping[str, Any]]]]:
    """Headings and their settings."""
    sys.path.insert(0, str(ROOT))
    from outlast.settings import keys

    first = {keys.to_camel(name): heading for heading, name in keys.SECTIONS.items()}
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    heading = ""
    for key, entry in keys.declared().items():
        heading = first.get(key, heading)
        found.setdefault(heading, {})[key] = entry
    yield from found.items()


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
