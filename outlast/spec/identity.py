"""The name of a run: a digest of what is trained, independent of where and on what.

`run_id` hashes the canonical JSON of a `Spec`: the trainer, its arguments as its own parser reads
them, the data paths, the seed, the digest of the trainer's source, the checkpoint it starts from
and a rerun counter. Machine, zone, image, limits and the `outlast` library are not part of it, so
changing them resumes the same run; a changed hyperparameter is a new run.

Standard library only, and the same digits on every supported Python: the source digest is our own
serialisation of the syntax tree, because `ast.dump` differs between releases.
"""

import argparse
import ast
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from outlast.base import codec

RUN_PATTERN = re.compile(r"[0-9a-f]{10}")
"""A run's name: ten hexadecimal digits."""

COMMAND = "command"
"""Replaces the trainer's name for a command."""

OPERATIONAL = frozenset({"mode", "run_dir", "checkpoint_every", "model_output_path"})
"""Arguments that say where and how often, not what is trained; they are not part of the
identity.
"""


class IdentityError(ValueError):
    """No run can be named from the spec or the trainer's source; the message is a sentence."""


@dataclass(frozen=True)
class Spec:
    """Everything that identifies a run."""

    trainer: str
    arguments: Mapping[str, Any]
    """The arguments after the trainer's parser, so that an explicit default is the same run."""
    source: str
    """`source_digest` of the trainer."""
    data: Sequence[str] = ()
    seed: int | None = None
    init: Mapping[str, Any] | None = field(default=None)
    """Path and digest of another run's checkpoint to start from."""
    rerun: int = 0
    requirements: str = ""
    """Digest of the user's own requirements file; empty for none."""


def run_id(spec: Spec) -> str:
    """The run's name: the first 10 hex digits of the sha256 of the spec's canonical JSON."""
    return name_of(content(spec))


def content(spec: Spec) -> dict[str, Any]:
    """The content of the spec, in JSON's types."""
    document = {
        "arguments": dict(spec.arguments),
        "data": list(spec.data),
        "init": None if spec.init is None else dict(spec.init),
        "rerun": spec.rerun,
        "seed": spec.seed,
        "source": spec.source,
        "trainer": spec.trainer,
    }
    if spec.requirements:
        document["requirements"] = spec.requirements
    return json.loads(canonical_json(document))


def name_of(content: Mapping[str, Any]) -> str:
    """The name of a run with this content."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:10]


def canonical_json(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII only, so that equal values have equal texts.

    Paths and tuples are written as text and lists. NaN and infinities are refused.
    """
    return codec.canonical_json(_plain(value)).decode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise IdentityError(f"{value}: is not a finite number; give an argument that has one")
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise IdentityError(
        f"{value!r}: is not a number, text, list or mapping; make the trainer's parser give one"
    )


def arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """The arguments that `parser` reads from `argv`, without the operational ones.

    Raises IdentityError with the parser's message if it refuses; never prints or exits.
    """

    def refuse(message: str) -> None:
        raise IdentityError(message)

    parser.error = refuse  # type: ignore[method-assign]  # argparse's own hook prints and exits
    parsed = vars(parser.parse_args(list(argv)))
    return {key: value for key, value in parsed.items() if key not in OPERATIONAL}


def files_digest(files: Mapping[str, bytes]) -> str:
    """The sha256 of files by name, byte for byte; empty for no file."""
    if not files:
        return ""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(canonical_json(listed).encode()).hexdigest()


def source_digest(entry: Path) -> str:
    """The sha256 of the trainer `entry` and everything that it imports from its own folder.

    Comments, docstrings, bare strings and layout do not count; names, values and order do. It
    follows import statements anywhere in the file.
    """
    folder = entry.resolve().parent
    trees = {
        path.relative_to(folder).as_posix(): serialise(tree)
        for path, tree in _reachable(entry.resolve(), folder).items()
    }
    return hashlib.sha256(canonical_json(trees).encode()).hexdigest()


def _reachable(entry: Path, folder: Path) -> dict[Path, ast.Module]:
    trees: dict[Path, ast.Module] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in trees:
            continue
        trees[path] = _parse(path)
        waiting.extend(_imported(trees[path], path, folder))
    return trees


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=path.name)
    except OSError as error:
        raise IdentityError(
            f"{path.name}: cannot be read ({error.strerror}); restore the trainer's source"
        ) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path.name} line {line}" if line else path.name
        raise IdentityError(f"{where}: is not valid Python ({error}); correct the source") from None


