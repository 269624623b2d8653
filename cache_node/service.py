"""The CacheNode gRPC service, over the engine."""

import asyncio
from contextlib import aclosing

import structlog

from cache_node.admission import Admission
from cache_node.config import NodeConfig
from cache_node.engine import Engine
from cache_node.output_stream import OutputStream
from cache_node.output_text import OutputText
from cache_node.rpc_guard import Context, guarded
from cache_node.sequence import Sequence
from cache_node.state_feed import StateFeed
from cache_node.step_output import Delta, StepOutput
from kvmesh.errors import Code, RequestError, exhausted, invalid, unavailable
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2

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
        config: NodeConfig,
    ) -> None:
        self._admission = admission
        self._info = admission.info
        self._tokenizer = tokenizer
        self._tokenizer_files = tokenizer_files
        self._engine = engine
        self._state = state
        self._max_open = config.max_num_seqs + config.max_waiting
        self._log_requests = config.log_requests
        self._streams: dict[str, OutputStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    def deliver(self, output: StepOutput) -> None:
        """Takes one step's outcome to streams and watchers."""
        for delta in output.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.push(delta)
        self._state.update(output)

    # The streaming handlers write instead of yielding: a generator that is cancelled at a `yield`
    # runs its `finally` only when it is collected, and its request would go on until then.
    @guarded
    async def Generate(  # type: ignore[override]
        self, request: pb.NodeGenerateRequest, context: Context
    ) -> None:
        key = f"{request.request_id}/{request.attempt}"
        self._check_open(key)
        sequence = self._admission.sequence(key, request)
        skip = (
            not request.sampling.HasField("skip_special_tokens")
            or request.sampling.skip_special_tokens
        )
        text = OutputText(self._tokenizer, sequence.params.stop, skip)
        stream = self._streams[key] = OutputStream()
        self._idle.clear()
        try:
            self._engine.submit(sequence, text, request.router_id, request.dispatch_sequence)
            await context.send_initial_metadata(
                (("kvmesh-admitted", "1"), ("kvmesh-node", self._info.name))
            )
            await self._send(stream, context)
        finally:
            if stream.ended is None:
                self._engine.abort(key)
            del self._streams[key]
            if not self._streams:
                self._idle.set()
            self._log(request, sequence)

    @guarded
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        keys = [key for key in self._streams if key.rpartition("/")[0] == request.request_id]
        for key in keys:
            sequence = await asyncio.wrap_future(self._engine.abort(key))
            if sequence is not None and key in self._streams:
                self._streams[key].push(Delta(key, ended=sequence))
        return pb.AbortResponse(found=bool(keys))

    @guarded
    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.NodeInfo:
        if not request.include_tokenizer:
            return self._info
        info = pb.NodeInfo()
        info.CopyFrom(self._info)
        info.tokenizer_files.update(self._tokenizer_files)
        return info

    @guarded
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

    @guarded
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        self.drain(not request.resume)
        load = self._state.load
        return pb.DrainResponse(running=load.running, waiting=load.waiting)

    @guarded
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

    async def _send(self, stream: OutputStream, context: Context) -> None:
        async for delta in stream:
            frame = generate_pb2.GenerateResponse(deltas=[delta])
            if stream.ended is not None:
                frame.summary.CopyFrom(self._summary(stream.ended))
                usage = frame.summary.SerializeToString()
                context.set_trailing_metadata((("kvmesh-usage-bin", usage),))
            await context.write(frame)

    def _summary(self, sequence: Sequence) -> generate_pb2.Summary:
        assert sequence.finished is not None
        first_scheduled = sequence.first_scheduled or sequence.finished
        first_token = sequence.first_token or sequence.finished
        return generate_pb2.Summary(
            node=self._info.name,
            epoch=self._info.epoch,
            usage=generate_pb2.Usage(
                prompt_tokens=sequence.prompt_tokens,
                completion_tokens=sequence.num_output,
                cached=generate_pb2.CachedTokens(gpu=sequence.cached_tokens),
            ),
            queue_us=_us(first_scheduled - sequence.arrival),
            prefill_us=_us(first_token - first_scheduled),
            total_us=_us(sequence.finished - sequence.arrival),
            preemptions=sequence.preemptions,
        )

    def _log(self, request: pb.NodeGenerateRequest, sequence: Sequence) -> None:
        if self._log_requests:
            log.info(
                "request",
                request_id=request.request_id,
                attempt=request.attempt,
                prompt_tokens=sequence.prompt_tokens,
                output_tokens=sequence.num_output,
                cached_tokens=sequence.cached_tokens,
                preemptions=sequence.preemptions,
                finish=sequence.finish_reason.name.lower()
                if sequence.finish_reason
                else "cancelled",
            )


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
