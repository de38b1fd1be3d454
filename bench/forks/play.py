"""One point: the group creates VMs until the run has ended."""

from dataclasses import dataclass, field
from pathlib import Path

from bench.forks.points import Point
from bench.forks.probe import Blow, Kind, Probe, WatchedStore
from bench.forks.scenes import RUN_SEC, Scene
from bench.forks.vm import LAYOUT, Place, Vm

MOST_VMS = 6
"""More than any point needs."""


@dataclass
class Played:
    """What a point's run was and left."""

    point: Point
    place: Place
    hit: bool = False
    vms: list[Vm] = field(default_factory=list)
    steps: int = 0
    """The last step that was made when the first VM ended or was frozen."""
    woken: bool = False
    """Whether the zombie came back, or the late request arrived."""
    late: str = ""
    """Whether the late request was applied or refused, and why."""
    wrong: list[str] = field(default_factory=list)
    """What went wrong while it was played, in words."""


def play(scene: Scene, point: Point, folder: Path) -> Played:
    """Plays the point in a new folder."""
    played = Played(point, scene.new_place(folder))
    try:
        _play(scene, played)
    except TimeoutError as error:
        played.wrong.append(str(error))
    finally:
        for vm in played.vms:
            vm.destroy()
    return played


def _play(scene: Scene, played: Played) -> None:
    point, place = played.point, played.place
    first = _boot(scene, played, point.blow)
    ended = first.wait(RUN_SEC)
    played.hit = bool(first.board.hit)
    played.steps = first.board.steps
    due = not ended or (point.blow.kind is Kind.KILL_LATE and played.hit)
    while place.member.exists() and len(played.vms) < MOST_VMS:
        pause = None
        if due and point.wake is not None:
            name, nth, after = point.wake
            pause = Blow(name, nth, after, Kind.ZOMBIE)
        vm = _boot(scene, played, pause)
        if not vm.wait(RUN_SEC):
            _wake(played, first)
            due = False
            vm.wake()
            if not vm.wait(RUN_SEC):
                raise TimeoutError(f"VM {vm.name} was stopped twice")
    if due:
        _wake(played, first)
    if place.member.exists():
        played.wrong.append(f"the run has not ended after {len(played.vms)} VMs")


def _boot(scene: Scene, played: Played, blow: Blow | None) -> Vm:
    vm = Vm(played.place, f"vm{len(played.vms) + 1}", scene.program, blow)
    played.vms.append(vm)
    return vm


def _wake(played: Played, first: Vm) -> None:
    """The zombie continues, to its end; or the late request arrives."""
    played.woken = True
    if played.point.blow.kind is Kind.ZOMBIE:
        first.wake()
        if not first.wait(RUN_SEC):
            raise TimeoutError(f"VM {first.name} was stopped twice")
        return
    place = played.place
    probe = Probe(first.board, None, lambda name: None, lambda: None, lambda number: None)
    store = WatchedStore(place.bucket, LAYOUT.root, probe, first.name, place.journal)
    played.late = store.apply_late()
