"""Bytes of uploads and downloads: hashed as they arrive, never whole in memory."""

import base64
import errno
import hashlib
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import google_crc32c
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry

BLOCK = 256 * 1024
"""Bytes held at a time; a body up to this size needs no file before it becomes an object."""
MAX_OBJECT_BYTES = 5 << 40
MAX_PART_HEAD_BYTES = 1 << 16
RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
# gcloud quotes it in a way that no RFC allows.
BOUNDARY = re.compile(r"""boundary=(["']?)([^\s;"']+)\1""", re.IGNORECASE)


class Sink:
    """Collects an upload's bytes; more than a block goes to the file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._crc = google_crc32c.Checksum()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._held = bytearray()
        self._file: BinaryIO | None = None

    @classmethod
    def resume(cls, path: Path) -> "Sink":
        """Continues after the bytes in the file."""
        sink = cls(path)
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                sink._hash(block)
        return sink

    def write(self, data: bytes) -> None:
        self._hash(data)
        if self._file is None and len(self._held) + len(data) <= BLOCK:
            self._held += data
            return
        self._spill().write(data)

    def _hash(self, data: bytes) -> None:
        self._crc.update(data)
        self._md5.update(data)
        self.size += len(data)

    def _spill(self) -> BinaryIO:
        if self._file is None:
            self._file = self.path.open("ab")
        if self._held:
            self._file.write(self._held)
            self._held.clear()
        return self._file

    def save(self) -> None:
        """Writes everything to the file and closes it, so that it survives the process."""
        self._spill().close()
        self._file = None

    def move(self, target: Path) -> None:
        """Moves the complete bytes to `target`."""
        if self._file is None and len(self._held) == self.size:
            file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                if os.write(file, self._held) != self.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            finally:
                os.close(file)
            if not self.size:
                self.path.unlink(missing_ok=True)  # the empty file of an opened upload
            return
        self.save()
        os.rename(self.path, target)

    def discard(self) -> None:
        """Closes and deletes the file, if it exists."""
        if self._file is not None:
            self._file.close()
        self.path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Closes the file and keeps it."""
        if self._file is not None:
            self._file.close()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.digest()).decode()

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()


def check_hashes(declared: Entry, headers: Mapping[str, str], sink: Sink) -> None:
    """Raises ApiError 400 if the bytes do not have the hashes that the client sent."""
    claims = [("CRC32C", declared.get("crc32c")), ("MD5", declared.get("md5Hash"))]
    claims.append(("MD5", headers.get("content-md5")))
    for item in headers.get("x-goog-hash", "").split(","):
        kind, _, value = item.strip().partition("=")
        claims.append((kind.upper(), value))
    for kind, claimed in claims:
        found = {"CRC32C": sink.crc32c, "MD5": sink.md5}.get(kind) if claimed else None
        if found and claimed != found:
            raise ApiError(
                400,
                f'Provided {kind} hash "{claimed}" doesn\'t match calculated {kind} hash '
                f'"{found}".',
                "invalid",
            )


def check_length(headers: Mapping[str, str]) -> None:
    """Raises ApiError 400 if the announced length is more than an object may have."""
    for name in ("content-length", "x-upload-content-length"):
        text = headers.get(name, "0")
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > MAX_OBJECT_BYTES:
            raise ApiError(
                400, f"{name} {text!r}: must be at most {MAX_OBJECT_BYTES} bytes", "invalid"
            )


def byte_range(text: str, size: int) -> tuple[int, int] | None:
    """Start and end of a Range header; None for the whole object. Raises ApiError 416."""
    match = RANGE.fullmatch(text)
    if not match or not (match[1] or match[2]):
        return None
    if match[1]:
        start = int(match[1])
        end = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None  # an invalid range is ignored
    else:
        start, end = max(size - int(match[2]), 0), size
    if start >= size:
        raise ApiError(
            416,
            "The requested range cannot be satisfied.",
            headers={"content-range": f"bytes */{size}"},
        )
    return start, end


