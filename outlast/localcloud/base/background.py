"""Work that runs in the cloud beside the calls."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Work of one part of the cloud in the background. What fails there is a defect, and would
    be a silence that never ends: `failed` is called."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        """The event loop alone holds tasks weakly."""

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts the work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Ends all of it."""
        for task in self._tasks:
            task.cancel()

    async def rest(self) -> None:
        """Waits until all of it has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failed(error)
