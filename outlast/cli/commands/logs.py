"""`outlast logs`."""

import click

from outlast.cli.commands.output import Form, json_option, say_json
from outlast.cli.documents.files import LogLine
from outlast.cli.terminal import say


@click.command()
@click.argument("experiment")
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="The attempt; default: the newest."
)
@click.option(
    "--follow", is_flag=True, help="Print new lines as they come, until the run has ended."
)
@click.option(
    "--boot", is_flag=True, help="Print the serial port of its VM, and boots that failed."
)
@json_option(LogLine, form=Form.LINES, help="Print each line as JSON.")
def logs(experiment: str, attempt: int | None, follow: bool, boot: bool, as_json: bool) -> None:
    """Print what the trainer of an attempt wrote to stdout and stderr.

    EXPERIMENT may also be a run's folder or gs:// path. A VM uploads the output once a minute. With
    --boot, print the serial port of the VM instead, which can be read as long as the VM exists.
    Exit code 1: it cannot be read, or no VM exists; 64: the run has no such attempt.

    \b
    outlast logs first --follow
    outlast logs first --attempt 2 | less
    outlast logs first --boot
    """
    from outlast.cli import logs as reading
    from outlast.cli import runs
    from outlast.cli.polling import Pauses

    place = runs.find(experiment)
    lines = _Lines(as_json)
    if boot:
        for line in reading.failed_boots(place):
            say(line, err=True)
        serial = reading.Serial(place, attempt)
        say(f"serial port of VM {serial.vm}", err=True)
        pauses = Pauses(BOOT_POLL_SEC)
        while True:
            text = serial.text()
            lines.write(attempt or 0, text)
            if not follow:
                break
            pauses.wait(changed=bool(text))
    elif follow:
        reading.follow(place, attempt, lines.write, lambda text: say(text, err=True), Pauses())
    else:
        term = reading.show(place, attempt, lines.write)
        if not lines.seen:
            say(f"{experiment}: {reading.why_empty(place, term)}", err=True)
    lines.close()


BOOT_POLL_SEC = 5.0


class _Lines:
    """Prints text by whole lines, without colours and control sequences."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._part = ""
        self._term = 0
        self.seen = False

    def write(self, term: int, text: str) -> None:
        if term != self._term:
            self.close()
            self._term = term
        self.seen = self.seen or bool(text)
        *whole, self._part = (self._part + text).split("\n")
        for line in whole:
            self._print(line)
        # A progress bar may write no line's end for hours; what it has replaced is not kept.
        self._part = self._part[self._part.rstrip("\r").rfind("\r") + 1 :]

    def close(self) -> None:
        """Prints a last line without its end."""
        if self._part:
            self._print(self._part)
        self._part = ""

    def _print(self, line: str) -> None:
        from outlast.cli.boots import ESCAPE

        # Of a progress bar, the last state is left.
        text = ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])
        if self._as_json:
            say_json({"attempt": self._term, "line": text}, line=True)
        else:
            say(text)
