"""The supervisor of a folder with another store: STORE names it. Counts its requests in COUNTS."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import outlast.supervisor.__main__ as entry
from outlast.bucket.store import open_store
from outlast.supervisor import on_computer, on_vm


def count_requests(path: Path) -> None:
    """Keep the number of HTTP requests that this process sent in a file."""
    from requests.adapters import HTTPAdapter

    sent, part = HTTPAdapter.send, path.with_suffix(".part")
    count, turn = 0, threading.Lock()

    def send(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        with turn:
            count += 1
            part.write_text(str(count))
            part.replace(path)
        return sent(*arguments, **named)

    HTTPAdapter.send = send


if __name__ == "__main__":
    if os.environ["STORE"].startswith("gs:"):
        count_requests(Path(os.environ["COUNTS"]))

    def other_store(url: str, **named: Any) -> Any:
        return open_store(os.environ["STORE"], **named)

    setattr(on_computer, "open_store", other_store)  # noqa: B010
    setattr(on_vm, "open_store", other_store)  # noqa: B010
    code = entry.main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
