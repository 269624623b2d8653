"""The CacheNode gRPC service, over the engine."""

import asyncio
from contextlib import aclosing

import structlog

from cache_node.access import Access
from cache_node.admission import Admission
from cache_node.config import NodeConfig
from cache_node.engine import Engine
from cache_node.output_stream import OutputStream, logprobs_to_proto
from cache_node.output_text import OutputText
from cache_node.request_log import RequestLog
from cache_node.resume import MakeText, resumed_texts
from cache_node.rpc_guard import Context, for_routers, guarded
from cache_node.sequence import FinishReason, Request
from cache_node.state_feed import StateFeed
from cache_node.step_output import Delta, Ended, StepOutput
from cache_node.summary import summary
from kvmesh.errors import Code, RequestError, exhausted, invalid, unavailable
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc
from kvmesh.validation import check_priority
from prefix_index.keys import KEY_BYTES

log = structlog.get_logger()

FULL_RETRY_AFTER = 1.0  # seconds
INTERVALS = (0.001, 10.0)  # seconds between two states of a watcher
DEFAULT_INTERVAL = 0.01


class CacheNodeService(cache_node_pb2_grpc.CacheNodeServicer):
    """Lives on the event loop; the engine runs beside it. RPCs not overridden here answer
    UNIMPLEMENTED.
    """

    def __init__(
        self,
        admission: Admission,
        tokenizer: Tokenizer,
        tokenizer_files: dict[str, bytes],
        engine: Engine,
        state: StateFeed,
        access: Access,
        requests: RequestLog,
        config: NodeConfig,
    ) -> None:
        self.access = access
        self._admission = admission
        self._info = admission.info
        self._tokenizer = tokenizer
        self._tokenizer_files = tokenizer_files
        self._engine = engine
        self._state = state
        self._max_open = config.max_num_seqs + config.max_waiting
        self._requests = requests
        self._streams: dict[str, OutputStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    def deliver(self, output: StepOutput) -> None:
        """Takes one step's outcome to streams and watchers."""
        for delta in output.deltas:
            if (stream := self._streams.get(delta.request_id)) is not None:
                stream.push(delta)
        for ended in output.ended:
            if (stream := self._streams.get(ended.request.id)) is not None:
                stream.end(ended)
        self._state.update(output)

    # The streaming handlers write instead of yielding: a generator that is cancelled at a `yield`
    # runs its `finally` only when it is collected, and its request would go on until then.
    @guarded
    async def Generate(  # type: ignore[override]
        self, message: pb.NodeGenerateRequest, context: Context
    ) -> None:
        if not self.access.claim(message, context):
            await self._generate(message, context)
            return
        with self._state.leases.running(message) as usage:
            request = await self._generate(message, context)
            usage.CopyFrom(summary(request, self._info).usage)

    async def _generate(self, message: pb.NodeGenerateRequest, context: Context) -> Request:
        key = f"{message.request_id}/{message.attempt}"
        self._check_open(key)
        request = self._admission.request(key, message)
        stream = self._streams[key] = OutputStream()
        self._idle.clear()
        try:
            make_text = await self._text_maker(message, request)
            router, dispatch = message.router_id, message.dispatch_sequence
            self._engine.submit(request, make_text, router, dispatch)
            await context.send_initial_metadata(
                (("kvmesh-admitted", "1"), ("kvmesh-node", self._info.name))
            )
            await self._send(stream, context)
            return request
        finally:
            if stream.request is None:
                self._engine.abort(key)
            del self._streams[key]
            if not self._streams:
                self._idle.set()
            self._requests.ended(message, request, context.invocation_metadata() or ())

    @for_routers
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        keys = [key for key in self._streams if key.rpartition("/")[0] == request.request_id]
        for key in keys:
            aborted = await asyncio.wrap_future(self._engine.abort(key))
            if aborted is not None and (stream := self._streams.get(key)) is not None:
                for sample in aborted.sequences:
                    if sample.finish_reason is FinishReason.ABORT:
                        stream.push(_aborted(key, sample.sample_index))
                stream.end(Ended(aborted))
        return pb.AbortResponse(found=bool(keys))

    @for_routers
    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.NodeInfo:
        if not request.include_tokenizer:
            return self._info
        info = pb.NodeInfo()
        info.CopyFrom(self._info)
        info.tokenizer_files.update(self._tokenizer_files)
        return info

    @for_routers
    async def WatchState(  # type: ignore[override]
        self, request: pb.WatchStateRequest, context: Context
    ) -> None:
        interval = (
            request.interval.ToMicroseconds() / 1e6
            if request.HasField("interval")
            else DEFAULT_INTERVAL
        )
        if not INTERVALS[0] <= interval <= INTERVALS[1]:
            raise invalid(
                "interval", f"must be in [{INTERVALS[0]}, {INTERVALS[1]}] seconds, is {interval:g}"
            )
        states = self._state.watch(request.router_id, request.include_events, interval, self._alive)
        async with aclosing(states):
            async for state in states:
                await context.write(state)

    @for_routers
    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        if not request.pin_id:
            raise invalid("pin_id", "must not be empty, name the pin")
        if request.release:
            released = await asyncio.wrap_future(self._engine.unpin(request.pin_id))
            return pb.PinResponse(released=released)
        check_priority(request.priority)
        for place, key in enumerate(request.keys):
            if len(key) != KEY_BYTES:
                problem = f"must be {KEY_BYTES} bytes each, the one at {place} has {len(key)}"
                raise invalid("keys", problem)
        ttl = request.ttl.ToMicroseconds() / 1e6 if request.HasField("ttl") else None
        pinned = self._engine.pin(request.pin_id, list(request.keys), request.priority, ttl)
        return pb.PinResponse(blocks=await asyncio.wrap_future(pinned))

    @for_routers
    async def ClearCache(
        self, request: pb.NodeClearCacheRequest, context: Context
    ) -> pb.NodeClearCacheResponse:
        cleared = await asyncio.wrap_future(self._engine.clear_cache(request.pins))
        log.info("cache_cleared", blocks=cleared, pins=request.pins)
        return pb.NodeClearCacheResponse(cleared_blocks=cleared)

    @for_routers
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        self.drain(not request.resume)
        load = self._state.load
        return pb.DrainResponse(running=load.running, waiting=load.waiting)

    @for_routers
    async def CheckIntegrity(
        self, request: pb.CheckIntegrityRequest, context: Context
    ) -> pb.CheckIntegrityResponse:
        violations, load = await asyncio.wrap_future(self._engine.check_integrity())
        return pb.CheckIntegrityResponse(
            violations=violations,
            free_blocks=load.free_blocks,
            cached_blocks=load.evictable_blocks,
            held_blocks=load.held_blocks,
            requests=load.running + load.waiting,
        )

    @property
    def num_open(self) -> int:
        """Requests that have been admitted and have not ended."""
        return len(self._streams)

    async def idle(self) -> None:
        """Waits until nothing is open."""
        await self._idle.wait()

    def drain(self, draining: bool = True) -> None:
        self._state.draining = draining
        self._state.wake()

    def stop(self) -> None:
        """Ends the state streams and fails what still runs, so that the server can close."""
        self._stopped = True
        self.drain()
        for stream in self._streams.values():
            stream.fail(unavailable("the node is shutting down"))

    def _alive(self) -> bool:
        return not self._stopped

    def _check_open(self, key: str) -> None:
        if self._state.draining:
            raise unavailable(f"node {self._info.name} is draining and takes no new request")
        if key in self._streams:
            raise RequestError(
                Code.ALREADY_EXISTS, f"request_id: {key} (id/attempt) is running already"
            )
        if len(self._streams) >= self._max_open:
            message = f"node {self._info.name} is full: {len(self._streams)} requests run or wait"
            raise exhausted(message, FULL_RETRY_AFTER)

    async def _text_maker(self, message: pb.NodeGenerateRequest, request: Request) -> MakeText:
        sampling, params = message.sampling, request.params
        skip = not sampling.HasField("skip_special_tokens") or sampling.skip_special_tokens

        def make_text(_sample: int) -> OutputText:
            return OutputText(self._tokenizer, params.stop, skip, params.min_tokens)

        if not message.resume:
            return make_text
        return await asyncio.to_thread(resumed_texts, message.resume, make_text)

    async def _send(self, stream: OutputStream, context: Context) -> None:
        async for frame in stream:
            if stream.request is not None:
                frame.prompt_logprobs.extend(logprobs_to_proto(stream.request.prompt_logprobs))
                frame.summary.CopyFrom(summary(stream.request, self._info))
                usage = frame.summary.SerializeToString()
                context.set_trailing_metadata((("kvmesh-usage-bin", usage),))
            await context.write(frame)


def _aborted(key: str, sample: int) -> Delta:
    return Delta(request_id=key, sample=sample, finish_reason=FinishReason.ABORT)
