"""One cache node as the router sees it."""

import time
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import fleet_pb2
from router.breaker import Breaker
from router.patience import Stage

Health = fleet_pb2.NodeHealth

GENERATE = "/kvmesh.v1.CacheNode/Generate"

# A stalled reader may hold one window of frames in each process: fixed, instead of growing to
# megabytes.
WINDOW_BYTES = 64 << 10

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # the dispatcher retries, on another node
    ("grpc.keepalive_time_ms", 10_000),  # below that, servers ask for an option to allow it
    ("grpc.keepalive_timeout_ms", 10_000),  # a host that is gone; watchers find silence sooner
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)

ACCEPTED = (Health.NODE_HEALTH_UP, Health.NODE_HEALTH_DRAINING)

FrameCall = grpc.aio.UnaryStreamCall[pb.NodeGenerateRequest, bytes]
FrameMethod = grpc.aio.UnaryStreamMultiCallable[pb.NodeGenerateRequest, bytes]


class OpenCall(Protocol):
    """A request that runs on a node, see NodeCall."""

    stage: Stage

    def wait_longer(self, seconds: float) -> None: ...

    def give_up(self, reason: str, *, fault: bool = True) -> None: ...


@dataclass(slots=True, eq=False)
class Node:
    """Owned by the registry; the watcher alone changes what it knows. `calls` are the requests that
    run there; each adds and removes itself, and tells the breaker how it went.
    """

    address: str
    channel: grpc.aio.Channel
    name: str  # the address until the node has told its name
    health: Health.ValueType = Health.NODE_HEALTH_CONNECTING
    detail: str = "not seen yet"
    num_blocks: int = 0
    max_num_seqs: int = 0
    metrics_url: str = ""  # empty: it serves none
    epoch: int = 0
    load: pb.NodeLoad = field(default_factory=pb.NodeLoad)
    calls: set[OpenCall] = field(default_factory=set)
    breaker: Breaker = field(default_factory=lambda: Breaker(time.monotonic))
    joined: float | None = None  # a running fleet, not long ago; see Eligibility
    _method: FrameMethod | None = None  # made with the first call

    @property
    def accepted(self) -> bool:
        """A member of the fleet that can be reached: its name and size are known."""
        return self.health in ACCEPTED

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests hold, shared ones once, as of the last report."""
        load = self.load
        return max(0, self.num_blocks - load.free_blocks - load.evictable_blocks)

    def generate(
        self,
        request: pb.NodeGenerateRequest,
        metadata: grpc.aio.Metadata,
        timeout: float | None,
    ) -> FrameCall:
        """Starts the call; its frames come unparsed. The caller must see it to its end or cancel
        it.
        """
        if self._method is None:
            self._method = self.channel.unary_stream(
                GENERATE,
                request_serializer=pb.NodeGenerateRequest.SerializeToString,
                response_deserializer=None,
            )
        return self._method(request, metadata=metadata, timeout=timeout)

    def drop_calls(self, reason: str, *, streams: bool) -> None:
        """Gives up on what runs there, with or without the answers that have begun: a peer that
        hangs would never break its calls itself.
        """
        for call in list(self.calls):
            if streams or call.stage is not Stage.TOKENS:
                call.give_up(reason)
