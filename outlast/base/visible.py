"""Makes text from outside safe for a terminal.

A metric's name, a trainer's last lines, a tag or a record of the bucket may contain what a terminal
obeys: escape sequences that set the clipboard, clear the screen or forge a link (CWE-150), and
bidirectional controls that reorder shown text (CVE-2021-42574). Everything that people read passes
through here once, when it is written.
"""


def visible(text: str) -> str:
    """The text with its line breaks and tabs; every other control or format character is ``?``.

    It keeps what `str.isprintable` keeps, which excludes C0, C1, bidirectional and zero-width
    characters, lone surrogates and unassigned ones; other spaces become a space.
    """
    return text if text.isprintable() else "".join(map(_seen, text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """`visible` on a single line."""
    return " ".join(visible(text).splitlines()).replace("\t", " ")


class VisibleError(Exception):
    """Base of errors whose message may quote text from outside: if a program does not catch one,
    Python's traceback would pass it to the terminal unchanged.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(visible(arg) if isinstance(arg, str) else arg for arg in args))


def _seen(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return " " if char.isspace() else "?"
