"""The run's name: what changes it, what does not, and that every Python agrees."""

import argparse
import ast
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.spec import identity
from outlast.spec.identity import IdentityError, Spec

ROOT = Path(__file__).resolve().parents[2]
SPEC = Spec(trainer="digits", arguments={"epochs": 5, "rate": 0.1}, source="a" * 64, seed=1)

# Every construct whose tree the releases 3.11 to 3.13 build differently, or might.
TRICKY = r'''
from __future__ import annotations
class A(B, metaclass=M):
    """doc"""
    x: int = 3
    "attribute doc"
    def g(self, a, /, b=1, *c, d: int = -2, **e) -> "str":
        "doc"
        return f"{a!r:>{b}} {{x}} {a=} {b:}" "tail" f"{c:%Y-%m}" u"uni" f''
    async def h(self):
        async with x as y, z: pass
        async for i in range(10**5): yield i
        return
table = lambda *a, k=0: {**a, 'b': [*a, ...], 1.5e300: 1e400, 2j: None, b"by": True}
match p:
    case {"a": [1, *rest], **kw} if kw: pass
    case A(x=1) | None: pass
    case _: pass
try: pass
except* ValueError as e: raise X from e
x = 0xffffffffffffffffffffffffffff
y = f"{'a' if x else 'b'}{x:{y}.{z}}\n{{}}"
w = f"{x}" f"{y}" "z"
print(x[1:2, ::3], not a, a < b <= c, a if b else c, (walrus := 3))
@dec
def z():
    global q
    del a, b
    assert a, "m"
t = "caf\xe9 \u2028 \U0001F600 \ud800"
'''


