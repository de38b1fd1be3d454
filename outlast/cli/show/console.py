"""The console for people: it prints sentences and tables, with text from outside made safe."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from outlast.base.visible import one_line, visible

PIPED_WIDTH = 10_000
NAME_SHOWN = 30
PRICES = "List prices of {date}, without tax and discounts; Spot prices change up to once a day."


class Terminal(Console):
    """A console that prints strings literally, also in table cells: no markup, emoji codes or
    control sequences. `Text` objects are printed as they are.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = PIPED_WIDTH  # Nothing is cut or wrapped in a file or a pipe.

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)

    def sentence(self, text: str = "") -> None:
        """Wrapped between words on a terminal, unless it contains a long path; as one line into a
        file or pipe.
        """
        fits = all(len(word) < self.width for word in text.split())
        self.print(text, soft_wrap=not (self.is_terminal and fits))

    def whole_line(self, text: str) -> None:
        """One line, whatever the text contains, also on a terminal that is narrower."""
        self.print(one_line(text), soft_wrap=True)


def shortened(text: str, most: int = NAME_SHOWN) -> str:
    """One line of printable characters, limited in length."""
    line = one_line(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def shown_value(value: Any) -> str:
    if value is None:
        return "not finite"
    return shortened(f"{value:.6g}" if type(value) is float else str(value))


def show_unread(sentences: Sequence[str]) -> None:
    """What could not be read, on stderr."""
    for sentence in sentences:
        Terminal(stderr=True).sentence(f"outlast: {sentence}")
