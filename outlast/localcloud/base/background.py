"""Tasks of the cloud that run besides calls."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Background tasks of one part of the cloud. An error in one is a defect, after which the part
    would stay silent: it calls `failed`."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        """Kept here because the event loop holds tasks only weakly."""

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task for the work; returns it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks:
            task.cancel()

    async def rest(self) -> None:
        """Waits until all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failed(error)