class Media(Response):
    """An object's bytes, streamed from an open file, which a deletion does not interrupt."""

    def __init__(
        self, file: BinaryIO, start: int, length: int, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(status_code=status)
        # Text in an object's fields may have characters outside Latin-1.
        self.raw_headers = [(k.encode(), v.strip().encode()) for k, v in headers.items()]
        self.raw_headers.append((b"content-length", str(length).encode()))
        self._file = file
        self._start = start
        self._length = length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file as file:
            file.seek(self._start)
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            left = self._length
            while left > 0 and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                await send({"type": "http.response.body", "body": block, "more_body": left > 0})
            if self._length == 0:
                await send({"type": "http.response.body", "body": b""})


class Gunzipped(Response):
    """The unpacked bytes of a gzip file, whose length is not known in advance."""

    def __init__(self, file: BinaryIO, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.raw_headers = [(k.encode(), v.strip().encode()) for k, v in headers.items()]
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        with self._file as file:
            await send({"type": "http.response.start", **start})
            for piece in gunzipped(file):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def is_gzip(file: BinaryIO) -> bool:
    """Whether a file starts like a gzip file; rewinds it."""
    head = file.read(2)
    file.seek(0)
    return head == b"\x1f\x8b"


def gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """Yields the unpacked members of a gzip file, in pieces of at most a block. Raises zlib.error
    if it is damaged."""
    data = file.read(BLOCK)
    while data:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            yield member.decompress(data, BLOCK)
            data = member.unconsumed_tail or member.unused_data or file.read(BLOCK)
            if not data and not member.eof:
                raise zlib.error("the file ends in the middle")


class MultipartReader:
    """Reads a multipart body in order, with bounded memory: `head()`, then `body()`, for each part.

    All lines end like the first one: Google also accepts the bare newlines of Python's mail
    library."""

    def __init__(self, request: Request) -> None:
        match = BOUNDARY.search(request.headers.get("content-type", ""))
        if not match:
            raise ApiError(400, "Missing multipart boundary in the Content-Type header")
        self._delimiter = b"--" + match[2].encode("latin-1")
        self._stream = request.stream()
        self._buffer = bytearray()
        self._newline = b""

    async def head(self) -> Headers | None:
        """The headers of the next part; None after the last."""
        if not self._newline:
            await self._read_newline()
        blank = self._newline * 2
        while (end := self._buffer.find(blank)) < 0:
            if bytes(self._buffer).strip() == self._delimiter + b"--" and not await self._fill():
                return None
            if len(self._buffer) > MAX_PART_HEAD_BYTES or not await self._fill():
                raise malformed()
        first, *lines = bytes(self._buffer[:end]).lstrip(b"\r\n").split(self._newline)
        if first.rstrip() != self._delimiter:
            raise malformed()
        del self._buffer[: end + len(blank)]
        pairs = (line.partition(b":") for line in lines)
        return Headers(raw=[(k.strip().lower(), v.strip()) for k, _, v in pairs])

    async def _read_newline(self) -> None:
        """Reads the first line, the first delimiter, to find how lines end."""
        while (end := self._buffer.find(b"\n", len(self._delimiter))) < 0:
            if len(self._buffer) > MAX_PART_HEAD_BYTES or not await self._fill():
                raise malformed()
        self._newline = b"\r\n" if self._buffer[end - 1 : end] == b"\r" else b"\n"

    async def body(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the part up to the next delimiter."""
        marker = self._newline + self._delimiter
        while (end := self._buffer.find(marker)) < 0:
            ready = len(self._buffer) - len(marker) + 1
            if ready > 0:
                yield bytes(self._buffer[:ready])
                del self._buffer[:ready]
            if not await self._fill():
                raise malformed()
        yield bytes(self._buffer[:end])
        del self._buffer[:end]

    async def whole_body(self, limit: int) -> bytes:
        """The bytes of a part; raises ApiError 400 if there are more than `limit`."""
        read = bytearray()
        async for chunk in self.body():
            read += chunk
            if len(read) > limit:
                raise ApiError(400, f"A part of the body is over {limit} bytes.", "invalid")
        return bytes(read)

    async def drain(self) -> None:
        """Reads the rest after the last part."""
        while await self._fill():
            self._buffer.clear()

    async def _fill(self) -> bool:
        async for chunk in self._stream:
            if chunk:
                self._buffer += chunk
                return True
        return False


def malformed() -> ApiError:
    return ApiError(400, "Malformed multipart body.", "badRequest")
