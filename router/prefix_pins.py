"""Keeps prefixes in the caches of nodes, where an operator wants them."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import structlog
from grpc import aio

from kvmesh.errors import Code, RequestError, exhausted, invalid
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from kvmesh.v1 import fleet_pb2
from kvmesh.v1.generate_pb2 import GenerateRequest, SamplingParams
from kvmesh.validation import check_priority
from prefix_index.keys import block_keys
from router.fan_out import each_node, none_did
from router.fleet import Model
from router.index import Index
from router.job import Job
from router.node import Node
from router.node_call import NodeFailed
from router.prompt import Prompt, PromptReader
from router.registry import Registry
from router.request_size import RequestSize
from router.sender import Sender
from router.tenants import Tenant

log = structlog.get_logger("router")

PATIENCE = 5.0  # seconds for a node to answer
PREFILL = 600.0  # seconds for a node to compute the prefix
LONGEST = 7 * 24 * 3600.0  # seconds that a pin may live

FULL_RETRY = 5.0  # seconds


class PrefixPins:
    """The nodes hold the pins, under one name; the router remembers none of them.

    A node that does not hold the prefix whole computes it first, as a request of one token.
    """

    def __init__(
        self, registry: Registry, index: Index, reader: PromptReader, sender: Sender
    ) -> None:
        self._registry = registry
        self._index = index
        self._reader = reader
        self._sender = sender
        self._forgetting: set[asyncio.Task[Any]] = set()

    async def pin(
        self, request: fleet_pb2.PinPrefixRequest, model: Model, tenant: Tenant
    ) -> fleet_pb2.PinPrefixResponse:
        """Raises INVALID_ARGUMENT by field, and UNAVAILABLE when no node has pinned it."""
        check_priority(request.priority)
        _check_ttl(request)
        asked = _one_token(request.prefix)
        prompt = await self._reader.read(asked, model, tenant)
        keys = block_keys(model.root_of(prompt.salt), prompt.token_ids, model.block_size)
        if not keys:
            raise invalid("prefix", f"must fill a block of {model.block_size} tokens")
        wanted = pb.PinRequest(
            pin_id=uuid.uuid4().hex,
            keys=keys,
            priority=request.priority,
            ttl=request.ttl if request.HasField("ttl") else None,
        )
        job = _job(asked, prompt, model)
        nodes = self._nodes(keys, request.nodes)
        try:
            pinned, failures = await each_node(nodes, lambda node: self._pin(node, wanted, job))
        except asyncio.CancelledError:  # the client has left: nobody will ever know its name
            self._forget(nodes, wanted.pin_id)
            raise
        log.info("pinned", pin=wanted.pin_id, nodes=list(pinned), failed=len(failures))
        if not pinned:
            raise none_did(failures)
        return fleet_pb2.PinPrefixResponse(
            pin_id=wanted.pin_id, blocks=sum(pinned.values()), nodes=pinned, failures=failures
        )

    async def unpin(self, pin_id: str) -> fleet_pb2.UnpinPrefixResponse:
        """Raises NOT_FOUND when no node has the pin, UNAVAILABLE when none can say."""
        if not pin_id:
            raise invalid("pin_id", "must not be empty, send what PinPrefix answered")
        answers, failures = await each_node(
            self._registry.nodes, lambda node: _release(node, pin_id)
        )
        released = [name for name, had in answers.items() if had]
        if not answers:
            raise none_did(failures)
        if not released:
            unsure = ", ".join(each.node for each in failures)
            beside = f"; could not ask {unsure}" if unsure else ""
            raise RequestError(
                Code.NOT_FOUND, f"pin_id: no node has a pin {pin_id[:200]!r}{beside}"
            )
        return fleet_pb2.UnpinPrefixResponse(nodes=released, failures=failures)

    def _nodes(self, keys: Sequence[bytes], count: int) -> list[Node]:
        """Who should hold it: those that hold most of it, then those with most room."""
        held = {name: sum(match) for name, match in self._index.match(keys).items()}
        ranked = sorted(
            self._registry.up,
            key=lambda node: (-held.get(node.name, 0), node.load.committed_blocks),
        )
        holders = [node for node in ranked if held.get(node.name, 0) == len(keys)]
        return ranked[:count] if count else (holders or ranked[:1])

    async def _pin(self, node: Node, wanted: pb.PinRequest, job: Job) -> int:
        """All of it or nothing."""
        try:
            return await self._pin_whole(node, wanted, job)
        except (RequestError, aio.AioRpcError):
            with suppress(aio.AioRpcError):
                await _release(node, wanted.pin_id)
            raise

    async def _pin_whole(self, node: Node, wanted: pb.PinRequest, job: Job) -> int:
        """The node is the authority on what it holds: it is asked first."""
        stub = _stub(node)
        blocks = (await stub.Pin(wanted, timeout=PATIENCE)).blocks
        if blocks < len(wanted.keys):
            await self._compute(node, job)
            blocks = (await stub.Pin(wanted, timeout=PATIENCE)).blocks
        if blocks < len(wanted.keys):
            raise exhausted(
                f"holds {blocks} of {len(wanted.keys)} blocks: its cache, or the half of its pool "
                "that pins may take, is full",
                FULL_RETRY,
            )
        return blocks

    def _forget(self, nodes: Sequence[Node], pin_id: str) -> None:
        """Lets it go, behind the back of a caller that is cancelled."""
        work = each_node(nodes, lambda node: _release(node, pin_id))
        task = asyncio.create_task(work)
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _compute(self, node: Node, job: Job) -> None:
        others = {each.address for each in self._registry.nodes if each is not node}
        try:
            with closing(self._sender.send(_again(job), 1, others)) as call:
                frame = await call.first_frame()
                while frame is not None:
                    frame = await call.read()
        except NodeFailed as failed:
            raise failed.error from failed


def _one_token(prefix: GenerateRequest) -> GenerateRequest:
    """The prompt alone, whatever else came with it."""
    asked = GenerateRequest(
        model=prefix.model,
        sampling=SamplingParams(max_tokens=1, temperature=0, seed=0),
    )
    if (kind := prefix.WhichOneof("prompt")) == "chat":
        asked.chat.CopyFrom(prefix.chat)
    elif kind is not None:
        setattr(asked, kind, getattr(prefix, kind))
    return asked


def _job(asked: GenerateRequest, prompt: Prompt, model: Model) -> Job:
    now = time.monotonic()
    size = RequestSize.of(asked.sampling, prompt.count, model.block_size)
    return Job(asked, prompt, model, (), now, now + PREFILL, size)


def _again(job: Job) -> Job:
    """The same for one more node: the ledger knows a request by its id."""
    request = GenerateRequest()
    request.CopyFrom(job.request)
    request.request_id = uuid.uuid4().hex
    return job._replace(request=request)


def _check_ttl(request: fleet_pb2.PinPrefixRequest) -> None:
    if request.HasField("ttl"):
        seconds = request.ttl.ToMicroseconds() / 1e6
        if not 0 < seconds <= LONGEST:
            raise invalid("ttl", f"must be in (0, {LONGEST:g}] seconds, is {seconds:g}")


async def _release(node: Node, pin_id: str) -> bool:
    """Whether it had such a pin."""
    release = pb.PinRequest(pin_id=pin_id, release=True)
    return (await _stub(node).Pin(release, timeout=PATIENCE)).released


def _stub(node: Node) -> "rpc.CacheNodeAsyncStub":
    return rpc.CacheNodeStub(node.channel)
