"""Names are the glossary's words, and prose is plain English (docs/glossary.md)."""

import dataclasses
import functools
import io
import re
import subprocess
import token
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from outlast.base import codec
from outlast.base.exits import Reason
from outlast.bucket import head, layout
from outlast.cli.rehearsal.guarantees import GUARANTEES
from outlast.settings import keys

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()

INSTEAD = {
    "anew": "starts from scratch",
    "barren": "no-progress",
    "beat": "heartbeat",
    "beats": "heartbeat",
    "calm": "baseline",
    "calms": "baseline",
    "desk": "DataService",
    "door": "listener",
    "errand": "subprocess",
    "haste": "training",
    "ledger": "history",
    "misfortune": "fault",
    "misfortunes": "fault",
    "pulse": "heartbeat",
    "strike": "fault",
    "twin": "mutant",
    "twins": "mutant",
    "whoever": "supervisor",
    "workshop": "CodeSetup",
}
"""Words that stand in no name, each with a word of the glossary that says it better."""

FILES = {
    "draw": "history",
    "ledger": "history",
    "places": "scratch space",
    "reach": "network rules",
    "tree": "process_tree",
    **INSTEAD,
}
"""Names that no file has; elsewhere some of them are good words."""

CLASSES = {
    "Desk",
    "Gone",
    "HeadSpoke",
    "Hung",
    "Over",
    "Said",
    "Side",
    "Stage",
    "Waits",
    "Workshop",
}

PROSE = {
    "anew": r"\banew\b",
    "barren": r"\bbarren\b",
    "becomes of": r"\bbec(?:omes?|ame|oming) of\b",
    "calm": r"\bcalm(?:er|ly|s)?\b",
    "errand": r"\berrands?\b",
    "for ever": r"\bfor ever\b",
    "for good": r"\bfor good\b",
    "goes on": r"\b(?:go|goes|going|gone) on\b",
    "is no": r"(?<![Tt]here )\bis no (?!longer\b)",
    "lies": r"\b(?:lies|lay)\b",
    "made again": r"\bma(?:de|kes?) (?:it )?again\b",
    "mend": r"\b[Mm]end(?:s|ed|ing)?\b",
    "misfortune": r"\bmisfortunes?\b",
    # Also the name of Unix' user without rights.
    "nobody": r"(?<!user )(?<!as )(?<![:/`])\b[Nn]obody\b(?![:@`/\"'])",
    "of its own": r"\bof (?:its|their) own\b",
    "somebody": r"\b[Ss]omebodys?\b",
    "stands in": r"\bst(?:ands|ood) (?:at|below|in|on)\b",
    "told": r"\btold\b",
    "told-truly": r"\btold-truly\b",
    "whoever": r"\b[Ww]hoever\b",
}
"""Phrases that neither prose nor a name has, because there is a plainer word: continues, is in,
someone, says, is not, separate, happens to, forever, recreated, recover."""

ALLOWED = {"NOBODY"}
"""The user id of Unix' user without rights."""

OURS = Path(__file__).relative_to(ROOT).as_posix()
"""This file names what it forbids."""

DOCS = re.compile(r"(?:docs/.*|[A-Z]+)\.md")
CODE = re.compile(
    r"(?:__main__\.py|Makefile|Pulumi.*\.yaml|(?:bench|components|examples|outlast|policy|startup|tests"
    r"|tools|trainers)/.*\.(?:py|sh|bats|bash|yaml|toml))"
)


def tracked(pattern: re.Pattern[str]) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in done.stdout.split("\0") if pattern.fullmatch(name) and name != OURS]
    found = [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]
    assert found
    return found


