"""Finds a sweep by its file, or by its name in the buckets of this project."""

from pathlib import Path

from outlast.base.suggest import choices
from outlast.bucket import sweeps as objects_of_sweeps
from outlast.bucket.store import NotFound, StoreError
from outlast.bucket.sweeps import SweepObjects
from outlast.cli import experiments
from outlast.cli.errors import CloudError, OperateError, UsageError, about
from outlast.cli.sweep import bring_up, file, states, trials
from outlast.cli.sweep.bring_up import Prepared
from outlast.cli.sweep.states import SweepState
from outlast.spec import sweeps


def is_file(where: str) -> bool:
    """Whether a word names a sweep file, and not a sweep."""
    return where.endswith(file.SUFFIXES) or "/" in where or Path(where).is_file()


def prepared(where: str) -> Prepared:
    """The sweep of a file, or of a name that was up before, with its trials. Raises UsageError and
    OperateError."""
    if is_file(where):
        return bring_up.prepare(file.read(Path(where)), where)
    objects = named(where)
    record = objects.record()
    assert record is not None
    found = file.parse(record.document, f"sweep {where}")
    return bring_up.prepare(found, f"sweep {where}")


def objects_of(asked: Prepared) -> SweepObjects:
    """The sweep's objects, as the base's identity. Raises OperateError."""
    store = experiments.open_bucket(asked.bucket, asked.base.stack)
    return SweepObjects(store, asked.sweep.name)


def found(where: str) -> SweepObjects:
    """The objects of a file's or a named sweep; the file's trials are not computed. Raises
    UsageError and OperateError.
    """
    if not is_file(where):
        return named(where)
    sweep = file.read(Path(where))
    base = trials.read_base(sweep.asked.base, where)
    settings = trials.settings_of(base, sweep.name, {}, where)
    return SweepObjects(experiments.open_bucket(settings.bucket, base.stack), sweep.name)


def named(name: str) -> SweepObjects:
    """A sweep by its name, in the buckets that this project's stacks use. Raises UsageError and
    OperateError.
    """
    if not sweeps.NAME_PATTERN.fullmatch(name):
        raise UsageError(f"sweep {name!r}: {sweeps.NAME_RULE}; name a sweep or its file.")
    known: set[str] = set()
    unread: list[str] = []
    for bucket, stack in experiments.buckets().items():
        try:
            store = experiments.open_bucket(bucket, stack)
            here = objects_of_sweeps.names(store)
            if name in here and (objects := SweepObjects(store, name)).record() is not None:
                return objects
            known.update(here)
        except CloudError:
            raise
        except NotFound:
            continue
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{bucket}", error))
    if unread:  # It may be there.
        raise OperateError("; ".join([f"sweep {name}: was not found", *unread]))
    raise UsageError(f"sweep {name!r}: no bucket of this project has it; {choices(name, known)}.")


def state_if_known(asked: Prepared) -> tuple[SweepState, str]:
    """The same for a preview, which needs no cloud; or an empty state, and why it is not known."""
    try:
        return state_of(objects_of(asked)), ""
    except OperateError as error:
        why = f"which trials have ended is not known: {error}"
        return SweepState(asked.sweep.name, None, {}), why


def state_of(objects: SweepObjects) -> SweepState:
    """How the sweep's trials stand; without a bucket there are none. Raises OperateError."""
    try:
        return states.read(objects)
    except NotFound:
        return SweepState(objects.name, None, {})
    except StoreError as error:
        raise OperateError(about(f"sweep {objects.name}", error)) from None
