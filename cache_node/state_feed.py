"""The node's state as routers watch it: load and block events, on the event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from cache_node.lease_news import LeaseNews
from cache_node.step_output import Load, StepOutput
from kvmesh.v1 import cache_node_pb2 as pb
from prefix_index.event_log import EventLog

HEARTBEAT = 0.25  # seconds of silence at most: routers take a longer one for death


class StateFeed:
    """Holds the newest load and the event log, and wakes those who watch them."""

    def __init__(self, log: EventLog, load: Load) -> None:
        self.log = log
        self.load = load
        self.draining = False
        self.leases = LeaseNews()
        self._watchers: set[asyncio.Event] = set()

    def update(self, output: StepOutput) -> None:
        """Takes in one step's outcome."""
        self.load = output.load
        self.log.append(output.events)
        self.wake()

    def wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def watch(
        self, router: str, include_events: bool, interval: float, alive: Callable[[], bool]
    ) -> AsyncGenerator[pb.NodeState, None]:
        """States, the first at once: when something changed, at most every `interval` seconds, and
        as a heartbeat.
        """
        changed = asyncio.Event()
        self._watchers.add(changed)
        subscription = self.log.subscribe(changed) if include_events else None
        leases = self.leases.subscribe(router, changed)
        try:
            while alive():
                changed.clear()
                state = pb.NodeState(
                    epoch=self.log.epoch, load=self._load(router), draining=self.draining
                )
                batch = subscription.take() if subscription is not None else None
                if batch is not None:
                    state.events.CopyFrom(batch.to_proto())
                leases.fill(state)
                yield state
                await asyncio.sleep(interval)
                await _wait(changed, max(0.0, HEARTBEAT - interval))
        finally:
            self._watchers.discard(changed)
            self.leases.unsubscribe(router, leases)
            if subscription is not None:
                subscription.close()

    def _load(self, router: str) -> pb.NodeLoad:
        load = self.load
        return pb.NodeLoad(
            committed_blocks=load.committed_blocks,
            growth_share=load.growth_share,
            free_blocks=load.free_blocks,
            evictable_blocks=load.evictable_blocks,
            running=load.running,
            waiting=load.waiting,
            queued_prefill_tokens=load.queued_prefill_tokens,
            prefill_tokens_per_second=load.prefill_tokens_per_second,
            decode_tokens_per_second=load.decode_tokens_per_second,
            last_dispatch_sequence=load.last_dispatch.get(router, 0),
            steps_without_progress=load.counters.steps_without_progress,
            preemptions=load.counters.preemptions,
            queried_tokens=load.counters.queried_tokens,
            hit_tokens=load.counters.hit_tokens + load.counters.loaded_tokens,
            output_tokens=load.counters.output_tokens,
            cpu_held_blocks=load.cpu_held_blocks,
            cpu_cached_blocks=load.cpu_cached_blocks,
            cpu_free_blocks=load.cpu_free_blocks,
        )


async def _wait(event: asyncio.Event, timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        pass
