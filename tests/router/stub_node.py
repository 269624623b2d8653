"""A cache node whose model is a script and whose everything else is real: sockets, gRPC, block
events, tokenizer.

It answers with the prompt's own tokens over and over, sample i from its i-th token on. In-process
tests set its attributes; over the wire the client's metadata `x-stub` scripts one request, such as
"fail-after=3 code=INTERNAL". The log-probability of token t is -t/256, and the most probable ones
beside it are t+1, t+2 and so on.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field

import grpc

from cache_node.lease_gate import LeaseGate
from cache_node.lease_news import LeaseNews
from kvmesh.errors import RequestError, abort, exhausted, unavailable
from kvmesh.lease import METADATA, LeaseKey
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.tls import ServerTls, listen
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from kvmesh.v1 import generate_pb2
from prefix_index.event_log import EventLog
from prefix_index.events import Cleared, Stored
from prefix_index.keys import block_keys, root_key
from prefix_index.redis_publisher import RedisPublisher
from tests.router.tiny_model import node_info, tokenizer_files

EPOCHS = itertools.count(time.time_ns())
HEARTBEAT = 0.3  # seconds


@dataclass
class Script:
    """How the node treats a request. Times in seconds."""

    wait: float = 0.0  # before it says that it has taken the request
    prefill: float = 0.0
    per_token: float = 0.0
    full: bool = False
    fail_before: str = ""  # status code instead of a first token
    fail_after: int = 0  # frames until the failure with `code`
    code: str = "INTERNAL"
    padding: int = 0  # bytes of text to blow a frame up with

    def with_changes(self, text: str) -> "Script":
        changed = Script(**vars(self))
        for word in text.split():
            name, value = word.split("=")
            name = name.replace("-", "_")
            setattr(changed, name, type(getattr(self, name))(value))
        return changed


@dataclass
class Running:
    request: pb.NodeGenerateRequest
    metadata: dict
    prefilled: bool = False
    time_remaining: float | None = None


@dataclass(eq=False)
class StubNode(rpc.CacheNodeServicer):
    name: str = "node-0"
    num_blocks: int = 512
    changes: dict = field(default_factory=dict)
    script: Script = field(default_factory=Script)
    lease_key: LeaseKey | None = None

    def __post_init__(self) -> None:
        self.info = node_info(self.name, next(EPOCHS), self.num_blocks, **self.changes)
        self.log = EventLog(self.info.epoch)
        self.gate, self.leases = LeaseGate(self.lease_key, self.name), LeaseNews()
        self.running: dict[tuple[str, int], Running] = {}
        self.requests: list[pb.NodeGenerateRequest] = []
        self.metadata: list[dict] = []
        self.time_remaining: list[float | None] = []
        self.cancelled = 0
        self.frames = 0
        self.port = 0
        self.held: set[bytes] = set()
        self.pins: dict[str, tuple[pb.PinRequest, list[bytes]]] = {}
        self.pin_room = self.num_blocks
        self.changed: set[asyncio.Event] = set()
        self.silent = False
        self.with_events: bool | None = None
        self.interval = 0.0  # seconds, that the last watcher asked for
        self.draining = False
        self.last_sequence: dict[str, int] = {}
        self.counted = (0, 0)  # queried tokens and hits that it tells of

    async def start(self, port: int = 0, tls: ServerTls | None = None) -> "StubNode":
        self.server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", 64 << 20),
                ("grpc.max_metadata_size", 32 << 10),
                ("grpc.absolute_max_metadata_size", 64 << 10),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.bdp_probe", 0),
            )
        )
        rpc.add_CacheNodeServicer_to_server(self, self.server)
        self.port = listen(self.server, f"127.0.0.1:{port}", tls)
        await self.server.start()
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self, grace: float | None = None) -> None:
        await self.server.stop(grace)

    async def Info(self, request, context):  # noqa: N802
        reply = pb.NodeInfo()
        reply.CopyFrom(self.info)
        if request.include_tokenizer:
            for name, content in tokenizer_files().items():
                reply.tokenizer_files[name] = content
        return reply

    async def WatchState(self, request, context):  # noqa: N802
        changed = asyncio.Event()
        self.changed.add(changed)
        self.with_events = request.include_events  # of the last watcher
        self.interval = request.interval.ToTimedelta().total_seconds()
        events = self.log.subscribe(changed) if request.include_events else None
        leases = self.leases.subscribe(request.router_id, changed)
        try:
            while True:
                changed.clear()
                if not self.silent:
                    state = self._state(request.router_id, events)
                    leases.fill(state)
                    await context.write(state)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                await asyncio.sleep(0.01)
        finally:
            self.changed.discard(changed)
            self.leases.unsubscribe(request.router_id, leases)
            if events is not None:
                events.close()

    def _state(self, router_id, events) -> pb.NodeState:
        state = pb.NodeState(epoch=self.info.epoch, draining=self.draining)
        queued = [each for each in self.running.values() if not each.prefilled]
        held = sum(_blocks(each.request) for each in self.running.values())
        state.load.CopyFrom(
            pb.NodeLoad(
                committed_blocks=held,
                growth_share=1.0,
                free_blocks=max(0, self.num_blocks - held),
                running=len(self.running),
                queued_prefill_tokens=sum(len(each.request.token_ids) // 4 for each in queued),
                last_dispatch_sequence=self.last_sequence.get(router_id, 0),
                queried_tokens=self.counted[0],
                hit_tokens=self.counted[1],
            )
        )
        if events is not None and (batch := events.take()) is not None:
            state.events.CopyFrom(batch.to_proto())
        return state

    def notify(self) -> None:
        for changed in self.changed:
            changed.set()

    def clear_cache(self) -> None:
        self.held.clear()
        self.log.append([Cleared()])
        self.notify()

    async def Generate(self, request, context):  # noqa: N802
        lease = dict(context.invocation_metadata()).get(METADATA)
        if lease is None:
            await self._generate(request, context)
            return
        try:
            self.gate.claim(lease, request)
        except RequestError as error:
            await abort(context, error)
        with self.leases.running(request) as usage:
            await self._generate(request, context)
            size = len(request.token_ids) // 4
            usage.prompt_tokens, usage.completion_tokens = size, request.sampling.max_tokens

    async def _generate(self, request, context):
        key = (request.request_id, request.attempt)
        metadata = dict(context.invocation_metadata())
        script = self.script.with_changes(metadata.get("x-stub", ""))
        self.requests.append(request)
        self.metadata.append(metadata)
        self.time_remaining.append(context.time_remaining())
        if key in self.running:
            await abort(context, RequestError(grpc.StatusCode.ALREADY_EXISTS, "running"))
        if request.epoch not in (0, self.info.epoch):
            await abort(context, RequestError(grpc.StatusCode.FAILED_PRECONDITION, "other epoch"))
        if self.draining:
            await abort(context, unavailable(f"{self.name} is draining"))
        if script.full:
            await abort(context, exhausted(f"{self.name} is full", 0.25))
        running = self.running[key] = Running(request, metadata)
        self.last_sequence[request.router_id] = request.dispatch_sequence
        self.notify()
        try:
            await asyncio.sleep(script.wait)
            await context.send_initial_metadata(
                (("kvmesh-admitted", "1"), ("kvmesh-node", self.name), ("x-from-node", "initial"))
            )
            await self._answer(running, script, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            del self.running[key]
            self.notify()

    async def _answer(self, running, script, context) -> None:
        request, start = running.request, time.monotonic()
        await asyncio.sleep(script.prefill)
        if script.fail_before:
            await self._fail(context, script.fail_before, "before the first token")
        cached = self._cache(request)
        running.prefilled = True
        self.notify()
        prompt = unpack_tokens(request.token_ids)
        count = request.sampling.max_tokens
        first = min((len(e.token_ids) // 4 for e in request.resume if not e.finished), default=0)
        for place in range(first, max(count, 1)):
            if place > first:
                await asyncio.sleep(script.per_token)
            if script.fail_after and place - first == script.fail_after:
                await self._fail(context, script.code, "in the middle")
            last = place + 1 >= count
            frame = _frame(request, prompt, place, padding=script.padding)
            if last:
                frame.prompt_logprobs.extend(_prompt_logprobs(request.sampling, prompt))
                frame.summary.CopyFrom(self._summary(request, cached, count, start))
                usage = frame.summary.SerializeToString()
                context.set_trailing_metadata(
                    (("kvmesh-usage-bin", usage), ("x-from-node-end", "trailing"))
                )
            await context.write(frame)
            self.frames += 1
        if script.fail_after and script.fail_after == count - first:
            await self._fail(context, script.code, "at the end")

    def _cache(self, request) -> int:
        """Prompt tokens found in the cache; afterwards it holds the whole prompt."""
        root = root_key(self.info.key_scheme, self.info.model_fingerprint, "", request.salt)
        size = self.info.key_scheme.block_size
        keys = block_keys(root, request.token_ids, size)
        usable = block_keys(root, request.token_ids[:-4], size)
        cached = sum(1 for _ in itertools.takewhile(self.held.__contains__, usable)) * size
        new = [key for key in keys if key not in self.held]
        self.held.update(new)
        self.log.append([Stored(key, pb.TIER_GPU) for key in new])
        return cached

    def _summary(self, request, cached, count, start) -> generate_pb2.Summary:
        return generate_pb2.Summary(
            node=self.name,
            epoch=self.info.epoch,
            usage=generate_pb2.Usage(
                prompt_tokens=len(request.token_ids) // 4,
                completion_tokens=count * (request.sampling.n or 1),
                cached=generate_pb2.CachedTokens(gpu=cached),
            ),
            queue_us=1000,
            prefill_us=2000,
            total_us=int((time.monotonic() - start) * 1e6),
        )

    async def _fail(self, context, code: str, where: str) -> None:
        error = RequestError(grpc.StatusCode[code], f"scripted {where}", retry_after=0.5)
        await abort(context, error)

    async def Pin(self, request, context):  # noqa: N802
        """As a node does that may pin `pin_room` blocks."""
        if request.release:
            return pb.PinResponse(released=self.pins.pop(request.pin_id, None) is not None)
        leading = list(itertools.takewhile(self.held.__contains__, request.keys))
        if len(leading) > self.pin_room:
            leading = []
        if leading:
            self.pins[request.pin_id] = (request, leading)
        return pb.PinResponse(blocks=len(leading))

    async def ClearCache(self, request, context):  # noqa: N802
        if request.pins:
            self.pins.clear()
        kept = {key for _, keys in self.pins.values() for key in keys}
        cleared = len(self.held - kept)
        self.held &= kept
        self.log.append([Cleared(), *(Stored(key, pb.TIER_GPU) for key in kept)])
        self.notify()
        return pb.NodeClearCacheResponse(cleared_blocks=cleared)

    async def Drain(self, request, context):  # noqa: N802
        self.draining = not request.resume
        self.notify()
        return pb.DrainResponse(running=len(self.running))

    async def CheckIntegrity(self, request, context):  # noqa: N802
        return pb.CheckIntegrityResponse(requests=len(self.running))


def _blocks(request: pb.NodeGenerateRequest) -> int:
    return -(-(len(request.token_ids) // 4 + request.sampling.max_tokens) // 16)


def _frame(request, prompt, place, *, padding: int) -> generate_pb2.GenerateResponse:
    sampling = request.sampling
    if not sampling.max_tokens:  # the prompt only
        ended = generate_pb2.SampleDelta(finish_reason=generate_pb2.FINISH_REASON_LENGTH)
        return generate_pb2.GenerateResponse(deltas=[ended])
    last = place + 1 == sampling.max_tokens
    had = {each.index: each for each in request.resume}  # a sample that goes on here
    samples = [
        index
        for index in range(sampling.n or 1)
        if index not in had or (not had[index].finished and place >= len(had[index].token_ids) // 4)
    ]
    return generate_pb2.GenerateResponse(
        deltas=[
            _delta(sampling, index, prompt[(place + index) % len(prompt)], last, padding)
            for index in samples
        ]
    )


def _delta(sampling, index, token, last, padding) -> generate_pb2.SampleDelta:
    text = chr(token) if token < 128 else "?"
    delta = generate_pb2.SampleDelta(
        index=index, token_ids=pack_tokens([token]), text=text + "." * padding
    )
    if sampling.HasField("logprobs"):
        delta.logprobs.append(_logprobs(token, sampling.logprobs))
    if last:
        delta.finish_reason = generate_pb2.FINISH_REASON_LENGTH
    return delta


def _logprobs(token, count) -> generate_pb2.TokenLogprobs:
    top = [(token + step) % 256 for step in range(count)]
    return generate_pb2.TokenLogprobs(
        logprob=-token / 256,
        rank=1,
        top=[generate_pb2.TokenLogprob(token_id=each, logprob=-each / 256) for each in top],
    )


def _prompt_logprobs(sampling, prompt) -> list[generate_pb2.TokenLogprobs]:
    if not sampling.HasField("prompt_logprobs"):
        return []
    return [_logprobs(token, sampling.prompt_logprobs) for token in prompt[1:]]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="node-0")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--num-blocks", type=int, default=512)
    parser.add_argument("--redis", default=None, help="URL; its blocks are written there too")
    options = parser.parse_args()
    node = await StubNode(options.name, options.num_blocks).start(options.port)
    if options.redis is not None:
        publisher = RedisPublisher(
            options.redis, "kvmesh", node.name, node.info.epoch, node.log, heartbeat=0.3
        )
        publishing = asyncio.create_task(publisher.run())
        publishing.add_done_callback(lambda task: task.result())
    print(node.port, flush=True)
    await node.server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
