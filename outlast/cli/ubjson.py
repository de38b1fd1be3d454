"""Reads Universal Binary JSON (ubjson.org, draft 12), in which XGBoost writes models.

Numbers are big-endian. A container may begin with `$`, the type of all its values, and `#`, their
number.
"""

import struct
from typing import Any

_NUMBERS = {
    **{"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q"},
    **{"d": ">f", "D": ">d"},
}
_CONSTANTS = {"Z": None, "T": True, "F": False}
DEPTH_MAX = 200


def loads(data: bytes) -> Any:
    """The document. Raises ValueError if it is none."""
    reader = _Reader(data)
    try:
        return reader.value(reader.marker(), 0)
    except (struct.error, IndexError):
        raise ValueError(f"is cut off at byte {len(data)}") from None


class _Reader:
    """Reads values from the front to the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def marker(self) -> str:
        """The next byte that says what follows; padding is left out."""
        while (found := chr(self._data[self._at])) == "N":
            self._at += 1
        self._at += 1
        return found

    def value(self, kind: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError(f"is nested deeper than {DEPTH_MAX} levels")
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if form := _NUMBERS.get(kind):
            (found,) = struct.unpack_from(form, self._data, self._at)
            self._at += struct.calcsize(form)
            return found
        if kind in ("S", "H"):
            return self._text(self._size())
        if kind == "C":
            return self._text(1)
        if kind == "[":
            return self._array(depth)
        if kind == "{":
            return self._object(depth)
        raise ValueError(f"byte {self._at - 1} is {kind!r}, which begins no value")

    def _array(self, depth: int) -> Any:
        kind, count = self._head()
        if kind in _NUMBERS and count is not None:
            return self._numbers(kind, count)
        found: list[Any] = []
        while count is None or len(found) < count:
            marker = kind or self.marker()
            if count is None and marker == "]":
                break
            found.append(self.value(marker, depth + 1))
            if kind in _CONSTANTS and len(found) > len(self._data):
                raise ValueError("has a list that is longer than the file")
        return found

    def _numbers(self, kind: str, count: int) -> list[Any]:
        import numpy as np

        form = np.dtype(_NUMBERS[kind])
        size = form.itemsize * count
        if self._at + size > len(self._data):
            raise IndexError
        found = np.frombuffer(self._data, form, count, self._at)
        self._at += size
        return found.tolist()

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._head()
        found: dict[str, Any] = {}
        read = 0
        while count is None or read < count:
            if count is None and self._data[self._at] == ord("}"):
                self._at += 1
                break
            name = self._text(self._size())
            found[name] = self.value(kind or self.marker(), depth + 1)
            read += 1
        return found

    def _head(self) -> tuple[str, int | None]:
        """The type of all values and their number, where a container says so."""
        kind = ""
        if self._data[self._at] == ord("$"):
            kind = chr(self._data[self._at + 1])
            self._at += 2
        if self._data[self._at] == ord("#"):
            self._at += 1
            return kind, self._size()
        if kind:
            raise ValueError(f"byte {self._at}: a type without a number")
        return "", None

    def _size(self) -> int:
        found = self.value(self.marker(), 0)
        if type(found) is not int or found < 0:
            raise ValueError(f"byte {self._at}: {found!r} is not a length")
        return found

    def _text(self, size: int) -> str:
        text = self._data[self._at : self._at + size]
        if len(text) < size:
            raise IndexError
        self._at += size
        return text.decode()
