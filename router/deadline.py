"""The time by which something must have ended."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvmesh.errors import Code, RequestError


@asynccontextmanager
async def within(deadline: float, message: str) -> AsyncIterator[None]:
    """Ends what is inside at `deadline`, of time.monotonic. Raises DEADLINE_EXCEEDED then.

    That holds for what waits for the client too: one who reads nothing is waited for no longer.
    """
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            yield
    except TimeoutError as error:
        raise RequestError(Code.DEADLINE_EXCEEDED, message) from error