def words_of(name: str) -> list[str]:
    """The words of an identifier, a key or a file's name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_of(text: str) -> Iterator[tuple[int, str]]:
    """Every identifier of a Python file with its line."""
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        if one.type == token.NAME:
            yield one.start[0], one.string


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """Every comment and text of a Python file with its line; of f-strings without their values."""
    middle = getattr(token, "FSTRING_MIDDLE", None)
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        if one.type in (token.STRING, tokenize.COMMENT, middle):
            said = one.string
            if one.type == token.STRING and "f" in said.partition(said[-1])[0].lower():
                said = re.sub(r"\{[^{}]*\}", "{}", said)
            for number, line in enumerate(said.split("\n")):
                yield one.start[0] + number, line


def bad_names(text: str) -> list[str]:
    """The identifiers of a Python file that have a better word, with their lines."""
    bad = {name for name in set(re.findall(r"[A-Za-z_]\w*", text)) if is_bad(name)}
    if not bad:
        return []  # tokens take a hundred times as long
    return [f"{line}: {name}" for line, name in names_of(text) if name in bad]


@functools.cache
def is_bad(name: str) -> bool:
    if name in ALLOWED:
        return False
    words = words_of(name)
    return name in CLASSES or bool(INSTEAD.keys() & set(words)) or has_phrase(words)


def has_phrase(words: list[str]) -> bool:
    text = " ".join(words)
    return any(re.search(pattern, text) for pattern in PROSE.values())


def bad_prose(lines: Iterable[tuple[int, str]]) -> list[str]:
    """The phrases that plain English avoids, with their lines."""
    return [
        f"{line}: {phrase}: {text.strip()[:90]}"
        for line, text in lines
        for phrase, pattern in PROSE.items()
        if re.search(pattern, text)
    ]


def bad_prose_of(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    found = bad_prose(enumerate(text.split("\n"), 1))
    if found and name.endswith(".py"):  # the code itself may have such words
        found = bad_prose(prose_of(text))
    return found


def under(pattern: re.Pattern[str], found: dict[str, list[str]]) -> str:
    return "\n".join(f"{name}:{line}" for name, lines in found.items() for line in lines)


def test_identifiers_are_the_glossarys_words():
    found = {
        name: bad_names((ROOT / name).read_text()) for name in tracked(CODE) if name[-3:] == ".py"
    }
    assert not any(found.values()), under(CODE, found)


def test_scripts_and_scenarios_have_the_glossarys_words():
    found = {
        name: [
            f"{number}: {line.strip()[:90]}"
            for number, line in enumerate((ROOT / name).read_text().split("\n"), 1)
            if INSTEAD.keys() & set(words_of(line))
            or any(map(is_bad, re.findall(r"\w+_\w+", line)))
        ]
        for name in tracked(CODE)
        if name[-3:] != ".py"
    }
    assert not any(found.values()), under(CODE, found)


def test_files_have_the_glossarys_words():
    stems = {name: Path(name).stem for name in [*tracked(CODE), *tracked(DOCS)]}
    bad = [
        name
        for name, stem in stems.items()
        if "process_tree" not in stem
        and (FILES.keys() & set(re.split(r"[_-]", stem)) or has_phrase(words_of(stem)))
    ]
    assert not bad


def test_settings_have_one_word_for_each_kind_of_time():
    """Least and most, not limits; what is waited for, not that something waits."""
    bad = [
        key
        for key in keys.declared()
        if key.startswith(("wait", "limit")) or INSTEAD.keys() & set(words_of(key))
    ]
    assert not bad
    named = {"checkpointQuietSec", "maxRunMinutes", "maxStallMinutes", "keepVmMinutes"}
    assert keys.declared().keys() >= named | {"allowUnlisted"}


def test_records_and_reasons_have_the_glossarys_words():
    records = [
        one
        for module in (layout, head)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, codec.Record) and dataclasses.is_dataclass(one)
    ]
    assert len(records) > 5
    fields = {field.name for record in records for field in dataclasses.fields(record)}
    assert not {"place", "waits"} & fields
    assert not [name for name in fields if INSTEAD.keys() & set(words_of(name))]
    assert not [reason for reason in Reason if {"cut", *INSTEAD} & set(words_of(reason.value))]


def test_scenarios_and_guarantees_have_the_glossarys_words():
    gone = {"told", "truly", "costs", "user", "bucket-alone", "one-line", "always", "stays"}
    names = [*GUARANTEES, *(file.stem for file in scenario_files())]
    bad = [
        name
        for name in names
        if INSTEAD.keys() & set(words_of(name)) or (name in GUARANTEES and "told" in words_of(name))
    ]
    assert not bad, gone
    asked = {
        guarantee
        for file in scenario_files()
        for guarantee in yaml.safe_load(file.read_text()).get("expect", {}).get("guarantees", ())
    }
    assert asked <= GUARANTEES.keys()


def scenario_files() -> list[Path]:
    found = sorted((ROOT / "outlast" / "localcloud" / "scenarios").glob("*.yaml"))
    assert found
    return found


def test_prose_of_the_code_is_plain():
    found = {name: bad_prose_of(name) for name in tracked(CODE)}
    assert not any(found.values()), under(CODE, found)


def test_prose_of_the_pages_is_plain():
    found = {name: bad_prose_of(name) for name in tracked(DOCS)}
    assert not any(found.values()), under(DOCS, found)


@pytest.mark.parametrize("word", sorted({*INSTEAD.values(), *FILES.values()}))
def test_the_better_word_is_in_the_glossary(word: str):
    terms = " ".join(re.findall(r"\*\*(.+?)\*\*", GLOSSARY)).lower()
    assert word.lower() in terms


@pytest.mark.parametrize(
    "planted",
    [
        "def send_beat():\n    pass\n",
        "class Waits:\n    pass\n",
        "twinEngine = 1\n",
        "call(barren_terms=3)\n",
        "from outlast.supervisor import door\n",
        "def test_a_run_goes_on_after_a_kill(): ...\n",
        "def leave_for_good(): ...\n",
        "class WhatBecomesOf: ...\n",
        "told = 1\n",
        "a_folder_of_its_own = 1\n",
        "is_no_result = 1\n",
    ],
)
def test_a_planted_name_is_found(planted: str):
    assert len(bad_names(planted)) == 1


@pytest.mark.parametrize(
    "planted",
    [
        '"""The run begins anew."""\n',
        "x = 1  # whoever reads it\n",
        'say(f"{name}: is no folder")\n',
        'say(f"{name} has a thread of its own")\n',
        'raise ValueError("nobody answers")\n',
        '"""First.\n\n    The user is told why.\n    """\n',
        '"""What becomes of a run."""\n',
        "x = 1  # somebody works on it\n",
        'say("the run goes on")\n',
        '"""Where a folder lies."""\n',
        '"""A line that stands in a file."""\n',
    ],
)
def test_a_planted_phrase_is_found(planted: str):
    assert len(bad_prose(prose_of(planted))) == 1


@pytest.mark.parametrize(
    "good",
    [
        'say("there is no folder of that name")\n',
        'say("it is no longer there")\n',
        'say(f"{as_nobody} of {NOBODY}")\n',
        'run_as("nobody")\n',
        "# as the user `nobody`\n",
        "heartbeat = read()\n",
    ],
)
def test_good_words_pass(good: str):
    assert not bad_prose(prose_of(good)) and not bad_names(good)
