"""`python -m outlast.supervisor` with a folder for a bucket, and stops at exact operations.

STORE is the folder; FREEZE is a pattern of "verb path": before (or, with FREEZE_AFTER, after) the
first operation that matches, the file FROZEN is written and the process stops itself (SIGSTOP).
"""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import outlast.supervisor.__main__ as entry
from outlast.bucket.store import FolderStore
from outlast.supervisor import on_computer, on_vm


class FreezingStore(FolderStore):
    """A folder whose user is frozen once, in mid-operation."""

    pattern = os.environ.get("FREEZE", "")

    def put(self, path: str, data: Any, *, if_generation_match: int | None = None) -> Any:
        matches = bool(self.pattern) and re.search(self.pattern, f"put {path}") is not None
        if matches and "FREEZE_AFTER" not in os.environ:
            self.freeze()
        written = super().put(path, data, if_generation_match=if_generation_match)
        if matches and "FREEZE_AFTER" in os.environ:
            self.freeze()
        return written

    def freeze(self) -> None:
        self.pattern = ""
        Path(os.environ["FROZEN"]).touch()
        with self._threads:  # no other thread is stopped with the folder's lock in its hand
            # At this thread: sent to the process, another may take it and this one let go before.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def strays_of(bundle: str) -> list[str]:
    """Modules of the bundle's packages that came from elsewhere, as an editable install serves
    them: a machine would not have them."""
    return [
        name
        for name, module in sys.modules.items()
        if name.split(".")[0] == "outlast"
        and not str(getattr(module, "__file__", "")).startswith(f"{bundle}/")
    ]


if "STORE" in os.environ:
    for module in (on_vm, on_computer):
        setattr(module, "open_store", lambda url, **_: FreezingStore(Path(os.environ["STORE"])))  # noqa: B010
if "CRASH" in os.environ:
    for module in (on_vm, on_computer):
        setattr(module, "supervise", lambda boot: 1 // 0)  # noqa: B010
code = entry.main(sys.argv[1:])
bundle = os.environ.get("OUTLAST_BUNDLE_DIR") and os.environ["PYTHONPATH"]
if bundle and (strays := strays_of(bundle)):
    sys.stderr.write(f"not from the bundle: {strays}\n")
    code = 99
entry.leave(code)
