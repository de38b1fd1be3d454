"""The played events: the list for the rehearsal, and the cloud's event log."""

import time
from collections.abc import Mapping
from typing import Any

from outlast.localcloud.base.state import Entry, EventLog
from outlast.localcloud.scenarios.lives import Life


class Played:
    """The entries of a scenario, in order."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self.entries: list[Entry] = []

    def note(
        self, event: int | None, do: str, life: Life | None, options: Mapping[str, Any]
    ) -> Entry:
        """Records an event before it happens; returns the entry."""
        entry = {
            **{key: value for key, value in options.items() if value is not None},
            "time": time.time(),
            "event": event,
            "do": do,
            "vm": life.name if life else None,
            "instance_id": life.id if life else None,
            "attempt": life.term if life else None,
            "boot": life.boot if life else None,
            "step": life.step if life else None,
        }
        self.entries.append(entry)
        self._events.write("scenario-event", **entry)
        return entry

    def begun(self, life: Life) -> None:
        """Adds a VM's attempt to what hit it before that attempt began, such as a notice."""
        for entry in self.entries:
            same = (entry["instance_id"], entry["boot"]) == (life.id, life.boot)
            if same and entry["attempt"] is None:
                entry["attempt"] = life.term
