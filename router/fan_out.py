"""One call to several nodes at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from grpc import aio

from kvmesh.errors import RequestError, from_rpc_error, unavailable
from kvmesh.v1 import fleet_pb2
from router.node import Node

T = TypeVar("T")

Failures = list[fleet_pb2.NodeFailure]


async def each_node(
    nodes: Sequence[Node], call: Callable[[Node], Awaitable[T]]
) -> tuple[dict[str, T], Failures]:
    """What `call` gives for each node, by name, and the nodes for which it failed, with the reason;
    those that are not there are among these and are not called.
    """
    outcomes = await asyncio.gather(*(_outcome(node, call) for node in nodes))
    done = {
        node.name: outcome[0]
        for node, outcome in zip(nodes, outcomes, strict=True)
        if not isinstance(outcome, str)
    }
    failures = [
        fleet_pb2.NodeFailure(node=node.name, reason=outcome)
        for node, outcome in zip(nodes, outcomes, strict=True)
        if isinstance(outcome, str)
    ]
    return done, failures


def none_did(failures: Failures) -> RequestError:
    """For a client whose call no node has done anything about."""
    told = "; ".join(f"{each.node}: {each.reason}" for each in failures)
    return unavailable(told or "no cache node is up")


async def _outcome(node: Node, call: Callable[[Node], Awaitable[T]]) -> tuple[T] | str:
    if not node.accepted:
        return f"is not there: {node.detail}"
    try:
        return (await call(node),)
    except RequestError as error:
        return error.message
    except aio.AioRpcError as error:
        return from_rpc_error(error).message
