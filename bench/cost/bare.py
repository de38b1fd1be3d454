# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
"""What there is to compare with: a copy of the state, and plain transfers that also hash.

No checkpoint library: the least that a copy, an upload and a download can cost on this machine.
"""

import os
import tempfile
from pathlib import Path

import blake3
import google_crc32c
import numpy as np
import requests

from bench.cost.measures import Stopwatch, arguments, change, report, state

CHUNK = 8 << 20


class Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file, size):
        self._file, self._size = file, size
        self._blake3, self._crc = (
            blake3.blake3(max_threads=blake3.blake3.AUTO),
            google_crc32c.Checksum(),
        )

    def __len__(self):
        return self._size

    def read(self, size=-1):
        # The client asks for 8 KB at a time, which no hash is fast with.
        data = self._file.read(max(size, CHUNK) if size >= 0 else size)
        self.update(data)
        return data

    def update(self, data):
        self._blake3.update(data)
        self._crc.update(data)

    def update_blake3(self, data):
        self._blake3.update(data)

    def digests(self):
        return self._blake3.hexdigest(), self._crc.hexdigest()


def copies(arrays, times):
    """Seconds of a copy into new memory, and into memory that is there already."""
    new, kept = Stopwatch(), Stopwatch()
    held = {name: array.copy() for name, array in arrays.items()}
    for _ in range(times):
        change(arrays)
        with new:
            made = {name: array.copy() for name, array in arrays.items()}
        del made
        with kept:
            for name, array in arrays.items():
                np.copyto(held[name], array)
    return new.seconds, kept.seconds


def upload(source, target, name, session):
    size = source.stat().st_size
    with source.open("rb") as file:
        body = Hashed(file, size)
        if target.startswith("http"):
            url = f"{target}/upload/storage/v1/b/bench/o?uploadType=media&name={name}"
            session.post(url, data=iter(lambda: body.read(CHUNK), b"")).raise_for_status()
        else:
            with open(target, "wb") as copy:
                while data := body.read(CHUNK):
                    copy.write(data)
                copy.flush()
                os.fsync(copy.fileno())
    return body.digests()


def download(source, name, target, session):
    body = Hashed(None, 0)
    with target.open("wb") as copy:
        if source.startswith("http"):
            url = f"{source}/storage/v1/b/bench/o/{name}?alt=media"
            with session.get(url, stream=True) as answer:
                answer.raise_for_status()
                for data in answer.iter_content(CHUNK):
                    body.update_blake3(data)
                    copy.write(data)
        else:
            with open(source, "rb") as file:
                while data := file.read(CHUNK):
                    body.update_blake3(data)
                    copy.write(data)


def main():
    args = arguments()
    arrays = state(args.mb)
    new, kept = copies(arrays, args.saves)
    source = Path(tempfile.mkdtemp()) / "state"
    up, down, session = Stopwatch(), Stopwatch(), requests.Session()
    session.trust_env = False
    target = args.store if args.store.startswith("http") else str(args.dir / "bare")
    for number in range(args.saves + 1):
        change(arrays)
        name = f"bare-{os.getpid()}-{number}"  # a name takes one write a second
        with source.open("wb") as file:
            for array in arrays.values():
                file.write(array.data)
        with up:
            upload(source, target, name, session)
        with down:
            download(target, name, source.with_name(f"back-{number}"), session)
        source.with_name(f"back-{number}").unlink()
    report(copy=new, **{"copy warm": kept}, commit=up.seconds[1:], restore=down.seconds[1:])


if __name__ == "__main__":
    main()