def write(folder: Path, **files: str) -> Path:
    """A trainer folder; returns the entry `entry.py`."""
    for name, text in files.items():
        path = folder / (name.replace("__in_", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "entry.py"


def package(folder: Path, **files: str) -> Path:
    write(folder, **files)
    (folder / "__init__.py").touch()
    return folder / "entry.py"


# -- run_id


def test_run_id_is_ten_hex_digits_and_stable():
    run = identity.run_id(SPEC)
    assert identity.RUN_PATTERN.fullmatch(run)
    assert run == identity.run_id(dataclasses.replace(SPEC, arguments={"rate": 0.1, "epochs": 5}))


@pytest.mark.parametrize(
    "change",
    [
        {"trainer": "other"},
        {"arguments": {"epochs": 6, "rate": 0.1}},
        {"source": "b" * 64},
        {"data": ["gs://b/data/x"]},
        {"seed": 2},
        {"init": {"path": "experiments/a/0123456789/t000001", "digest": "c" * 64}},
        {"rerun": 1},
        {"requirements": "d" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_spec_names_another_run(change):
    assert identity.run_id(dataclasses.replace(SPEC, **change)) != identity.run_id(SPEC)


def test_canonical_json_is_sorted_ascii_and_compact():
    value = {"b": (1, 2.5), "a": Path("x") / "y", "ä": None, "t": True}
    assert identity.canonical_json(value) == (r'{"a":"x/y","b":[1,2.5],"t":true,"\u00e4":null}')


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_canonical_json_refuses_what_has_no_one_text(value):
    with pytest.raises(IdentityError, match="; "):
        identity.canonical_json({"x": value})


# -- arguments


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    made.add_argument("--epochs", type=int, default=5)
    made.add_argument("--mode", default="train")
    made.add_argument("--run-dir")
    made.add_argument("--checkpoint-every", default="auto")
    return made


def test_a_default_written_out_is_the_same_arguments():
    assert identity.arguments(parser(), []) == identity.arguments(parser(), ["--epochs", "5"])


def test_operational_flags_are_left_out():
    argv = ["--run-dir=x", "--checkpoint-every=2s", "--mode=eval"]
    assert identity.arguments(parser(), argv) == {"epochs": 5}


@pytest.mark.parametrize("argv", [["--epochs=x"], ["--epoch=5"], ["stray"]])
def test_a_refusal_of_the_parser_is_an_error_and_no_exit(argv, capsys):
    with pytest.raises(IdentityError):
        identity.arguments(parser(), argv)
    assert capsys.readouterr() == ("", "")


# -- source_digest


def digest_of(text: str, folder: Path) -> str:
    return identity.source_digest(write(folder, entry=text))


def test_comments_docstrings_and_layout_do_not_count(tmp_path):
    plain = "X = 1\ndef f(a):\n    return a + X\nclass C:\n    y: int = 2\n"
    dressed = (
        '"""Doc."""\n# why\nX = (1)\n\n\ndef f( a ):\n    """Doc."""\n    # more\n'
        '    return (a +\n            X)\nclass C:\n    "doc"\n    y: int = 2\n    "what y is"\n'
    )
    assert digest_of(plain, tmp_path) == digest_of(dressed, tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        "X = 2\ndef f(a): return a + X",
        "X = 1.0\ndef f(a): return a + X",
        "X = True\ndef f(a): return a + X",
        "X = '1'\ndef f(a): return a + X",
        "X = b'1'\ndef f(a): return a + X",
        "X = 1\ndef f(a): return X + a",
        "X = 1\ndef f(b): return b + X",
        "def f(a): return a + X\nX = 1",
        "X = 1\nasync def f(a): return a + X",
        "X = 1\ndef f(a, *, k=None): return a + X",
    ],
)
def test_every_change_of_meaning_counts(other, tmp_path):
    assert digest_of("X = 1\ndef f(a): return a + X", tmp_path) != digest_of(other, tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f'{x}{y}'", "f'{x}' + f'{y}'"),
        ("f'{x:>3}'", "f'{x:>4}'"),
        ("f'{x!r}'", "f'{x}'"),
        ("f'a{x}'", "f'{x}a'"),
        ("{**a}", "{a: a}"),
        ("a[1:]", "a[:1]"),
        ("lambda *, k: k", "lambda k: k"),
        ("[]", "()"),
        ("foo(a=1)", "foo(1)"),
    ],
)
def test_shapes_that_a_sloppy_serialiser_confuses(one, other):
    assert identity.serialise(ast.parse(one)) != identity.serialise(ast.parse(other))


def source_files(entry):
    """The files whose trees are digested."""
    return sorted(identity._reachable(entry.resolve(), entry.resolve().parent))


def test_what_is_imported_from_its_own_folder_counts(tmp_path):
    folder = tmp_path / "mine"
    entry = package(
        folder,
        entry="from . import near\nimport json, numpy\ndef f():\n    from mine.deep import thing\n",
        near="from mine.deeper.leaf import x\n",
        deep="thing = 1\n",
        deeper__in___init__="",
        deeper__in_leaf="x = 1\n",
        stranger="y = 1\n",
    )
    names = [path.relative_to(folder).as_posix() for path in source_files(entry)]
    assert names == ["deep.py", "deeper/__init__.py", "deeper/leaf.py", "entry.py", "near.py"]
    before = identity.source_digest(entry)
    (folder / "stranger.py").write_text("y = 2\n")
    (folder / "__init__.py").write_text("z = 2\n")
    assert identity.source_digest(entry) == before
    (folder / "deeper" / "leaf.py").write_text("x = 2\n")
    assert identity.source_digest(entry) != before


def test_the_packages_init_counts_where_a_name_of_it_is_used(tmp_path):
    entry = package(tmp_path / "mine", entry="from mine import VERSION\n")
    assert [path.name for path in source_files(entry)] == ["__init__.py", "entry.py"]


def test_a_relative_import_of_a_parent_inside_the_folder(tmp_path):
    folder = tmp_path / "mine"
    package(
        folder,
        entry="from .sub import leaf\n",
        sub__in___init__="",
        sub__in_leaf="from ..near import x\nfrom ...outside import y\n",
        near="x = 1\n",
    )
    names = [path.name for path in source_files(folder / "entry.py")]
    assert names == ["entry.py", "near.py", "__init__.py", "leaf.py"]


def test_a_plain_folder_of_scripts_imports_its_neighbours(tmp_path):
    entry = write(tmp_path, entry="import near, json\nfrom near2 import x\n", near="", near2="")
    assert [path.name for path in source_files(entry)] == [
        "entry.py",
        "near.py",
        "near2.py",
    ]


def test_imports_in_a_circle_end(tmp_path):
    entry = write(tmp_path, entry="import near\n", near="import entry\n")
    assert len(source_files(entry)) == 2


def test_the_folders_place_does_not_count(tmp_path):
    one = package(tmp_path / "a" / "mine", entry="from . import near\n", near="x = 1\n")
    other = package(tmp_path / "b" / "mine", entry="from . import near\n", near="x = 1\n")
    assert identity.source_digest(one) == identity.source_digest(other)


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n"])
def test_source_that_does_not_parse_is_a_sentence(text, tmp_path):
    with pytest.raises(IdentityError, match="entry.py.*; correct the source"):
        digest_of(text, tmp_path)


def test_a_missing_trainer_is_a_sentence(tmp_path):
    with pytest.raises(IdentityError, match="gone.py: cannot be read"):
        identity.source_digest(tmp_path / "gone.py")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_agrees(version, tmp_path):
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    write(tmp_path, entry=TRICKY)
    entries = [
        tmp_path / "entry.py",
        ROOT / "trainers" / "digits.py",
        ROOT / "outlast/bucket/layout.py",
    ]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom outlast.spec import identity\n"
        "for name in sys.argv[2:]: print(identity.source_digest(Path(name)))\n"
    )
    found = subprocess.run(
        [python, "-I", "-B", "-c", code, str(ROOT), *map(str, entries)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.split() == [identity.source_digest(entry) for entry in entries]


def find_python(version: str) -> str | None:
    """A working interpreter of the version, or None."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in pyenv.glob(f"{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        probe = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if probe.stdout.strip() == version:
            return candidate
    return None


def test_declared_constants_are_not_part_of_the_source(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "walk.py").write_text(text)
        return identity.source_digest(tmp_path / "walk.py")

    plain = digest("outlast.train(state, total=3)\n")
    assert digest("outlast.train(state, total=3, constant=['w'])\n") == plain
    assert digest("outlast.train(state, constant=['w'], total=3)\n") == plain
    assert digest("outlast.train(state, total=3, tracker='w')\n") != plain
    assert digest("fill(state, total=3, constant=['w'])\n") != digest("fill(state, total=3)\n")
