"""A store in a Cloud Storage bucket."""

import contextlib
import io
import math
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from outlast.base.retry import LIBRARY_SEC, RETRY_AFTER_MAX_SEC
from outlast.bucket.store.contract import (
    CHUNK_BYTES,
    GET_BYTES_MAX,
    PIECE_BYTES,
    STALL_SEC,
    Checksum,
    Damaged,
    Data,
    Doubtful,
    Fetching,
    Forbidden,
    NotFound,
    Object,
    PayerMissing,
    PreconditionFailed,
    Sink,
    StoreError,
    Throttled,
    Unavailable,
    check_path,
    checksum_of,
    not_found,
    opened,
    too_large,
    whole_range,
)
from outlast.cloud import credentials as identity

T = TypeVar("T")


class GcsStore(Fetching):
    """A bucket through google-cloud-storage; honours STORAGE_EMULATOR_HOST."""

    streams = 4
    rewrite_sec = 1.0  # Cloud Storage accepts one write a second of the same name.

    _NO_RETRY: Any = None
    _NO_CHECKSUM: Any = None

    def __init__(
        self,
        bucket: str,
        *,
        credentials: Any = None,
        stall_sec: float = STALL_SEC,
        read_retry_sec: float = LIBRARY_SEC,
        payer: str = "",
    ) -> None:
        """``payer``: the project that pays for the requests; empty: the bucket's own."""
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        # Otherwise the client requests the bucket in a background thread, for traces that nothing
        # collects: the VM's service account may not do that.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        self.url = f"gs://{bucket}"
        self._server: tuple[datetime, float] | None = None
        # Seconds to connect and send a chunk, and to wait for an answer; the client passes the pair
        # to requests. A stalled upload ends with the first.
        self._timeout: Any = (stall_sec, 2 * stall_sec)
        self._read_retry: Any = _Obedient(DEFAULT_RETRY.with_timeout(read_retry_sec))
        self._chunk_retry: Any = _Obedient(DEFAULT_RETRY.with_timeout(LIBRARY_SEC))
        credentials = credentials or identity.for_storage()
        if isinstance(credentials, AnonymousCredentials):
            session = _anonymous_session()
        else:
            session = AuthorizedSession(credentials)
        self._last = threading.local()
        session.hooks["response"].append(self._note)
        self._session = session
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        options = ClientOptions(api_endpoint=emulator) if emulator else None
        if emulator:
            # On loopback there are no proxies, whose look-up takes a third of a small read.
            session.trust_env = False
        self._client = storage.Client(
            project="outlast", credentials=credentials, _http=session, client_options=options
        )
        self._bucket = self._client.bucket(bucket, user_project=payer or None)

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        content = _Record(path)
        found = self.stream(path, content, generation=generation)
        return content.getvalue(), found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        counted = _Counted(sink)

        def download(blob: Any) -> None:
            # The client's limit counts from the start of its call, which a large object outlasts:
            # each time that bytes have arrived, it counts again, from where they end.
            while True:
                start = counted.checksum.size
                try:
                    with self._mapped(path):
                        self._download(blob, counted, start)
                    return
                except Unavailable:
                    if counted.checksum.size == start:
                        raise
                    if counted.checksum.size >= self._size_of_last():
                        return

        found = self._read(path, generation, download)
        if (counted.checksum.size, counted.checksum.crc32c) != (found.size, found.crc32c):
            raise Damaged(f"{path}: the bytes that arrived do not match its CRC32C or size")
        return found

    def _download(self, blob: Any, sink: Sink, start: int) -> None:
        """Streams an object from byte `start`; the client retries for a limited time."""
        blob.download_to_file(
            sink,
            start=start or None,
            raw_download=True,
            # The client does not verify a download that it resumed, so `stream` verifies all of it.
            checksum=self._NO_CHECKSUM,
            timeout=self._timeout,
            retry=self._read_retry,
        )

    def _size_of_last(self) -> float:
        """The size of the object of this thread's last answer; infinite if it does not say."""
        size = self._last.headers.get("X-Goog-Stored-Content-Length")
        return int(size) if size else math.inf

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        blob = self._bucket.blob(check_path(path), generation=generation)
        with self._named(path), self._mapped(path):
            data = blob.download_as_bytes(
                start=start,
                end=start + size - 1,
                raw_download=True,
                checksum=self._NO_CHECKSUM,
                timeout=self._timeout,
                retry=self._read_retry,
            )
        return whole_range(path, data, start, size)

    def stat(self, path: str) -> Object:
        with self._named(path):
            return self._stat(path)

    def _stat(self, path: str) -> Object:
        blob = self._bucket.blob(check_path(path))
        with self._mapped(path):
            blob.reload(timeout=self._timeout, retry=self._read_retry)
        return _object(blob)

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        blob = self._bucket.blob(check_path(path), chunk_size=CHUNK_BYTES)
        size, crc32c = checksum_of(data)
        blob.crc32c = crc32c  # The server refuses bytes that do not match it.
        # Large objects are uploaded in chunks, which the client may send again: the session knows
        # which it has.
        with self._mapped(path), opened(data) as file:
            blob.upload_from_file(
                file,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=if_generation_match,
                checksum=self._NO_CHECKSUM,
                timeout=self._timeout,
                retry=self._NO_RETRY if size <= CHUNK_BYTES else self._chunk_retry,
            )
        written = _object(blob)
        if (written.size, written.crc32c) != (size, crc32c):
            raise Damaged(
                f"{path}: arrived with size {written.size} and CRC32C {written.crc32c}, "
                f"but {size} and {crc32c} were sent"
            )
        return written

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        origin = self._bucket.blob(check_path(source), generation=source_generation)
        with self._named(source):
            return self._rewrite(origin, self._bucket.blob(check_path(to)), if_generation_match)

    def take(self, origin: "GcsStore", source: Object, *, if_generation_match: int) -> Object:
        blob = self._bucket.blob(check_path(source.path))
        blob.content_type = "application/octet-stream"
        blob.custom_time = source.updated
        theirs = origin._bucket.blob(source.path, generation=source.generation)
        return self._rewrite(theirs, blob, if_generation_match)

    def _rewrite(self, origin: Any, blob: Any, if_generation_match: int | None) -> Object:
        token = None
        with self._mapped(blob.name):
            while True:
                token, _, _ = blob.rewrite(
                    origin,
                    token=token,
                    if_generation_match=if_generation_match,
                    if_source_generation_match=origin.generation,
                    timeout=self._timeout,
                    retry=self._NO_RETRY,
                )
                if token is None:
                    return _object(blob)

    def delete(self, path: str, *, generation: int) -> None:
        # No generation in the name, so that another one is refused instead of absent.
        blob = self._bucket.blob(check_path(path))
        with self._named(path), self._mapped(path):
            blob.delete(if_generation_match=generation, timeout=self._timeout, retry=self._NO_RETRY)

    def list(self, prefix: str, *, glob: str = "") -> Iterator[Object]:
        # `matchGlob` of Objects: list (its page, read in November 2026).
        more = {"match_glob": glob} if glob else {}
        with self._listing(prefix, **more) as blobs:
            return iter(sorted((_object(blob) for blob in blobs), key=lambda found: found.path))

    def folders(self, prefix: str) -> Iterator[str]:
        with self._listing(prefix, delimiter="/") as blobs:
            for _ in blobs:  # The folders come with the pages.
                pass
            return iter(sorted(path[len(prefix) : -1] for path in blobs.prefixes))

    @contextlib.contextmanager
    def _listing(self, prefix: str, **more: Any) -> Iterator[Any]:
        try:
            with self._mapped(prefix):
                yield self._client.list_blobs(
                    self._bucket,
                    prefix=prefix,
                    timeout=self._timeout,
                    retry=self._read_retry,
                    **more,
                )
        except NotFound:  # A prefix without objects is an empty list.
            raise NotFound(
                f"{self.url}: there is no such bucket; create it, or name another"
            ) from None

    def now(self) -> datetime:
        if self._server is None:
            with contextlib.suppress(NotFound, Forbidden):
                self._stat("outlast-clock")
        if self._server is None:
            raise Unavailable(f"{self.url}: the server's answer had no Date")
        moment, at = self._server
        return moment + timedelta(seconds=time.monotonic() - at)

    def _note(self, response: Any, *_: Any, **__: Any) -> None:
        self._last.headers = response.headers
        if response.raw is not None:
            _widen(response.raw)
        try:
            moment = parsedate_to_datetime(response.headers["Date"])
        except (KeyError, ValueError, TypeError):
            return
        self._server = (moment.astimezone(UTC), time.monotonic())

    def _read(self, path: str, generation: int | None, download: Callable[[Any], None]) -> Object:
        """Downloads exactly one generation and says which."""
        if generation is not None:
            with self._named(path), self._mapped(path):
                download(self._bucket.blob(check_path(path), generation=generation))
            return self._answered(path, generation)
        for _ in range(8):
            found = self.stat(path)
            try:
                with self._named(path), self._mapped(path):
                    download(self._bucket.blob(path, generation=found.generation))
                return found
            except NotFound:
                continue  # It was rewritten meanwhile; the next try sees the new one.
        raise Unavailable(f"{path}: was rewritten during each of eight reads")

    def _answered(self, path: str, generation: int) -> Object:
        """The object's description from this thread's last download."""
        headers = self._last.headers
        hashes = (item.strip().partition("=") for item in headers.get("X-Goog-Hash", "").split(","))
        crc32c = {kind: value for kind, _, value in hashes}.get("crc32c")
        size = headers.get("X-Goog-Stored-Content-Length")
        since = headers.get("Last-Modified")
        named = headers.get("X-Goog-Generation") == str(generation)
        if not (crc32c and size and since and named):
            # A download that continued after a cut may say less.
            found = self.stat(path)
            if found.generation != generation:
                raise not_found(path, generation)
            return found
        updated = parsedate_to_datetime(since).astimezone(UTC)
        return Object(path, generation, int(size), crc32c, updated)

    @contextlib.contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Converts a Forbidden for an object that is absent to NotFound.

        Cloud Storage answers 404 for an absent object only to a caller with storage.objects.list,
        and 403 to others (page "Objects: get", read in November 2026). Whether a list counts that a
        binding's condition allows for a prefix is documented nowhere, so a list with the exact name
        decides.
        """
        try:
            yield
        except Forbidden as refused:
            if not self._is_absent(path):
                raise
            raise NotFound(f"{path}: no such object in {self.url} ({refused})") from refused

    def _is_absent(self, path: str) -> bool:
        """Whether a list is allowed and lacks the object. The exact name is the first with that
        prefix, because names are listed in order.
        """
        try:
            with self._listing(path, max_results=1) as blobs:
                return not any(blob.name == path for blob in blobs)
        except StoreError:
            return False

    @contextlib.contextmanager
    def _mapped(self, path: str) -> Iterator[None]:
        """Converts the client's exceptions into StoreErrors."""
        import requests
        from google.api_core import exceptions as api
        from google.auth import exceptions as auth
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        try:
            yield
        except api.RetryError as error:
            status = getattr(error.cause, "code", None)
            status = getattr(getattr(error.cause, "response", None), "status_code", status)
            raise _error_of_status(path, status, error) from error
        except api.GoogleAPICallError as error:
            raise _error_of_status(path, error.code, error) from error
        except InvalidResponse as error:
            raise _error_of_status(path, error.response.status_code, error) from error
        except DataCorruption as error:
            raise Damaged(f"{path}: {error}") from error
        except (requests.exceptions.RequestException, auth.GoogleAuthError) as error:
            raise Unavailable(f"{path}: {_in_short(error)}") from error
        except (ConnectionError, TimeoutError) as error:
            raise Unavailable(f"{path}: {error}") from error


