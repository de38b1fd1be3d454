"""The folders of one attempt: those that its trainer writes to, and those that it reads.

The two are apart. The trainer owns the folders that it writes to; what the supervisor writes for it
lies in folders of the supervisor's, which the trainer cannot exchange for a link while they are
written.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base import scratch_space
from outlast.base.plain_files import PlainFile
from outlast.supervisor.site import Site
from outlast.supervisor.trainer_user import TrainerUser


@dataclass(frozen=True)
class Rooms:
    """Folders of an attempt."""

    scratch: Sequence[Path]
    """For the trainer's snapshots, the preferred one first."""
    given: Sequence[Path]
    """On the same disks, for checkpoints and results that are read for the trainer."""
    disk: Path
    """The one of ``scratch`` for what may grow: rows, and the files of the result."""
    rows: PlainFile
    """File of the rows; its owner is the user that all the trainer's files must have."""
    logs: Path
    user: TrainerUser | None

    @classmethod
    def of(cls, site: Site, term: int) -> "Rooms":
        """Those of a term; nothing is made."""
        scratch = [place / f"t{term:06d}" for place in (site.work, *site.scratch)]
        user = site.trainer_user
        # Without its own user the trainer can exchange any folder anyway.
        given = scratch if user is None else [one.with_name(f"g{term:06d}") for one in scratch]
        disk = scratch_space.on_disk(scratch)
        rows = PlainFile(disk, "rows.jsonl", None if user is None else user.uid)
        logs = site.log_dir_of(term) if site.log_dir_of else scratch[0] / "logs"
        return cls(scratch, given, disk, rows, logs, user)

    def clear(self) -> None:
        """Makes the folders, empty; they are still the supervisor's."""
        for folder in dict.fromkeys((*self.scratch, *self.given)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def make(self) -> None:
        """Makes the file of the rows, and then the trainer's folders the trainer's."""
        file = self.disk / self.rows.name
        file.touch()
        if self.user is not None:
            self.user.give(file)
            for folder in self.scratch:
                self.user.give(folder)

    def remove(self) -> None:
        """Deletes all but the logs."""
        for folder in (*self.scratch, *self.given):
            shutil.rmtree(folder, ignore_errors=True)

    def hand_over(self, folder: Path) -> None:
        """Makes what was read into ``given`` the trainer's, which may write to it from then on."""
        if self.user is not None:
            self.user.hand_over(folder)

    def choose(self, size: int) -> Path:
        """Where to read so many bytes to."""
        return scratch_space.choose(self.given, size)

    def place_of(self, folder: str) -> Path | None:
        """The scratch folder in which a folder of the trainer's lies; None for any other path."""
        path = Path(folder)
        if path.name in ("", "..") or path.parent not in self.scratch:
            return None
        return path.parent
