"""Starts a run from another run's state: copies the pinned checkpoint before the first step.

It becomes the run's own checkpoint of step 0, tagged ``init``, and is committed like any other. So
every attempt without a later checkpoint starts from the same bytes, whatever happens to the other
run, and HEAD alone says whether the copy was made.

    InitError   the checkpoint cannot be used; the message is one sentence for people
"""

from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from outlast.base.retry import Patience
from outlast.bucket.commit import Committer
from outlast.bucket.data import PAYER_VARIABLE
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Checkpoint
from outlast.bucket.restore import Restored
from outlast.bucket.store import (
    Damaged,
    Forbidden,
    NotFound,
    Object,
    PayerMissing,
    Store,
    StoreError,
    open_store,
)
from outlast.spec.pin import Pin

TAG = "init"
"""Tag of the checkpoint of step 0 with another run's state."""


class InitError(Exception):
    """The pinned checkpoint cannot be used; the message is one sentence for people."""


def is_init(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is another run's state, taken over before the first step."""
    return TAG in checkpoint.tags and checkpoint.step == 0


def take_over(
    committer: Committer,
    text: str,
    into: Path,
    *,
    place: Callable[[int], Path] | None = None,
    patience: Patience,
    payer: str = "",
) -> Restored:
    """Reads the pinned checkpoint as `Committer.restore` does, verifies every byte, and commits it
    as step 0. Raises InitError, and the errors of commits and stores.

    ``payer``: the project that pays if the other run's bucket lets the requester pay."""
    pin = Pin.parse(text)

    def read(payer: str) -> Path:
        store, root = _store_of(pin, payer)
        return _read(committer, store, root + pin.folder, pin, into, place, patience)

    try:
        try:
            found = read("")
        except PayerMissing:
            if not payer:
                raise InitError(
                    f"init {pin.path}: its bucket lets the requester pay; set outlast:dataPayer to"
                    f" the project that pays, or outside of a VM {PAYER_VARIABLE}"
                ) from None
            found = read(payer)
    except Forbidden as error:
        raise InitError(
            f"init {pin.path}: may not be read by this VM ({error}); run pulumi up again, "
            "or copy that run into this bucket"
        ) from None
    except NotFound as error:
        raise InitError(
            f"init {pin.path}: is no longer a checkpoint ({error}); see what that run keeps "
            "with outlast checkpoints"
        ) from None
    except Damaged as error:
        raise InitError(f"init {pin.path}: {error}; pin another one") from None
    except RestoreError as error:
        raise InitError(f"init {pin.path}: {error}") from None
    checkpoint = committer.commit(found, step=0, tags=[TAG])
    return Restored(found, 0, checkpoint, ())


def _store_of(pin: Pin, payer: str) -> tuple[Store, str]:
    """The store of the other run, and the run's prefix in it."""
    if pin.root.startswith("gs://"):
        bucket, _, prefix = pin.root.removeprefix("gs://").partition("/")
        return open_store(f"gs://{bucket}", payer=payer), prefix
    if "://" in pin.root or not (Path(pin.root) / "HEAD").exists():
        raise InitError(f"init {pin.path}: {pin.root or '.'} holds no run; check the path")
    try:
        return open_store(pin.root, reading=True), ""
    except (StoreError, OSError) as error:
        raise InitError(f"init {pin.path}: cannot be opened ({error})") from None


def _read(
    committer: Committer,
    store: Store,
    path: str,
    pin: Pin,
    into: Path,
    place: Callable[[int], Path] | None,
    patience: Patience,
) -> Path:
    def manifest() -> tuple[bytes, Object]:
        return store.get(f"{path}MANIFEST.json")

    data, found = patience(manifest)
    digest = blake3(data).hexdigest()
    if digest != pin.digest:
        raise InitError(
            f"init {pin.path}: BLAKE3 of its manifest is {digest}, the pinned one is {pin.digest}; "
            "pin the checkpoint again with what outlast checkpoints prints"
        )
    checkpoint = Checkpoint(path, found.generation, digest, 1, 0, ())
    return committer.read_from(store, checkpoint, into, place=place)
