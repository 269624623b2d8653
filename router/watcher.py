"""Follows one node: what it is, whether it lives, its load, and the blocks that it holds."""

import asyncio
import time
from collections.abc import Callable

import structlog
from google.protobuf import duration_pb2
from grpc import aio

from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from router.fleet import Fleet
from router.index import Index
from router.leases import Leases
from router.ledger import Ledger
from router.node import Health, Node
from router.registry import Registry
from router.silence import SilenceDetector

log = structlog.get_logger("router")

STATES = 1000
"""A second at most that up to 250 nodes send together; more nodes keep to the longest interval."""
INTERVALS = (0.01, 0.25)  # least and most seconds between two of a node
INFO_TIMEOUT = 10.0  # seconds; tokenizer files are some MB
FIRST_RETRY, LAST_RETRY = 0.1, 1.0  # seconds between attempts to reach a node

SILENT = "no sign of life: the host or the process hangs, or is starved"
NO_LIFE = "gives no sign of life"

StateCall = aio.UnaryStreamCall[pb.WatchStateRequest, pb.NodeState]


class NodeLost(Exception):  # noqa: N818  # an event of the fleet's life, not an error of ours
    """The node is not to be used now; `health` and the message say why."""

    def __init__(self, health: Health.ValueType, reason: str) -> None:
        super().__init__(reason)
        self.health = health


class Watcher:
    """Runs for as long as the router does.

    connect ──Info──▶ fits ──WatchState──▶ UP, states ──break──▶ DOWN, index dropped ──▶ connect
                │                        │  ▲                ▲
                └──▶ REFUSED ──▶ connect └──┴─silence─▶ DOWN ┘ too long: its streams are given up

    A silent node gets nothing new, and what has no token yet goes elsewhere; what streams there may
    go on, since a host without CPU time is not a dead one.
    """

    def __init__(
        self,
        node: Node,
        registry: Registry,
        fleet: Fleet,
        index: Index,
        ledger: Ledger,
        leases: Leases,
        silence: SilenceDetector,
        router_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._registry = registry
        self._fleet = fleet
        self._index = index
        self._ledger = ledger
        self._leases = leases
        self._silence = silence
        self._router_id = router_id
        self._clock = clock
        self._retry = FIRST_RETRY
        self._stub: rpc.CacheNodeAsyncStub = rpc.CacheNodeStub(node.channel)

    async def run(self) -> None:
        while True:
            lost = await self._life()
            self._registry.set_health(self._node, lost.health, str(lost))
            await asyncio.sleep(self._retry)
            self._retry = min(2 * self._retry, LAST_RETRY)

    async def _life(self) -> NodeLost:
        """From the first contact to the last; returns how it ended."""
        try:
            await self._follow(await self._introduce())
        except NodeLost as lost:
            return lost
        except aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            return NodeLost(Health.NODE_HEALTH_DOWN, reason)
        except Exception as error:
            log.exception("watcher", address=self._node.address)
            return NodeLost(Health.NODE_HEALTH_DOWN, f"{type(error).__name__}: {error}")
        return NodeLost(Health.NODE_HEALTH_DOWN, "the node ended its state stream")

    async def _introduce(self) -> pb.NodeInfo:
        """The node's Info. Raises NodeLost with REFUSED if it does not fit the fleet."""
        wanted = pb.InfoRequest(include_tokenizer=not self._fleet.defined)
        info = await self._stub.Info(wanted, timeout=INFO_TIMEOUT)
        if not self._fleet.defined:
            await self._define_fleet(info)
        if (reason := self._fleet.mismatch(info)) is not None:
            raise NodeLost(Health.NODE_HEALTH_REFUSED, reason)
        if (other := self._registry.name_taken(info.name, self._node)) is not None:
            reason = f"its name {info.name} is that of {other.address}: give each node its own"
            if other.epoch == info.epoch:
                reason = f"it is {info.name} at another address, which is used at {other.address}"
            raise NodeLost(Health.NODE_HEALTH_REFUSED, reason)
        self._registry.accept(self._node, info)
        self._retry = FIRST_RETRY
        return info

    async def _define_fleet(self, info: pb.NodeInfo) -> None:
        try:
            files = dict(info.tokenizer_files)
            tokenizer = await asyncio.to_thread(Tokenizer, files)
            self._fleet.define(info, tokenizer, self._clock())
        except (ValueError, KeyError) as error:
            reason = f"its key scheme or tokenizer cannot be used: {error}"
            raise NodeLost(Health.NODE_HEALTH_REFUSED, reason) from error

    async def _follow(self, info: pb.NodeInfo) -> None:
        """Applies states until the stream ends. Raises NodeLost on silence or another epoch."""
        self._index.opened(info.name, info.epoch)
        try:
            while await self._follow_stream(info):
                pass
        finally:
            self._index.closed(info.name)
            self._leases.lost(info.name)

    async def _follow_stream(self, info: pb.NodeInfo) -> bool:
        """One state stream. True: open another, for a snapshot or for events from elsewhere."""
        with_events = self._index.wants_events(info.name)
        call = self._watch_state(with_events)
        silent = asyncio.Event()
        self._silence.watch(self._node.address, self._suspect, lambda: self._give_up(call, silent))
        try:
            async for state in call:
                self._silence.heard(self._node.address)
                complete = self._apply(state, info)
                if not complete or self._index.wants_events(info.name) != with_events:
                    return True
        except asyncio.CancelledError:
            if not silent.is_set():
                raise
            raise NodeLost(Health.NODE_HEALTH_DOWN, SILENT) from None
        finally:
            self._silence.unwatch(self._node.address)
            call.cancel()
        return False

    def _watch_state(self, with_events: bool) -> StateCall:
        interval = duration_pb2.Duration()
        interval.FromMicroseconds(int(state_interval(len(self._registry.nodes)) * 1e6))
        return self._stub.WatchState(
            pb.WatchStateRequest(
                router_id=self._router_id, include_events=with_events, interval=interval
            )
        )

    def _apply(self, state: pb.NodeState, info: pb.NodeInfo) -> bool:
        """Takes in one state. False if block events before it are missing."""
        if state.epoch != info.epoch:
            raise NodeLost(Health.NODE_HEALTH_DOWN, f"restarted as epoch {state.epoch}")
        self._node.load = state.load
        self._ledger.report(info.name, state.load.last_dispatch_sequence)
        self._leases.apply(info.name, state)
        health = Health.NODE_HEALTH_DRAINING if state.draining else Health.NODE_HEALTH_UP
        self._registry.set_health(self._node, health)
        if not state.HasField("events"):
            self._index.confirm(info.name)
            return True
        return self._index.apply(info.name, info.epoch, state.events)

    def _suspect(self) -> None:
        self._registry.set_health(self._node, Health.NODE_HEALTH_DOWN, SILENT)
        self._node.drop_calls(NO_LIFE, streams=False)

    def _give_up(self, call: StateCall, silent: asyncio.Event) -> None:
        silent.set()
        self._node.drop_calls(NO_LIFE, streams=True)
        call.cancel()


def state_interval(nodes: int) -> float:
    """Seconds between two states of each of so many."""
    return min(max(INTERVALS[0], nodes / STATES), INTERVALS[1])
