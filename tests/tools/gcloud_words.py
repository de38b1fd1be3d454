"""The part of gcloud's grammar that the pages use: strict, so that a slip on a page is found where
gcloud is not installed too. Where it is, gcloud itself parses the same commands."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grammar:
    """What follows a command's name."""

    positionals: tuple[int, int] = (0, 0)
    """Least and most."""
    values: frozenset[str] = frozenset()
    """Flags with a value."""
    switches: frozenset[str] = frozenset()
    """Flags without one."""


WIDE = frozenset({"--project", "--format", "--filter", "--verbosity"})


def _of(least: int, most: int, values: str = "", switches: str = "") -> Grammar:
    return Grammar((least, most), frozenset(values.split()) | WIDE, frozenset(switches.split()))


COMMANDS = {
    "auth application-default login": _of(0, 0),
    "billing projects link": _of(1, 1, "--billing-account"),
    "compute accelerator-types list": _of(0, 99, "--zones"),
    "compute instance-groups managed list": _of(0, 99, "--zones --regions"),
    "compute instance-groups managed list-instances": _of(1, 1, "--zone --region"),
    "compute instances get-serial-port-output": _of(1, 1, "--zone --port --start"),
    "compute instances list": _of(0, 99, "--zones"),
    "compute machine-types list": _of(0, 99, "--zones"),
    "compute project-info add-metadata": _of(0, 0, "--metadata"),
    "compute ssh": _of(1, 1, "--zone --command", "--tunnel-through-iap"),
    "logging read": _of(1, 1, "--limit --freshness"),
    "projects create": _of(0, 1, "--name --folder --organization"),
    "secrets create": _of(1, 1, "--replication-policy --data-file"),
    "iam roles create": _of(1, 1, "--file"),
    "secrets versions add": _of(1, 1, "--data-file"),
    "services enable": _of(1, 99),
    "storage buckets update": _of(
        1, 99, "--soft-delete-duration --lifecycle-file", "--versioning --no-versioning"
    ),
    "storage cp": _of(2, 99, "", "--recursive"),
    "storage rm": _of(1, 99, "", "--recursive"),
}


class Unknown(ValueError):
    """A command that gcloud would refuse, or that this table lacks; the message says which word."""


def parse(words: Sequence[str]) -> str:
    """The name of the command, whose words all fit; raises Unknown."""
    said = f"{' '.join(words)} "
    name = max((one for one in COMMANDS if said.startswith(f"{one} ")), key=len, default="")
    if not name:
        raise Unknown(f"gcloud {' '.join(words)}: no such command in {__name__}")
    grammar, rest, positionals = COMMANDS[name], list(words[len(name.split()) :]), 0
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if flag in grammar.values:
            if not equals and (not rest or rest.pop(0).startswith("--")):
                raise Unknown(f"gcloud {name}: {flag} needs a value")
        elif word in grammar.switches:
            continue
        elif word.startswith("-"):
            raise Unknown(f"gcloud {name}: has no {word}")
        else:
            positionals += 1
    least, most = grammar.positionals
    if not least <= positionals <= most:
        raise Unknown(f"gcloud {name}: {positionals} arguments, must be {least} to {most}")
    return name
