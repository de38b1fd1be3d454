"""Stores: objects with generations in a bucket, a folder or memory, with one contract
(`contract.py`).
"""

import re
import urllib.parse
from pathlib import Path
from typing import Any

from outlast.base.retry import LIBRARY_SEC
from outlast.bucket.store.contract import (
    CHUNK_BYTES,
    GET_BYTES_MAX,
    PIECE_BYTES,
    STALL_SEC,
    BucketStore,
    Checksum,
    Damaged,
    Data,
    Doubtful,
    Forbidden,
    Foreign,
    NotFound,
    Object,
    PayerMissing,
    PreconditionFailed,
    ReadOnlyStore,
    Sink,
    Slice,
    Store,
    StoreError,
    Throttled,
    TooLarge,
    Unavailable,
    Unsupported,
    check_path,
    checksum_of,
    copy_new,
    delete_quietly,
    put_new,
)
from outlast.bucket.store.folder import FolderStore
from outlast.bucket.store.gcs import GcsStore
from outlast.bucket.store.memory import Around, MemoryStore, Operation

__all__ = [
    "Around",
    "BucketStore",
    "CHUNK_BYTES",
    "Checksum",
    "Damaged",
    "Data",
    "Doubtful",
    "FolderStore",
    "GET_BYTES_MAX",
    "Forbidden",
    "Foreign",
    "GcsStore",
    "MemoryStore",
    "NotFound",
    "Object",
    "Operation",
    "PIECE_BYTES",
    "PayerMissing",
    "PreconditionFailed",
    "ReadOnlyStore",
    "STALL_SEC",
    "Sink",
    "Slice",
    "Store",
    "StoreError",
    "Throttled",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "check_path",
    "checksum_of",
    "copy_new",
    "delete_quietly",
    "open_briefly",
    "open_store",
    "put_new",
]


def open_store(
    url: str,
    *,
    credentials: Any = None,
    stall_sec: float = STALL_SEC,
    read_retry_sec: float = LIBRARY_SEC,
    reading: bool = False,
    payer: str = "",
) -> Store:
    """The store behind `gs://bucket`, a folder's path, `file:///folder` or `memory:`.

    Credentials are those of google-auth; None uses the machine's own. They apply only to `gs://`,
    like `stall_sec`, `read_retry_sec` (for how long a read retries by itself) and `payer` (the
    project that pays for the requests; empty: the bucket's own). `reading` applies
    only to folders: nothing is created there before the first write.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "gs":
        bucket = rest.removeprefix("//").rstrip("/")
        if not bucket or "/" in bucket:
            raise StoreError(f"store {url!r}: must be gs:// and a bucket's name, without a path")
        from google.auth.exceptions import GoogleAuthError

        try:
            return GcsStore(
                bucket,
                credentials=credentials,
                stall_sec=stall_sec,
                read_retry_sec=read_retry_sec,
                payer=payer,
            )
        except GoogleAuthError as error:
            raise Forbidden(
                f"gs://{bucket}: there are no credentials ({error}); run gcloud auth "
                "application-default login"
            ) from None
    if scheme == "file":
        return FolderStore(Path(urllib.parse.unquote(rest.removeprefix("//"))), reading=reading)
    if url == "memory:":
        return MemoryStore()
    if re.match(r"[a-z][a-z0-9+]*://", url):
        raise StoreError(f"store {url!r}: must be gs://bucket, a folder or memory:")
    return FolderStore(Path(url), reading=reading)


def open_briefly(url: str) -> Store:
    """The same for a preview, which does not wait for a bucket that does not answer: a read ends
    after three seconds. A preview asks three times, and promises ten seconds (docs/changes.md).
    """
    return open_store(url, stall_sec=1.5, read_retry_sec=1.0)
