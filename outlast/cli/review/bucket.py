"""What a review reads from the bucket: a run's HEAD, and the sizes of its checkpoints."""

from collections import Counter
from collections.abc import Callable

from outlast.bucket import pages
from outlast.bucket.head import Head, HeadError, HeadLost, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import StoreError, Unavailable, open_briefly, open_store
from outlast.cli.review.cost import Sizes
from outlast.cli.review.outcomes import Look, NotRead
from outlast.cli.review.plan import Pin


def looking() -> Callable[[Pin], Look]:
    """A function that reads a run's HEAD from its bucket, for one review: it asks a bucket that did
    not answer only once.
    """
    from google.auth.exceptions import GoogleAuthError

    silent: set[str] = set()

    def look(pin: Pin) -> Look:
        if pin.bucket in silent:
            return NotRead.UNKNOWN
        try:
            return read_head(open_briefly(f"gs://{pin.bucket}"), Layout(pin.prefix, pin.run)).head
        except HeadLost:
            return NotRead.ABSENT
        except Unavailable:
            silent.add(pin.bucket)
            return NotRead.UNKNOWN
        except (HeadError, StoreError, GoogleAuthError, ValueError):
            return NotRead.UNKNOWN

    return look


def sizes(pin: Pin, head: Head) -> Sizes:
    """The sizes of the run's checkpoints; empty if the bucket does not answer."""
    from google.auth.exceptions import GoogleAuthError

    try:
        store, layout = open_store(f"gs://{pin.bucket}"), Layout(pin.prefix, pin.run)
        kept = pages.kept(store, layout, head)
        if kept.lost:
            return ()
        sizes: Counter[str] = Counter()
        for item in store.list(layout.terms):
            if place := layout.folder_of(item.path):
                sizes[place[1]] += item.size
        return tuple(sizes[one.path] for one in kept.chain)
    except (StoreError, GoogleAuthError):
        return ()