def _imported(tree: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """The files of `folder` that `tree` imports.

    The folder's own `__init__` counts only if a name is imported from it: it runs for every
    trainer, and adding a trainer beside this one must not rename this one's runs.
    """
    is_package = (folder / "__init__.py").is_file()
    here = path.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = _inside(alias.name, folder, is_package)
                if parts is not None:
                    yield from _module_files(folder, parts)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[: len(here) - (node.level - 1)]
                if node.level - 1 > len(here):
                    continue
                parts = base + tuple(node.module.split(".") if node.module else ())
            else:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                if any(_inside(name, folder, is_package) == () for name in names):
                    yield from _module_files(folder, ())
                parts = _inside(node.module or "", folder, is_package)
                if parts is None:
                    continue
            for alias in node.names:
                yield from _name_files(folder, parts, alias.name)


def _inside(module: str, folder: Path, is_package: bool) -> tuple[str, ...] | None:
    """The absolute module's parts below `folder`; None if it is elsewhere."""
    parts = tuple(module.split("."))
    if is_package:
        if parts[:2] == ("outlast", folder.name):  # outlast.trainers, from a file in it
            return parts[2:]
        return parts[1:] if parts[0] == folder.name else None
    beside = (folder / f"{parts[0]}.py").is_file() or (folder / parts[0]).is_dir()
    return parts if beside else None


def _module_files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The files that run when the module is imported: the module, and the packages above it."""
    if not parts:
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        return
    for length in range(1, len(parts) + 1):
        target = folder.joinpath(*parts[:length])
        if (target / "__init__.py").is_file():
            yield target / "__init__.py"
        elif target.with_name(f"{target.name}.py").is_file():
            yield target.with_name(f"{target.name}.py")


def _name_files(folder: Path, parts: Sequence[str], name: str) -> Iterator[Path]:
    """The files that run for `from parts import name`, `name` being a module or a value."""
    target = folder.joinpath(*parts)
    is_module = (target / f"{name}.py").is_file() or (target / name / "__init__.py").is_file()
    if target.is_dir() and is_module:
        yield from _module_files(folder, (*parts, name))
    else:
        yield from _module_files(folder, parts)


def serialise(tree: ast.AST) -> str:
    """The text of a syntax tree, equal on Python 3.11 to 3.13.

    Left out: positions, contexts, type comments, docstrings and bare strings, `u` prefixes, what a
    call of `train` declares constant, and absent or empty fields (so that a field that a later
    release adds changes nothing).
    """
    pieces: list[str] = []
    _write(tree, pieces)
    return "".join(pieces)


_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def _write(value: Any, pieces: list[str]) -> None:
    if isinstance(value, ast.JoinedStr):
        _write_joined(value, pieces)
    elif isinstance(value, ast.Constant):
        _write_constant(value.value, pieces)
    elif isinstance(value, ast.AST):
        pieces.append(f"{type(value).__name__}(")
        for name in value._fields:
            item = _what_counts(value, name)
            if name in _SKIPPED or item is None or item == [] or _is_empty_format(name, item):
                continue
            pieces.append(f"{name}=")
            _write(item, pieces)
            pieces.append(",")
        pieces.append(")")
    elif isinstance(value, list):
        pieces.append("[")
        for item in value:
            if not _is_bare_string(item):
                _write(item, pieces)
                pieces.append(",")
        pieces.append("]")
    else:  # an identifier, a conversion, a level, or the None of `**mapping`
        pieces.append(repr(value))


def _what_counts(node: ast.AST, name: str) -> Any:
    """A field of a node. What a call of ``train`` declares constant does not count: it changes
    nothing that is computed, and a run that is refused without it must find itself again."""
    item = getattr(node, name, None)
    if isinstance(node, ast.Call) and name == "keywords" and item:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return [word for word in node.keywords if called != "train" or word.arg != "constant"]
    return item


def _write_joined(value: ast.JoinedStr, pieces: list[str]) -> None:
    """An f-string, its literal parts merged: releases split them differently."""
    pieces.append("JoinedStr[")
    literal = ""
    for part in value.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            literal += part.value
            continue
        if literal:
            _write_constant(literal, pieces)
            literal = ""
        _write(part, pieces)
        pieces.append(",")
    if literal:
        _write_constant(literal, pieces)
    pieces.append("]")


def _write_constant(value: Any, pieces: list[str]) -> None:
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=True)  # repr depends on the Unicode tables
    elif isinstance(value, int) and not isinstance(value, bool):
        text = hex(value)  # decimal text of a huge integer is refused by the interpreter
    else:
        text = repr(value)
    pieces.append(f"Constant({type(value).__name__} {text})")


def _is_bare_string(item: Any) -> bool:
    return (
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def _is_empty_format(name: str, item: Any) -> bool:
    return name == "format_spec" and isinstance(item, ast.JoinedStr) and not item.values