def _object(blob: Any) -> Object:
    if blob.generation is None or blob.size is None or not blob.crc32c or blob.updated is None:
        raise Unavailable(f"{blob.name}: the answer lacks generation, size, CRC32C or time")
    written = min(blob.updated, blob.custom_time or blob.updated)  # `take` keeps an earlier time
    return Object(
        blob.name, int(blob.generation), int(blob.size), blob.crc32c, written.astimezone(UTC)
    )


NO_PAYER = "requester pays"
"""What Cloud Storage says with a 400 for a bucket that lets the requester pay."""


def _error_of_status(path: str, status: int | None, error: Exception) -> StoreError:
    if status == 400 and NO_PAYER in str(error):
        return PayerMissing(f"{path}: {_in_short(error)}")
    kinds: dict[int | None, type[StoreError]] = {
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        400: Doubtful,
        409: Doubtful,
        412: PreconditionFailed,
        429: Throttled,
        408: Unavailable,
        None: Unavailable,
    }
    kind = kinds.get(status, Unavailable if (status or 0) >= 500 else StoreError)
    if status in (404, 410) and _is_upload_session(error):
        # Cloud Storage sometimes forgets a session; the next try opens another.
        kind = Unavailable
    found = kind(f"{path}: {_in_short(error)}")
    found.retry_after_sec = _retry_after(error)
    _close_answer(error)
    return found


