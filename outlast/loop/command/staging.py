"""Prepares a command's folders, data and environment before it starts."""

import os
from collections.abc import Callable

from outlast.base import exits
from outlast.loop import data
from outlast.loop.command import home
from outlast.loop.command.begun import Begun, begun
from outlast.loop.command.command import Command
from outlast.loop.command.folders import Folders, copy_source
from outlast.loop.command.mark import SOCKET_VARIABLE as MARK_VARIABLE
from outlast.loop.command.marks import Marks
from outlast.loop.command.own_folder import make_ready
from outlast.loop.session import Session
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE, Welcome


class Staging:
    """Prepares one attempt of a command; call its methods in the order in which they are
    defined."""

    def __init__(
        self,
        command: Command,
        places: Folders,
        session: Session,
        welcome: Welcome,
        *,
        is_local: bool,
        interrupted: Callable[[], bool],
    ) -> None:
        """``is_local``: the supervisor is this user's own, started for a folder. ``interrupted``:
        whether the user has asked for the end."""
        self._command = command
        self._places = places
        self._session = session
        self._welcome = welcome
        self._is_local = is_local
        self._interrupted = interrupted
        self._base = 0 if welcome.init else welcome.step
        self.begun: Begun | None = None
        """The beginning of a run in the user's own folder."""

    def clear(self) -> None:
        """Empty the attempt's own folders, and copy the command's files there."""
        places = self._places
        for name in ("checkpoint", "result", "source"):
            home.remove(places.home / name)
            (places.home / name).mkdir()
        if self._command.source is not None:
            copy_source(self._command.source, places.home / "source")

    def make_ready(self, *, restores: bool) -> None:
        """Prepare the user's own folders; a VM's are fresh in every attempt."""
        command, term = self._command, self._welcome.term
        own = self._places.checkpoint if command.checkpoint_dir else None
        if command.cwd is not None:
            is_first = term == 1 and not restores
            self.begun = begun(self._places.home.parent, own, is_first=is_first)
        if own is not None:
            before = {} if self.begun is None else self.begun.own_files
            is_copy = command.source is not None
            moved = make_ready(own, attempt=term, restores=restores, is_copy=is_copy, before=before)
            if moved:
                say(moved)

    def find_data(self) -> None:
        """Find the data, which the supervisor fetches once a boot, or fetch it into this user's
        cache."""
        found = {path: data.find(path, self._wait_for_data) for path in self._command.data}
        used = data.take_used()
        if self._is_local:  # else the supervisor already knows it
            for path, place in used.items():
                self._session.fetch(path, place, stopped=self._interrupted)
        if len(found) == 1:
            (self._places.data,) = found.values()
            return
        self._places.data = self._places.home / "data"
        home.remove(self._places.data)
        self._places.data.mkdir()
        for path, place in found.items():
            link = self._places.data / path.rstrip("/").rpartition("/")[2]
            link.symlink_to(place.absolute())

    def _wait_for_data(self) -> None:
        """Give a sign of life; a stop before the command's start loses nothing."""
        self._session.poll()
        if self._session.stop_in_sec is not None or self._interrupted():
            raise SystemExit(exits.INTERRUPTED)
        self._session.tick(self._base, "staging")

    def environment(self, marks: Marks) -> dict[str, str]:
        welcome, command = self._welcome, self._command
        environment = dict(os.environ)
        if environment.pop(SOCKET_VARIABLE, None):
            # The command must not find the supervisor's own code.
            environment.pop("PYTHONPATH", None)
            environment.pop("OUTLAST_BUNDLE_DIR", None)
        path = [str(marks.programs)]
        if command.programs is not None:
            path.append(str(command.programs))
            environment["VIRTUAL_ENV"] = str(command.programs.parent)
        path.append(environment.get("PATH", os.defpath))
        return {
            **environment,
            **welcome.environment(),
            "CHECKPOINT_DIR": str(self._places.checkpoint),
            "RESULT_DIR": str(self._places.result),
            "DATA_DIR": str(self._places.data.absolute()),
            "OUTPUT_URI": f"{welcome.run_url}output",
            "PATH": os.pathsep.join(path),
            MARK_VARIABLE: str(marks.path),
        }
