"""Catches requests to stop this process from its first moment."""

import signal

from outlast.supervisor.notice import Notices


class Stop:
    """Catches SIGTERM and SIGINT from the first moment, and passes them to the notices once
    connected."""

    def __init__(self) -> None:
        self._notices: Notices | None = None
        self._early = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def connect(self, notices: Notices) -> None:
        self._notices = notices
        if self._early:
            notices.handle_signal(signal.SIGTERM, None)

    def _handle(self, number: int, frame: object) -> None:
        if self._notices is None:
            self._early = True
        else:
            self._notices.handle_signal(number, None)
