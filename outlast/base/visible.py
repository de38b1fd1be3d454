"""Text from outside, made safe for a terminal.

A metric's name, a trainer's last words, a tag or a record of the bucket may hold what a terminal
obeys: escape sequences that set the clipboard, clear the screen or forge a link (CWE-150), and
bidirectional controls that show text in another order than it has (CVE-2021-42574). Everything
that people read passes through here once, where it is written.
"""


def visible(text: str) -> str:
    """The text with its line breaks and tabs; every other control or format character is ``?``.

    Kept is what `str.isprintable` keeps, which leaves out C0, C1, bidirectional and zero-width
    characters, lone surrogates and unassigned ones; other spaces become a space.
    """
    return text if text.isprintable() else "".join(map(_seen, text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """`visible` on a single line."""
    return " ".join(visible(text).splitlines()).replace("\t", " ")


class VisibleError(Exception):
    """Base of errors whose message may quote text from outside: a program that does not catch one
    shows it in Python's own traceback, which passes everything on to the terminal."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(arg) if isinstance(arg, str) else arg for arg in args))


def _seen(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return " " if char.isspace() else "?"
