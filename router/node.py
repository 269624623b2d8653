"""One cache node as the router sees it."""

from dataclasses import dataclass, field

import grpc

from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import fleet_pb2

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
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)

FrameCall = grpc.aio.UnaryStreamCall[pb.NodeGenerateRequest, bytes]
FrameMethod = grpc.aio.UnaryStreamMultiCallable[pb.NodeGenerateRequest, bytes]


@dataclass(slots=True, eq=False)
class Node:
    """Owned by the registry; the watcher alone changes what it knows. `calls` are the requests that
    run there.
    """

    address: str
    channel: grpc.aio.Channel
    name: str  # the address until the node has told its name
    health: Health.ValueType = Health.NODE_HEALTH_CONNECTING
    detail: str = "not seen yet"
    num_blocks: int = 0
    epoch: int = 0
    load: pb.NodeLoad = field(default_factory=pb.NodeLoad)
    calls: set[FrameCall] = field(default_factory=set)

    @property
    def accepted(self) -> bool:
        """A member of the fleet that can be reached: its name and size are known."""
        return self.health in (Health.NODE_HEALTH_UP, Health.NODE_HEALTH_DRAINING)

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests hold, shared ones once, as of the last report."""
        return max(0, self.num_blocks - self.load.free_blocks - self.load.evictable_blocks)

    def generate(
        self,
        request: pb.NodeGenerateRequest,
        metadata: grpc.aio.Metadata,
        timeout: float | None,
    ) -> FrameCall:
        """Starts the call; its frames come unparsed. The caller must see it to its end or cancel
        it.
        """
        method: FrameMethod = self.channel.unary_stream(
            GENERATE,
            request_serializer=pb.NodeGenerateRequest.SerializeToString,
            response_deserializer=None,
        )
        call = method(request, metadata=metadata, timeout=timeout)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        return call

    def drop_calls(self) -> None:
        """Gives up on everything that runs there: the peer hangs and would never break the calls
        itself.
        """
        for call in list(self.calls):
            call.cancel()
