"""Cloud Storage's JSON API, as strict as the real one.

    service      which call goes where, batches, what the rest of the cloud asks
    buckets      buckets, their policies
    objects      reading, listing, changing, deleting, restoring
    uploads      media, multipart and resumable
    copies       compose, copy, rewrite and move
    store        what there is: commits, versions, soft-deleted objects, permissions
    journal      how it is kept
    conditions, content, resources    preconditions; bytes; the JSON of objects

An object's bytes lie in a file named by its generation; its metadata is an entry of a table. An
object exists from the moment that its entry is in the table: bytes are complete before that, and
bytes without an entry are swept at the next start. Checks and the change that they allow happen
without an await between them, so that a compare-and-swap is one.
"""

from outlast.localcloud.storage.service import Storage

__all__ = ["Storage"]
