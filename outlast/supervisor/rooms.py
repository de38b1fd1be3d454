"""The folders of one attempt: those that its trainer writes to, and those that it reads.

The two are separate. The trainer owns the folders that it writes to. The supervisor writes the
trainer's input into its own folders, so that the trainer cannot replace them with a link in the
meantime."""

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
    """On the same disks, for checkpoints and results that the trainer reads."""
    disk: Path
    """The folder of ``scratch`` for files that may grow: rows, and the files of the result."""
    rows: PlainFile
    """File of the rows; its owner is the user that all the trainer's files must have."""
    logs: Path
    user: TrainerUser | None

    @classmethod
    def of(cls, site: Site, term: int) -> "Rooms":
        """The folders of a term; creates nothing."""
        scratch = [place / f"t{term:06d}" for place in (site.work, *site.scratch)]
        user = site.trainer_user
        # Without its own user, the trainer can replace any folder anyway.
        given = scratch if user is None else [one.with_name(f"g{term:06d}") for one in scratch]
        disk = scratch_space.on_disk(scratch)
        rows = PlainFile(disk, "rows.jsonl", None if user is None else user.uid)
        logs = site.log_dir_of(term) if site.log_dir_of else scratch[0] / "logs"
        return cls(scratch, given, disk, rows, logs, user)

    def clear(self) -> None:
        """Creates empty folders, owned by the supervisor."""
        for folder in dict.fromkeys((*self.scratch, *self.given)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def make(self) -> None:
        """Creates the file of the rows, and then gives the trainer's folders to the trainer."""
        file = self.disk / self.rows.name
        file.touch()
        if self.user is not None:
            self.user.give(file)
            for folder in self.scratch:
                self.user.give(folder)

    def remove(self) -> None:
        """Deletes the folders, except the logs."""
        for folder in (*self.scratch, *self.given):
            shutil.rmtree(folder, ignore_errors=True)

    def hand_over(self, folder: Path) -> None:
        """Gives a folder of ``given`` to the trainer, which may write to it from then on."""
        if self.user is not None:
            self.user.hand_over(folder)

    def choose(self, size: int) -> Path:
        """The folder to read ``size`` bytes into."""
        return scratch_space.choose(self.given, size)

    def place_of(self, folder: str) -> Path | None:
        """The scratch folder that contains a folder of the trainer's; None for any other path."""
        path = Path(folder)
        if path.name in ("", "..") or path.parent not in self.scratch:
            return None
        return path.parent
