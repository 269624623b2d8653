"""A cache node without a model: it sends as many frames as a request wants tokens."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import grpc
from tokenizers import Tokenizer, models

from cache_node.lease_gate import LeaseGate
from cache_node.lease_news import LeaseNews
from kvmesh.fleet_key import FleetKey
from kvmesh.lease import METADATA, LeaseKey
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from kvmesh.v1 import generate_pb2
from prefix_index.event_log import EventLog

VOCABULARY, BLOCK_SIZE = 1000, 16
FRAME_SECONDS = 0.01  # between two frames of a stream: tokens that do not come in one read
HEARTBEAT = 0.3

ADMITTED = "kvmesh-admitted"

Context = grpc.aio.ServicerContext[object, object]


@dataclass(eq=False)
class StubNode(rpc.CacheNodeServicer):
    """On the event loop that starts it. `secret` is that of the fleet's leases."""

    secret: bytes
    info: pb.NodeInfo = field(init=False)

    def __post_init__(self) -> None:
        scheme = pb.KeyScheme(
            version=1, block_size=BLOCK_SIZE, kv_cache_dtype="auto", layout="stub"
        )
        self.info = pb.NodeInfo(
            name="stub",
            epoch=1,
            model="stub",
            model_fingerprint=b"stub",
            key_scheme=scheme,
            max_model_len=1 << 20,
            num_blocks=1 << 24,
            max_num_seqs=1 << 16,
            max_num_batched_tokens=2048,
            vocab_size=VOCABULARY,
            dtype="bfloat16",
            device="cpu",
        )
        self._gate = LeaseGate(LeaseKey(FleetKey(self.secret)), self.info.name)
        self._leases = LeaseNews()
        self._log = EventLog(self.info.epoch)
        self._running = self._last_sequence = 0
        self._changed: set[asyncio.Event] = set()

    async def start(self) -> int:
        """Returns the port."""
        self._server = grpc.aio.server(options=(("grpc.http2.bdp_probe", 0),))
        rpc.add_CacheNodeServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        await self._server.stop(None)

    async def Info(self, request: pb.InfoRequest, _context: Context) -> pb.NodeInfo:  # noqa: N802
        if not request.include_tokenizer:
            return self.info
        words = {f"<{token}>": token for token in range(VOCABULARY)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
        reply = pb.NodeInfo(tokenizer_files={"tokenizer.json": tokenizer.to_str().encode()})
        reply.MergeFrom(self.info)
        return reply

    async def WatchState(  # type: ignore[override]  # noqa: N802
        self, request: pb.WatchStateRequest, context: Context
    ) -> None:
        changed = asyncio.Event()
        self._changed.add(changed)
        interval = request.interval.ToMicroseconds() / 1e6
        events = self._log.subscribe(changed)
        leases = self._leases.subscribe(request.router_id, changed)
        try:
            while True:
                changed.clear()
                load = pb.NodeLoad(
                    free_blocks=self.info.num_blocks,
                    running=self._running,
                    last_dispatch_sequence=self._last_sequence,
                )
                state = pb.NodeState(epoch=self.info.epoch, load=load)
                if (batch := events.take()) is not None:
                    state.events.CopyFrom(batch.to_proto())
                leases.fill(state)
                await context.write(state)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                await asyncio.sleep(interval)
        finally:
            self._changed.discard(changed)
            self._leases.unsubscribe(request.router_id, leases)
            events.close()

    async def Generate(  # type: ignore[override]  # noqa: N802
        self, request: pb.NodeGenerateRequest, context: Context
    ) -> None:
        lease = dict(context.invocation_metadata() or ()).get(METADATA)
        if lease is None:
            await self._stream(request, context)
            return
        assert isinstance(lease, bytes)
        self._gate.claim(lease, request)
        with self._leases.running(request) as usage:
            await self._stream(request, context)
            usage.completion_tokens = request.sampling.max_tokens

    async def _stream(self, request: pb.NodeGenerateRequest, context: Context) -> None:
        self._last_sequence = max(self._last_sequence, request.dispatch_sequence)
        await context.send_initial_metadata(((ADMITTED, "1"), ("kvmesh-node", self.info.name)))
        self._count(+1)
        try:
            for _ in range(request.sampling.max_tokens - 1):
                await context.write(FRAME)
                await asyncio.sleep(FRAME_SECONDS)
            await context.write(LAST_FRAME)
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        self._running += by
        for changed in self._changed:
            changed.set()


FRAME = generate_pb2.GenerateResponse(
    deltas=[generate_pb2.SampleDelta(token_ids=b"\x05\x00\x00\x00", text=" word")]
)
LAST_FRAME = generate_pb2.GenerateResponse(
    deltas=[
        generate_pb2.SampleDelta(
            token_ids=b"\x05\x00\x00\x00",
            text=" word",
            finish_reason=generate_pb2.FINISH_REASON_LENGTH,
        )
    ],
    summary=generate_pb2.Summary(
        node="stub", epoch=1, usage=generate_pb2.Usage(prompt_tokens=1, completion_tokens=1)
    ),
)
