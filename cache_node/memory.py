"""All KV memory of a node as the scheduler uses it: tables grow, fork, move between the tiers."""

from collections.abc import Sequence as Seq

from cache_node.block_pool import BlockPool
from cache_node.cpu_tier import CpuTier
from cache_node.loads import Load, LoadDone, Loader, Loads
from cache_node.pins import Pins
from cache_node.reuse import Reuse, find_reuse
from cache_node.sequence import Sequence
from cache_node.step import Step
from cache_node.step_plan import BlockCopy, BlockId
from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU
from prefix_index.events import Event

LOAD_TIMEOUT = 5.0
"""Seconds after which a load from the CPU pool is given up and its tokens are computed."""


class KvMemory:
    """The KV pool, the CPU pool below it, the loads between them, and the pins.

    Block tables belong to sequences; every method here leaves them whole: it does all of what its
    name says, or returns False and has changed nothing.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_cpu_blocks: int = 0,
        loader: Loader | None = None,
    ) -> None:
        """Without CPU blocks there is no second tier, and `loader` is not used."""
        self._events: list[Event] = []
        self.pool = BlockPool(num_blocks, block_size, TIER_GPU, self._events)
        self.pins = Pins(self.pool)
        self.tier: CpuTier | None = None
        self.loads: Loads | None = None
        if num_cpu_blocks and loader is not None:
            cpu = BlockPool(num_cpu_blocks, block_size, TIER_CPU, self._events)
            self.tier = CpuTier(cpu)
            self.loads = Loads(self.pool, cpu, loader, LOAD_TIMEOUT)
            self.pool.on_evict = self.tier.keep

    def drain_events(self) -> list[Event]:
        """What became visible or went away since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    def find_reuse(self, sequence: Sequence) -> Reuse:
        hanging = self.loads is not None and self.loads.hanging
        if hanging:
            self._drop_swapped(sequence)
        return find_reuse(sequence, self.pool, None if hanging else self.tier)

    def missing(self, sequence: Sequence, reuse: Reuse) -> int:
        """Blocks that its tokens need beside those that `reuse` found in the KV pool."""
        return self.pool.blocks_for(len(sequence.tokens)) - len(reuse.kv)

    def start(self, sequence: Sequence, reuse: Reuse, step: Step, now: float) -> bool:
        """Gives the sequence a table for all its tokens, with what can be reused in it. Whether it
        can run in this step; if not, it has a load to wait for.
        """
        self._hold(reuse)
        count = self.missing(sequence, reuse)
        table = self.pool.allocate(count, reuse.sources)
        assert table is not None, "who starts a sequence has made sure that it fits"
        fresh = iter(table[len(reuse.sources) :])
        places = range(len(reuse.kv) + count)
        sequence.block_table = [
            reuse.kv[place] if place in reuse.kv else next(fresh) for place in places
        ]
        if reuse.partial is not None:
            step.copy(sequence, len(reuse.kv), reuse.partial)
        sequence.num_computed = reuse.tokens
        sequence.num_published = len(reuse.kv)
        if not reuse.cpu:
            self._drop_swapped(sequence)
            return True
        self._load(sequence, reuse, now)
        return False

    def grow(self, sequence: Sequence, step: Step) -> bool:
        """Makes room for the newest token, in a block that nobody else holds (copy-on-write)."""
        place = sequence.num_computed // self.pool.block_size
        table = sequence.block_table
        shared = place < len(table) and self._is_shared(table[place], step)
        missing = self.pool.blocks_for(len(sequence.tokens)) - len(table)
        blocks = self.pool.allocate(missing + shared)
        if blocks is None:
            return False
        if shared:
            source, table[place] = table[place], blocks.pop()
            step.copy(sequence, place, source)
        table += blocks
        return True

    def fork(self, sequence: Sequence, sample_index: int) -> Sequence:
        """Another sample over the same blocks."""
        return sequence.fork(sample_index, self.pool.share(sequence.block_table))

    def publish(self, sequence: Sequence) -> None:
        """Makes the full blocks that were computed since the last time hit-able."""
        full = sequence.num_computed // self.pool.block_size
        if sequence.request.use_cache and full > sequence.num_published:
            contents = sequence.keys.extend_to(sequence.tokens, full)
            for place in range(sequence.num_published, full):
                self.pool.publish(sequence.block_table[place], contents[place])
        sequence.num_published = full

    def swap_out(self, sequence: Sequence) -> bool:
        """Copies what is computed down, and holds it there for the sequence."""
        if self.tier is None or (self.loads is not None and self.loads.hanging):
            return False
        published = sequence.num_published if sequence.request.use_cache else 0
        return self.tier.swap_out(sequence, sequence.keys.extend_to(sequence.tokens, published))

    def release(self, sequence: Sequence) -> None:
        """Gives the table back. What is in the CPU pool for the sequence stays there."""
        self.pool.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_published = 0

    def forget(self, sequence: Sequence) -> None:
        """Gives everything back; a load of it runs on for nobody."""
        if self.loads is not None:
            self.loads.give_up(sequence)
        self._drop_swapped(sequence)
        self.release(sequence)

    def on_loaded(self, done: LoadDone) -> None:
        """Whom the loader tells, on its own thread, that it is done with a load."""
        if self.loads is not None:
            self.loads.done = done

    @property
    def pending_offloads(self) -> list[BlockCopy]:
        """What the next step has to copy down before anything else."""
        return self.tier.pending if self.tier is not None else []

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences whose load should have been there by now."""
        return self.loads.overdue(now) if self.loads is not None else []

    def finish_load(self, number: int, whole: bool) -> Load | None:
        """The load with that number, if somebody still waits for it. Its references are given back:
        the sequence has its own.
        """
        return self.loads.finish(number, whole) if self.loads is not None else None

    def loaded(self, sequence: Sequence, tokens: int) -> None:
        """The KV of so many tokens is in the sequence's blocks."""
        sequence.num_computed = tokens
        self.publish(sequence)
        self._drop_swapped(sequence)

    def commit(self, step: Step) -> None:
        """The step has run."""
        self.pool.free(step.sources)
        if self.tier is not None:
            self.tier.commit()
        self._launch_loads()

    def rollback(self, step: Step) -> None:
        """The step has failed."""
        self.pool.free(step.sources)
        if self.tier is not None:
            self.tier.rollback()
        self._launch_loads()

    def clear_cache(self, pins: bool) -> int:
        """Forgets what is cached and not held, in both tiers; with `pins`, what they hold too. How
        many blocks that were.
        """
        if pins:
            self.pins.clear()
        below = self.tier.pool.clear_cache() if self.tier is not None else 0
        return self.pool.clear_cache() + below

    def check_integrity(self, tables: Seq[Seq[int]], swapped: Seq[Seq[int]]) -> list[str]:
        """Violations, given all block tables and all that is swapped, between two steps."""
        loading = list(self.loads.tables()) if self.loads is not None else []
        found = self.pool.check_integrity([*tables, *self.pins.tables, *(kv for kv, _ in loading)])
        if self.tier is not None:
            below = self.tier.pool.check_integrity([*swapped, *(cpu for _, cpu in loading)])
            found += [f"CPU pool: {violation}" for violation in below]
        return found

    def _is_shared(self, block: BlockId, step: Step) -> bool:
        """Whether another sequence reads it. The copies of the step run before anything is written:
        the last of those that shared a block keeps it.
        """
        return self.pool.references(block) - step.references(block) > 1

    def _launch_loads(self) -> None:
        if self.loads is not None:
            self.loads.launch()

    def _hold(self, reuse: Reuse) -> None:
        """References on what will be loaded, since building the table may move other blocks down
        and evict these.
        """
        if reuse.cpu:
            assert self.tier is not None
            self.tier.pool.allocate(0, list(reuse.cpu.values()))

    def _load(self, sequence: Sequence, reuse: Reuse, now: float) -> None:
        assert self.loads is not None
        sequence.num_computed = _leading(reuse) * self.pool.block_size
        sequence.num_published = _leading(reuse)
        copies = [
            BlockCopy(block, sequence.block_table[place]) for place, block in reuse.cpu.items()
        ]
        self.loads.start(sequence, copies, reuse.tokens, now)

    def _drop_swapped(self, sequence: Sequence) -> None:
        if sequence.swapped and self.tier is not None:
            self.tier.release(sequence)


def _leading(reuse: Reuse) -> int:
    """Places from the first on that need no load."""
    return min(reuse.cpu, default=len(reuse.kv))
