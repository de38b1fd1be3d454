"""Carries out a prune."""

import logging
from collections.abc import Iterable

from outlast.bucket.head import HeadError
from outlast.bucket.pruning import Changed
from outlast.bucket.store import StoreError
from outlast.cli.prune.select import Item

_log = logging.getLogger(__name__)


def delete(items: Iterable[Item]) -> list[str]:
    """Deletes each in order; returns what was not deleted and why, a sentence each."""
    failed: list[str] = []
    for one in items:
        try:
            one.delete()
            _log.info(f"{one.kind} {one.url}: deleted")
        except Changed as error:
            failed.append(f"{one.url}: was changed meanwhile, so it stays ({error})")
        except (HeadError, StoreError) as error:
            failed.append(f"{one.url}: {error}; repeat the prune")
    return failed