def _in_short(error: Any) -> str:
    """An error in words: for a connection, where to and why, without the request."""
    import requests

    cause = getattr(error, "cause", None) or error
    if not isinstance(cause, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
        return str(cause)
    asked = getattr(getattr(cause, "request", None), "url", None)
    to = urllib.parse.urlsplit(asked).netloc if asked else "the server"
    if isinstance(cause, requests.exceptions.Timeout):
        return f"no answer from {to}"
    why = re.search(r"\[Errno [-0-9]+\] [^'\")]+", str(cause))
    return f"the connection to {to} failed ({why[0] if why else type(cause).__name__})"


def _is_upload_session(error: Any) -> bool:
    """Whether the answer is for a chunk of a large object, not for the request that opened the
    session.
    """
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    request = getattr(response, "request", None)
    return request is not None and request.method == "PUT" and "upload_id=" in (request.url or "")


def _close_answer(error: Any) -> None:
    """Releases the connection of an answer that the client did not read to the end."""
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    if response is not None:
        response.close()


def _retry_after(error: Any) -> float | None:
    """The pause in seconds that an answer asks for, given as a number or a time; else None."""
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    text = getattr(response, "headers", {}).get("Retry-After", "")
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return None


class _Obedient:
    """The client's own retry, extended by the pause that the server asked for."""

    def __init__(self, retry: Any) -> None:
        self._retry = retry

    def __call__(self, call: Callable[..., T]) -> Callable[..., T]:
        return self._retry(call, on_error=self._pause)

    def _pause(self, error: Exception) -> None:
        _close_answer(error)
        time.sleep(min(_retry_after(error) or 0.0, RETRY_AFTER_MAX_SEC))


def _widen(raw: Any) -> None:
    """Returns an answer's body in larger pieces: the client's 8 KiB at a time would take longer
    than the transfer.
    """
    stream = raw.stream

    def wide(amt: int = 0, decode_content: bool | None = None) -> Iterator[bytes]:
        return stream(max(amt, PIECE_BYTES), decode_content=decode_content)

    raw.stream = wide


class _Record(io.BytesIO):
    """A sink for a whole object, limited to the size of a record."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > GET_BYTES_MAX:
            raise too_large(self._path)
        return super().write(data)


class _Counted:
    """A sink that computes the checksum of what it received."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.checksum = Checksum()

    def write(self, data: bytes) -> int:
        self.checksum.update(data)
        self._sink.write(data)
        return len(data)


def _anonymous_session() -> Any:
    import requests

    return requests.Session()
