"""Find the wheel of pip that a requirements file pins, for a Python without ensurepip.

    python3 -I outlast/base/pip_wheel.py REQUIREMENTS FOLDER...

Prints the path of a wheel with a pinned hash, from one of the folders or of those in
PIP_FIND_LINKS, otherwise downloaded from the index of PIP_INDEX_URL into the first folder. Ends
with 1 and a sentence if there is none.

Standard library only: it runs before any package is installed.
"""

import hashlib
import os
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

ANSWER_TIMEOUT_SEC = 10
SIZE_LIMIT = 32 << 20
"""Bytes; pip's wheel has about 2 MB, a page of the index less than 1 MB."""


class NoWheel(Exception):
    """Why there is no wheel, in one sentence."""


@dataclass(frozen=True)
class Pin:
    """The version of pip that a requirements file names, with its hashes."""

    version: str
    sha256: frozenset[str]

    @property
    def wheel(self) -> str:
        """The wheel's file name."""
        return f"pip-{self.version}-py3-none-any.whl"

    def fits(self, data: bytes) -> bool:
        """Whether the bytes have a pinned hash."""
        return hashlib.sha256(data).hexdigest() in self.sha256


def find(
    requirements: Path, folders: Sequence[Path], environ: Mapping[str, str] = os.environ
) -> Path:
    """The wheel's path; a download goes into the first folder. Raises NoWheel."""
    pin = _pinned(requirements)
    for folder in (*folders, *map(Path, environ.get("PIP_FIND_LINKS", "").split())):
        path = folder / pin.wheel
        if path.is_file() and pin.fits(path.read_bytes()):
            return path
    if environ.get("PIP_NO_INDEX"):
        raise NoWheel(f"{pin.wheel}: is in no folder, and PIP_NO_INDEX is set")
    if not (index := environ.get("PIP_INDEX_URL")):
        raise NoWheel(f"{pin.wheel}: is in no folder, and PIP_INDEX_URL names no index")
    data = _download(pin, index)
    folders[0].mkdir(parents=True, exist_ok=True)
    path = folders[0] / pin.wheel
    partial = path.with_suffix(".part")
    partial.write_bytes(data)
    partial.replace(path)
    return path


def _pinned(requirements: Path) -> Pin:
    try:
        text = requirements.read_text()
    except OSError as error:
        raise NoWheel(f"{requirements}: {error.strerror}") from None
    version = re.search(r"^pip==([0-9a-z.]+)", text, re.MULTILINE)
    if version is None:
        raise NoWheel(f"{requirements}: pins no pip")
    return Pin(version[1], frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text)))


def _download(pin: Pin, index: str) -> bytes:
    page = f"{index.rstrip('/')}/pip/"
    where, text = _get(page)
    links = _Links()
    links.feed(text.decode(errors="replace"))
    for link in links.found:
        address = urllib.parse.urljoin(where, link)
        if urllib.parse.urlsplit(address).path.rpartition("/")[2] == pin.wheel:
            _, data = _get(address)
            if pin.fits(data):
                return data
            raise NoWheel(f"{pin.wheel} of {_shown(page)}: has another hash than the pinned one")
    raise NoWheel(f"{pin.wheel}: is not in {_shown(page)}")


def _get(address: str) -> tuple[str, bytes]:
    """The final address of the answer, and its bytes."""
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_TIMEOUT_SEC) as answer:
            data = answer.read(SIZE_LIMIT + 1)
            if len(data) > SIZE_LIMIT:
                raise NoWheel(f"{_shown(address)}: answers with more than {SIZE_LIMIT} bytes")
            return answer.geturl(), data
    except (OSError, ValueError) as error:
        raise NoWheel(f"{_shown(address)}: no answer ({error})") from None


def _shown(address: str) -> str:
    """The address without a password."""
    return re.sub(r"//[^/@]*@", "//", address.partition("#")[0])


class _Links(HTMLParser):
    """The addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]


def _main(arguments: Sequence[str]) -> int:
    requirements, *folders = map(Path, arguments)
    try:
        print(find(requirements, folders))
    except NoWheel as error:
        print(f"pip: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
