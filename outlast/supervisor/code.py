"""Prepares the code before the trainer starts: its folder, fetched from git if the settings say so,
and the environment with its packages.

    CodeRefused      the same try fails again, on every machine; one sentence for people
    CodeUnavailable a later try or another machine may succeed
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from outlast.base.retry import Patience
from outlast.spec.delivery import Git
from outlast.spec.git_host import GitRefused, GitUnreachable
from outlast.supervisor import git as fetching
from outlast.supervisor import subprocesses
from outlast.supervisor.environment import Builder, EnvironmentRefused, EnvironmentUnreachable
from outlast.supervisor.secrets import SecretRefused, SecretUnavailable, TrainerSecrets

_log = logging.getLogger(__name__)


SOURCE = "source"
"""Folder of the bundle with the run's own files."""
PACKAGE = "package"
"""Folder of the bundle with a project whose packages are needed."""
REQUIREMENTS = "requirements/user.txt"
"""File of the bundle with the trainer's requirements."""


class CodeRefused(Exception):
    """The code that the settings name cannot be used."""


class CodeUnavailable(Exception):
    """The code is not available here and now."""


@dataclass(frozen=True)
class Code:
    """The code that a trainer or command is started from."""

    source: Path | None = None
    """Folder with its own files; None for one of the bundle's trainers or a command in the
    image.
    """
    folder: str = ""
    """The working folder, below `source`."""
    programs: Path | None = None
    """Programs of the code's environment."""


@dataclass(frozen=True)
class CodeSetup:
    """Folders for preparing code on this machine."""

    bundle: Path
    home: Path
    """Kept between boots; every folder in it is complete."""
    secrets: TrainerSecrets
    builder: Builder
    patience: Patience

    def prepare(self, git: Git | None) -> Code:
        """Prepares the secrets, the code and its packages. `git` is None if the code is in the
        bundle. Raises CodeRefused, CodeUnavailable, and whatever `clock.sleep` raises on a stopping
        machine."""
        try:
            self.secrets.load()
            if git is None:
                source = self.bundle / SOURCE
                code = Code(source if source.is_dir() else None)
                need, root = self._delivered(), None
            else:
                code = Code(self._fetched(git), git.path)
                need, root = self._needed(git), self._place(git)
            if need is None:
                return code
            programs = self.builder.ensure(need, root, git)
        except (GitRefused, EnvironmentRefused, SecretRefused) as error:
            raise CodeRefused(str(error)) from None
        except (EnvironmentUnreachable, SecretUnavailable, subprocesses.Stuck, OSError) as error:
            # A stuck process is not retried: half an hour is already lost.
            raise CodeUnavailable(str(error)) from None
        return Code(code.source, code.folder, programs)

    def _delivered(self) -> Path | None:
        for name in (PACKAGE, REQUIREMENTS):
            if (self.bundle / name).exists():
                return self.bundle / name
        return None

    def _needed(self, git: Git) -> Path | None:
        if not git.requirements:
            return None
        place = self._place(git) / git.path / git.requirements
        if not place.exists():
            raise CodeRefused(
                f"requirements {git.requirements}: is not in {git.path or 'the repository'} at"
                f" commit {git.commit}; set outlast:requirements"
            )
        return place

    def _place(self, git: Git) -> Path:
        return self.home / "git" / git.commit

    def _fetched(self, git: Git) -> Path:
        place = self._place(git)
        if not place.is_dir():
            secret = self.secrets.reader.read("gitSecret", git.secret) if git.secret else None
            try:
                self.patience(
                    lambda: fetching.fetch(git, secret, place, pause=self.patience.clock.sleep),
                    "code",
                )
            except GitUnreachable as error:
                raise CodeUnavailable(str(error)) from None
            _log.info(f"code: commit {git.commit} of {git.url}")
        if not (place / git.path).is_dir():
            raise CodeRefused(
                f"gitPath {git.path}: is not a folder of commit {git.commit}; set outlast:gitPath"
            )
        return place
