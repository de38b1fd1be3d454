"""Reads and writes records that decide nothing."""

from typing import TypeVar

from outlast.base.codec import Record
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.store import Damaged, NotFound, Object, ReadOnlyStore, Store

AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(store: ReadOnlyStore, path: str, kind: type[AnyRecord]) -> AnyRecord | None:
    """The record at `path`; None if there is none. Raises Damaged if it is not a record."""
    try:
        data, _ = store.get(path)
    except NotFound:
        return None
    try:
        return kind.from_json(data)
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from None


def write_record(store: Store, path: str, record: Record, *, patience: Patience = BRIEF) -> Object:
    """Writes a record that decides nothing, replacing an older one."""
    data = record.to_json()
    return patience(lambda: store.put(path, data))
