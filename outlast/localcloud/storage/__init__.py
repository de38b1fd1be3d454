"""Cloud Storage's JSON API, as strict as the real one.

    service      routes, batches, and the interface for the rest of the cloud
    buckets      buckets and their policies
    objects      reading, listing, changing, deleting, restoring
    uploads      media, multipart and resumable
    copies       compose, copy, rewrite and move
    store        the state: commits, versions, soft-deleted objects, permissions
    journal      its file
    conditions, content, resources    preconditions; bytes; the JSON of objects

An object's bytes are in a file named by its generation; its metadata is an entry of a table. An
object exists once its entry is in the table: its bytes are complete before that, and bytes without
an entry are deleted at the next start. There is no await between a check and the change that it
allows, so that a compare-and-swap is atomic."""

from outlast.localcloud.storage.service import Storage

__all__ = ["Storage"]
