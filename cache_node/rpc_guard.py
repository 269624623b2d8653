"""Turns what a handler raises into the status that the caller gets; logs what nobody expected,
once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import uuid4

import grpc
import structlog

from kvmesh.errors import Code, RequestError, abort

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Any, Context], Awaitable[Any]]


def for_routers(handler: Handler) -> Handler:
    """`guarded`, and refused to everybody but routers."""

    @wraps(handler)
    async def checked(service: Any, request: Any, context: Context) -> Any:
        service.access.require_router(handler.__name__, context)
        return await handler(service, request, context)

    return guarded(checked)


def guarded(handler: Handler) -> Handler:
    """RequestError becomes its status with details; any other exception INTERNAL with an id that is
    in the log.
    """

    @wraps(handler)
    async def guard(service: Any, request: Any, context: Context) -> Any:
        try:
            return await handler(service, request, context)
        except RequestError as error:
            await abort(context, error)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.InternalError as error:
            # The client left while something was on its way to it: as if that had been noticed
            # first, which cancels the handler.
            raise asyncio.CancelledError from error
        except Exception:
            number = uuid4().hex[:12]
            log.exception("rpc_failed", rpc=handler.__name__, error_id=number)
            await abort(
                context, RequestError(Code.INTERNAL, f"internal error {number}, see the log")
            )

    return guard
