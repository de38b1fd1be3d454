"""Fetches data for one attempt's trainer in threads, and reports to the attempt.

The attempt's one thread decides; what happens here arrives in its inbox as the events below. A
trainer waits for its answer while the attempt sees signs of life: a long download is not a stall.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from outlast.bucket.data import DataChanged, DataError, DataService
from outlast.bucket.head import DataFingerprint
from outlast.protocol import Error, Fetch, Fetched, Message
from outlast.supervisor.listener import Post

_log = logging.getLogger(__name__)

SAY_SEC = 30.0
PHASE = "staging"
"""Phase of an attempt that waits for its data."""

Answer = Callable[[Message], None]


@dataclass(frozen=True)
class Sign:
    """Event: a download makes progress."""


@dataclass(frozen=True)
class Staged:
    """Event: data is on this machine; its fingerprint is not in HEAD yet."""

    fingerprint: DataFingerprint


@dataclass(frozen=True)
class Refused:
    """Event: the data cannot be used; the trainer gets the same error."""

    error: Error


@dataclass(frozen=True)
class Unanswered:
    """Event: the store gives no usable answer, or this machine's disk fails."""

    error: Exception


@dataclass(frozen=True)
class Answered:
    """Event: a request was answered, in any way."""


class Staging:
    """Serves the data requests of one attempt's trainer. Only the attempt's one thread may call
    ``ask`` and ``over``."""

    def __init__(self, data_service: DataService, post: Post) -> None:
        self._data_service = data_service
        self._post = post
        self._asked = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def under_way(self) -> bool:
        """Whether any request is unanswered."""
        return self._asked > 0

    @property
    def seconds(self) -> float:
        """Seconds that the trainer has waited for data."""
        waiting = time.monotonic() - self._since if self._asked else 0.0
        return self._seconds + waiting

    def ask(self, request: Fetch, answer: Answer) -> None:
        """Starts to answer a request; ``answer`` is called from another thread."""
        if not self._asked:
            self._since = time.monotonic()
        self._asked += 1
        threading.Thread(
            target=self._serve, args=(request, answer), name="staging", daemon=True
        ).start()

    def over(self) -> None:
        """Notes that one request was answered."""
        self._asked -= 1
        if not self._asked:
            self._seconds += time.monotonic() - self._since

    def _serve(self, request: Fetch, answer: Answer) -> None:
        said_at = time.monotonic()

        def progress(done: int, of: int) -> None:
            nonlocal said_at
            self._post(Sign())
            if of and time.monotonic() - said_at >= SAY_SEC:
                said_at = time.monotonic()
                _log.info(f"data {request.url}: {done} of {of} bytes")

        self._post(Sign())
        try:
            found = self._data_service.answer(request.url, request.path, progress)
        except DataError as error:
            kind = "data-changed" if isinstance(error, DataChanged) else "usage"
            refusal = Error(str(error), kind)
            self._post(Refused(refusal))
            answer(refusal)
        except Exception as error:  # if this thread died, the trainer would wait forever
            self._post(Unanswered(error))
            answer(Error(f"data {request.url}: {error}", "supervisor"))
        else:
            # The attempt is informed first: nothing is committed without the fingerprint.
            self._post(Staged(found.fingerprint))
            answer(Fetched(str(found.path)))
        finally:
            self._post(Answered())
