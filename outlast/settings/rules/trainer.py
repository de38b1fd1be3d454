"""Asks a trainer of the checkout for its flags.

The file may be the user's: anything that it lacks, or that goes wrong when it is imported or
called, is refused in one sentence.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from outlast import trainers
from outlast.base.folders import PACKAGE
from outlast.base.suggest import did_you_mean
from outlast.settings.errors import NAMESPACE, SettingsError, first_line
from outlast.spec import identity
from outlast.spec.changes import How

_Answer = TypeVar("_Answer")

TRAINERS = PACKAGE / "trainers"

_SHAPE = (
    "write it as in trainers/dummy.py, or move a script of another form into a folder outside"
    f" of trainers/ and set {NAMESPACE}:source to that folder"
)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The trainer's own parser. Raises SettingsError."""
    module = _module(name)
    make = getattr(module, "parser", None)
    if not callable(make):
        raise _bad(name, f"has no function parser(), which says its flags; {_SHAPE}")
    if not callable(getattr(module, "main", None)):
        raise _bad(name, f"has no function main(argv), which trains; {_SHAPE}")
    found = _ask(name, "parser()", make)
    if not isinstance(found, argparse.ArgumentParser):
        raise _bad(
            name,
            f"has a parser() that returns {_kind(found)}: must return an argparse.ArgumentParser;"
            f" {_SHAPE}",
        )
    return found


def mutable_of(name: str) -> dict[str, str]:
    """Its flags that may change in the middle of a run, and how. Raises SettingsError."""
    module = _module(name)
    found = getattr(module, "MUTABLE", {})
    known = [str(how) for how in How]
    rule = f"must map flags without dashes to {' or '.join(map(repr, known))}"
    if not isinstance(found, Mapping):
        raise _bad(name, f"has a MUTABLE that is {_kind(found)}: {rule}; {_SHAPE}")
    for flag, how in found.items():
        if not isinstance(flag, str) or str(how) not in known:
            raise _bad(name, f"has a MUTABLE with {flag!r}: {how!r}: {rule}; {_SHAPE}")
    return {flag: str(how) for flag, how in found.items()}


def arguments_of(name: str, argv: list[str]) -> dict[str, Any]:
    """The arguments, read by its parser. Raises SettingsError."""
    parser = parser_of(name)
    return _ask(name, "parser", lambda: identity.arguments(parser, argv))


def source_of(name: str) -> str:
    """The digest of its source. Raises IdentityError."""
    return identity.source_digest(TRAINERS / f"{name}.py")


def _module(name: str) -> ModuleType:
    """Raises SettingsError."""
    known = sorted(trainers.names())
    if name not in known:
        raise SettingsError(
            f"{NAMESPACE}:trainer {name!r}: is not a trainer;"
            f" {did_you_mean(name, known, 'known are ' + ', '.join(known))}"
        )
    if (TRAINERS / name).is_dir():
        raise SettingsError(
            f"{NAMESPACE}:trainer {name!r}: trainers/{name} is a folder: a trainer must be one"
            f" file; move the folder out of trainers/, and set {NAMESPACE}:source to its new place"
        )
    return _ask(name, "the import", lambda: trainers.load(name))


def _ask(name: str, what: str, question: Callable[[], _Answer]) -> _Answer:
    try:
        return question()
    except identity.IdentityError:
        raise
    except ModuleNotFoundError as error:
        raise _bad(
            name,
            f"imports {error.name}, which is not in the environment that pulumi runs in; import it"
            " inside the functions that need it",
        ) from None
    except (Exception, SystemExit) as error:
        kind, said = type(error).__name__, first_line(error)
        what = f"{what} ended with {kind}" + ("" if said == kind else f" ({said})")
        raise _bad(
            name,
            f"cannot be used, {what}{_place(error)}; correct the"
            f" file: python -m outlast.trainers {name} --help shows the whole error",
        ) from None


def _place(error: BaseException) -> str:
    """The line of the user's file that raised it."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f" at line {error.lineno}"
    trace, line = error.__traceback__, 0
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).parent.name == "trainers":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" at line {line}" if line else ""


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _bad(name: str, what: str) -> SettingsError:
    return SettingsError(f"{NAMESPACE}:trainer {name!r}: trainers/{name}.py {what}")
