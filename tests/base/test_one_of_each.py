"""One of each: a second way to suggest a word, to ask over HTTP, to try again, to log and to write
canonical JSON is found, and each rule finds the one that is planted here."""

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDALONE = {"tools/setup.py", "outlast/cli/dev/agent.py"}
"""Programs that run where the package is not installed."""

Found = Iterator[ast.AST]


def second_suggestion(tree: ast.AST) -> Found:
    """`did_you_mean` is the one that knows what looks alike."""
    return (one for one in ast.walk(tree) if named(one) == "get_close_matches")


def second_http_client(tree: ast.AST) -> Found:
    """`http_client.ask` is the one that sends a request with the standard library."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        if any(name.startswith(("urllib.request", "http.client")) for name in names):
            yield node


def second_retry(tree: ast.AST) -> Found:
    """`retry` is the one that sleeps because something failed: in an `except` of a loop."""
    loops = [one for one in ast.walk(tree) if isinstance(one, ast.While | ast.For)]
    handlers = [one for loop in loops for one in ast.walk(loop)]
    for handler in handlers:
        if isinstance(handler, ast.ExceptHandler):
            calls = [one for one in ast.walk(handler) if isinstance(one, ast.Call)]
            yield from (one for one in calls if named(one.func) == "sleep")


def second_log(tree: ast.AST) -> Found:
    """`logging` is the one that takes the sentences; no function is handed through for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            yield from (one for one in every if one.arg == "say")
            yield from (one for one in every if one.arg == "log" and takes_text(one.annotation))
        elif isinstance(node, ast.AnnAssign) and named(node.target) in ("say", "_say"):
            yield node


def takes_text(annotation: ast.expr | None) -> bool:
    """Whether it is that of a function that gets a sentence."""
    return annotation is not None and ast.unparse(annotation).startswith("Callable[[str],")


def second_canonical_json(tree: ast.AST) -> Found:
    """`canonical_json` is the one with sorted keys and no spaces."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and named(node.func) == "dumps":
            words = {word.arg for word in node.keywords}
            yield from [node] if {"sort_keys", "separators"} <= words else []


def named(node: ast.AST) -> str:
    """The last part of a name, of an attribute or of an import."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.alias():
            return node.name
    return ""


RULES: dict[Callable[[ast.AST], Found], set[str]] = {
    second_suggestion: {"outlast/base/suggest.py"},
    second_http_client: {"outlast/base/http_client.py", *STANDALONE},
    second_retry: {"outlast/base/retry.py"},
    second_log: set(),
    second_canonical_json: {"outlast/base/codec.py"},
}
"""Each rule, and the files that are the one."""


@functools.cache
def product() -> dict[str, ast.Module]:
    """The project's files, without the local cloud, which imports none of it."""
    files = [
        file
        for folder in ("outlast", "components", "trainers", "policy", "tools")
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = {
        file.relative_to(ROOT).as_posix(): ast.parse(file.read_text())
        for file in files
        if not {"localcloud", "hosts", "template"} & set(file.relative_to(ROOT).parts)
    }
    assert len(found) > 250
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_there_is_one_of_each(rule):
    files = product()
    assert all(next(rule(files[one]), None) for one in RULES[rule] - STANDALONE)
    second = [
        f"{name}:{getattr(found, 'lineno', '?')}: {rule.__doc__}"
        for name, tree in files.items()
        if name not in RULES[rule]
        for found in rule(tree)
    ]
    assert not second, "\n".join(second)


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (second_suggestion, "near = difflib.get_close_matches(word, known, n=1)"),
        (second_suggestion, "from difflib import get_close_matches"),
        (second_http_client, "import urllib.request"),
        (second_http_client, "def f():\n    from http.client import HTTPException"),
        (second_http_client, "from urllib import request"),
        (
            second_retry,
            "while True:\n    try:\n        f()\n    except OSError:\n        time.sleep(1)",
        ),
        (
            second_retry,
            "for wait in (1, 2):\n    try:\n        f()\n    except OSError:\n"
            "        if wait:\n            self.clock.sleep(wait)",
        ),
        (second_log, "def f(store, say): pass"),
        (second_log, "def f(*, say=print): pass"),
        (second_log, "def f(store, log: Callable[[str], object]): pass"),
        (second_log, "class C:\n    say: Callable[[str], None]"),
        (
            second_canonical_json,
            'json.dumps(value, sort_keys=True, separators=(",", ":")).encode()',
        ),
    ],
)
def test_a_second_one_is_found(rule, planted):
    assert list(rule(ast.parse(planted)))


@pytest.mark.parametrize(
    ("rule", "plain"),
    [
        (second_retry, "while not ready():\n    time.sleep(0.1)"),
        (second_retry, "try:\n    f()\nexcept OSError:\n    time.sleep(1)"),
        (
            second_retry,
            "while True:\n    try:\n        f()\n    except OSError as error:\n"
            "        spell.wait(error)",
        ),
        (second_http_client, "import urllib.parse"),
        (second_canonical_json, "json.dumps(value, indent=2)"),
    ],
)
def test_what_is_not_a_second_one_is_left_alone(rule, plain):
    assert not list(rule(ast.parse(plain)))
