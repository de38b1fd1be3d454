"""The commands that the pages show, one by one, as a shell would take them apart."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools.test_docs import FENCE, PAGES, ROOT

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
INDENTED = re.compile(r"^    (?:\$ )?((?:outlast|pulumi|make) [a-z].*)$", re.M)
INLINE = re.compile(r"`([^`\n]+)`")
WITHIN = re.compile(r"\$\(([^()]*)\)")
PROGRAMS = (
    *("outlast", "pulumi", "gcloud", "make", "python", "torchrun"),
    *("pip", "uv", "git", "curl"),
)
SUBCOMMAND = re.compile(r"(?:[a-z-]+|-\w+|[\w./]+\.py|'[^']+')(?: |$)")
"""What follows a program's name in a command."""
SHELL_WORDS = {"do", "done", "for", "then", "fi", "eval", "if"}


@dataclass(frozen=True)
class Shown:
    """One simple command on a page."""

    page: str
    words: tuple[str, ...]
    line: str
    """As the page has it, all that the shell gets at once."""

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def lines(page: Path) -> Iterator[str]:
    """Every line that a reader would type."""
    text = page.read_text()
    for kind, body in BLOCK.findall(text):
        for line in body.replace("\\\n", " ").splitlines():
            line = line.strip()
            if line.startswith("$ "):
                yield line[2:]
            elif kind == "sh" or (not kind and is_command(line)):
                yield line
    prose = FENCE.sub("", text)
    yield from INDENTED.findall(prose)
    yield from (code for code in INLINE.findall(prose) if is_command(code))


def is_command(line: str) -> bool:
    """Whether it begins as a command of one of our programs does."""
    name, _, rest = line.partition(" ")
    return name in PROGRAMS and bool(SUBCOMMAND.match(rest))


def simple(line: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a line, those within `$(…)` too."""
    for inner in WITHIN.findall(line):
        yield from simple(inner)
    lexer = shlex.shlex(WITHIN.sub("WITHIN", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            while words and words[0] in SHELL_WORDS:
                # Of `for name in …` nothing is a command.
                words = [] if words[0] == "for" else words[1:]
            if words:
                yield tuple(words)
            words = []
        else:
            words.append(word)


def commands() -> list[Shown]:
    """Every simple command of README and the guides."""
    others = {
        "CHANGELOG.md",
        "results.md",
    }  # for the latter's commands see tests/bench/test_results.py
    pages = [page for page in PAGES if page.name not in others and page.parent.name != "bench"]
    return [
        Shown(page.relative_to(ROOT).as_posix(), words, line)
        for page in pages
        for line in lines(page)
        for words in simple(line)
        if words[0] != "WITHIN"
    ]
