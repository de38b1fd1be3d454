"""The output of a run's attempts, which is in the bucket, and of its VMs' boots, which is on their
serial ports.

A VM uploads its trainer's output once a minute, and at the attempt's end.
"""

import codecs
import re
from collections.abc import Callable, Iterator

from outlast.base.codec import format_time
from outlast.base.names import number_of
from outlast.base.visible import one_line
from outlast.bucket import history
from outlast.bucket.layout import BootEnd
from outlast.bucket.records import read_record
from outlast.cli import boots, status
from outlast.cli.errors import OperateError, UsageError, reading
from outlast.cli.polling import Pauses
from outlast.cli.runs import Place
from outlast.cloud.compute import Compute, ComputeError, Missing

_PIECE = re.compile(r"log/([0-9]{6,9})\.log")

Write = Callable[[int, str], object]
"""Takes an attempt's number, and some of its text."""


def attempts(place: Place) -> list[int]:
    """The numbers of the run's attempts. Raises OperateError."""
    with reading(place.name):
        numbers = map(number_of, place.store.folders(place.layout.attempts))
        return sorted(number for number in numbers if number is not None)


def chosen(place: Place, attempt: int | None) -> int:
    """The attempt to show: the newest, unless one is given. Raises UsageError if there is none."""
    there = attempts(place)
    if attempt is None and there:
        return there[-1]
    if attempt in there:
        return attempt
    if not there:
        raise UsageError(
            f"{place.name}: has no attempt yet; outlast logs {place.name} --boot shows how its VM"
            " boots"
        )
    known = f"{there[0]} to {there[-1]}"
    raise UsageError(f"{place.name}: has no attempt {attempt}; its attempts are {known}")


class Reader:
    """Reads an attempt's output once, piece by piece."""

    def __init__(self, place: Place, term: int) -> None:
        self.term = term
        self._place = place
        self._after = -1
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self) -> Iterator[str]:
        """What has come since the last call. Raises OperateError."""
        with reading(self._place.name):
            found = self._pieces()
            for index in sorted(index for index in found if index > self._after):
                data = self._place.store.get(found[index])[0]
                self._after = index
                yield self._decoder.decode(data)

    def tail(self) -> str:
        """The end of the output: its last two pieces, which may begin in mid-line. Raises
        OperateError.
        """
        with reading(self._place.name):
            found = self._pieces()
            data = [self._place.store.get(found[index])[0] for index in sorted(found)[-2:]]
        return b"".join(data).decode(errors="replace")

    def _pieces(self) -> dict[int, str]:
        prefix = self._place.layout.attempt(self.term)
        names = [item.path for item in self._place.store.list(f"{prefix}log/")]
        return {int(match[1]): name for name in names if (match := self._piece(name))}

    def _piece(self, path: str) -> re.Match[str] | None:
        return _PIECE.fullmatch(path.removeprefix(self._place.layout.attempt(self.term)))


def show(place: Place, attempt: int | None, write: Write) -> int:
    """Writes all output of one attempt; returns its number. Raises as `chosen` does."""
    term = chosen(place, attempt)
    for text in Reader(place, term).text():
        write(term, text)
    return term


def follow(
    place: Place,
    attempt: int | None,
    write: Write,
    announce: Callable[[str], object],
    pauses: Pauses,
) -> None:
    """Writes output as it comes, until the attempt has ended; without an `attempt` that of the
    later ones too, until the run has ended. Raises as `chosen` does.
    """
    reader: Reader | None = None
    while True:
        found = status.read(place)  # First: what comes before an end is in the next look.
        changed = False
        there = attempts(place)
        term = attempt if attempt is not None else max(there, default=None)
        if attempt is not None or there:
            term = chosen(place, attempt)
        if term is not None and (reader is None or reader.term != term):
            if reader is not None:
                for text in reader.text():
                    write(reader.term, text)
            reader = Reader(place, term)
            announce(f"attempt {term}")
            changed = True
        if reader is not None:
            for text in reader.text():
                write(reader.term, text)
                changed = True
        if found.state.ended or (attempt is not None and _has_ended(found, attempt)):
            return
        pauses.wait(changed=changed)


def why_empty(place: Place, term: int) -> str:
    """Why an attempt has no output, in words. Raises OperateError."""
    if place.folder is not None:
        return f"attempt {term} left no output here; on a laptop it writes to your terminal"
    with reading(place.name):
        book = history.read(place.store, place.layout)
    ended = [one for one in (book.attempts if book else ()) if one.term == term and one.reason]
    if not ended:
        return f"attempt {term} has left no output yet; a VM uploads it once a minute"
    why = f": {one_line(ended[0].why)}" if ended[0].why else ""
    return f"attempt {term} left no output; it ended as {ended[0].reason}{why}"


def _has_ended(found: status.Status, term: int) -> bool:
    book = found.history
    return any(
        one.term == term and one.reason is not None for one in (book.attempts if book else ())
    )


# ---------------------------------------------------------------------------------------------
# Boots


def failed_boots(place: Place) -> list[str]:
    """A line for each boot that never came to an attempt. Raises OperateError."""
    store, layout = place.store, place.layout
    found = []
    with reading(place.name):
        for item in store.list(layout.boots):
            if item.path.endswith(".end.json"):
                end = read_record(store, item.path, BootEnd)
                if end is not None:
                    found.append((item.updated, end))
    return [
        f"{format_time(at)} VM {end.instance_id} {end.reason} in {one_line(end.step)}, exit "
        f"{end.exit}: {one_line(end.message)}"
        for at, end in sorted(found, key=lambda one: one[0])
    ]


class Serial:
    """Reads a VM's serial port once, piece by piece."""

    def __init__(self, place: Place, attempt: int | None = None) -> None:
        """Of the newest VM of the run's group, or of an attempt's VM. Raises OperateError if the
        stack is not up, or has no VM now.
        """
        group = place.group
        if group is None:
            raise OperateError(
                f"{place.name}: the serial port is read from its VM, and its stack is not up or was"
                " not named; the output of its attempts is in the bucket: outlast logs "
                f"{place.name}"
            )
        self._compute = Compute(group.project)
        self._next = 0
        self._name = place.name
        if attempt is not None:
            with reading(place.name):
                book = history.read(place.store, place.layout)
            start = book.starts.get(attempt) if book else None
            if start is None:
                chosen(place, attempt)
                raise OperateError(
                    f"{place.name}: attempt {attempt} left no record of its VM; leave out --attempt"
                    " for the VM that exists now"
                )
            self.vm = start.instance
            self._path = f"zones/{start.zone.rpartition('/')[2]}/instances/{start.instance}"
            return
        seen = boots.look(group)
        if seen is None or seen.vm is None:
            why = boots.stuck(group)
            raise OperateError(
                f"{place.name}: its group has no VM now{f': {why}' if why else ''}; the serial port"
                " of a VM is gone with it"
            )
        self.vm, self._path = seen.vm.name, seen.vm.path

    def text(self) -> str:
        """What has come since the last call. Raises OperateError, also once the VM is gone."""
        path = f"{self._path}/serialPort?start={self._next}"
        try:
            answer = self._compute.call("GET", path)
        except Missing:
            raise OperateError(
                f"{self._name}: VM {self.vm} no longer exists, and its serial port with it"
            ) from None
        except ComputeError as error:
            raise OperateError(f"{self._name}: serial port of VM {self.vm}: {error}") from None
        self._next = int(answer.get("next") or 0)
        return str(answer.get("contents") or "")
