"""What all parts of one attempt work with."""

from dataclasses import dataclass

from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.budget import Budget
from outlast.supervisor.jobs import Jobs
from outlast.supervisor.progress import Progress
from outlast.supervisor.rooms import Rooms
from outlast.supervisor.site import Site


@dataclass(frozen=True)
class HeldTerm:
    """A term that this machine holds."""

    spec: RunSpec
    head_file: HeadFile
    site: Site
    rooms: Rooms
    progress: Progress
    committer: Committer
    jobs: Jobs
    budget: Budget
