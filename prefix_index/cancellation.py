"""Makes sure that a cancelled task ends."""

import asyncio


def raise_if_cancelled() -> None:
    """Raises CancelledError when the running task was asked to end.

    For loops around redis-py, version 8: some of its awaits swallow a cancellation. Such a loop
    would go on for ever, and whoever ends its task wait for it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
