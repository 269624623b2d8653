"""CPU time of a routing decision, without a network: block keys, look-up, admission, choice."""

import asyncio
import os
import random
import time
import tracemalloc
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import cast

from bench.figures import Goal
from kvmesh.process_memory import settle
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1.cache_node_pb2 import TIER_GPU, NodeLoad
from prefix_index.batch import Batch
from prefix_index.events import Event, Removed, Stored, pack, pack_held
from prefix_index.keys import KEY_BYTES, TOKEN_BYTES, block_keys
from prefix_index.mirror import Mirror
from router.admitting import Admitting
from router.config import RouterConfig
from router.eligibility import Eligibility
from router.fleet import Model
from router.index import Index
from router.ledger import Ledger
from router.metrics import RouterMetrics
from router.node import Health
from router.placement import Placed, Placement
from router.prompt import Prompt
from router.registry import Registry
from router.request_size import RequestSize, check_fits, fit_max_tokens
from router.tenants import EVERYBODY

NODES, BLOCK_SIZE, OUTPUT = 8, 16, 64
BLOCKS = (64, 256)  # of a prompt
ENTRIES = 1_000_000  # of the mirror
ROUND, AGAIN = 50, 5  # requests, and times that each is matched again
BATCH = 64  # keys of one engine step
ROUTING_GOAL, MATCH_GOAL = 200.0, 10.0  # µs
BYTES_GOAL, UPDATES_GOAL = 150.0, 100_000.0  # bytes an entry: MB a million; a second
ROOT = bytes(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class Decision:
    """Means over requests in µs of CPU time, at so many blocks. All nodes hold the whole prompt."""

    blocks: int
    total: float  # from token ids to a reservation, and what the request held given back
    keys: float
    admit: float  # checks of size, limits, queue, watermark
    place: float  # match, choice, reservation
    match: float  # of it: of keys that were looked up before
    match_fresh: float  # of keys just made, whose hash Python has not computed yet


@dataclass(frozen=True, slots=True)
class MirrorCost:
    bytes_an_entry: float
    updates_a_second: float  # one after the other in steps of BATCH, stored and removed


@dataclass(frozen=True, slots=True)
class RoutingCost:
    decisions: tuple[Decision, ...]
    mirror: MirrorCost

    @property
    def goals(self) -> list[Goal]:
        largest = self.decisions[-1]
        mirror = self.mirror
        return [
            Goal(f"routing at {largest.blocks} blocks, µs", largest.total, ROUTING_GOAL),
            Goal(f"match of {largest.blocks} blocks alone, µs", largest.match, MATCH_GOAL),
            Goal("MB of a mirror of a million entries", mirror.bytes_an_entry, BYTES_GOAL),
            Goal("updates a second", mirror.updates_a_second, UPDATES_GOAL, at_most=False),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "decisions": [asdict(each) for each in self.decisions],
            "mirror": asdict(self.mirror),
        }


def measure_routing_cost(requests: int, entries: int = ENTRIES) -> RoutingCost:
    """`requests` of each length, in rounds of which the fastest counts: others take turns on the
    machine, and can only slow us down.
    """
    decisions = tuple(asyncio.run(_decide(blocks, requests)) for blocks in BLOCKS)
    return RoutingCost(decisions, measure_mirror(entries))


def measure_mirror(entries: int) -> MirrorCost:
    """Half of the entries are keys of two nodes."""
    keys = [os.urandom(KEY_BYTES) for _ in range(entries * 3 // 4)]
    snapshots = [
        Batch(0, 1, True, pack_held({TIER_GPU: part}))
        for part in (keys[: entries // 2], keys[entries // 4 :])
    ]
    del keys
    tracemalloc.start()
    mirror = Mirror()
    for number, snapshot in enumerate(snapshots):
        mirror.set_epoch(f"node-{number}", 1)
        assert mirror.apply(f"node-{number}", 1, snapshot)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return MirrorCost(held / entries, _updates(mirror))


def _updates(mirror: Mirror, steps: int = 500) -> float:
    """Entries a second, fastest of three: what a node stored some steps ago it removes again."""
    fresh = [[os.urandom(KEY_BYTES) for _ in range(BATCH)] for _ in range(steps)]
    fastest, state = float("inf"), 1
    for _ in range(3):
        batches = []
        for step, keys in enumerate(fresh):
            events: list[Event] = [Stored(key, TIER_GPU) for key in keys]
            events += [Removed(key, TIER_GPU) for key in fresh[step - 10]]
            batches.append(Batch(state, state + 1, False, pack(events)))
            state += 1
        start = time.thread_time()
        for batch in batches:
            assert mirror.apply("node-0", 1, batch)
        fastest = min(fastest, time.thread_time() - start)
    return 2 * BATCH * steps / fastest


async def _decide(blocks: int, requests: int) -> Decision:
    router = _Router()
    try:
        prompts = [os.urandom(blocks * BLOCK_SIZE * TOKEN_BYTES + TOKEN_BYTES) for _ in range(20)]
        router.hold([block_keys(ROOT, prompt, BLOCK_SIZE) for prompt in prompts])
        settle()  # as the router does
        whole, parts = [], []
        for _ in range(max(1, requests // ROUND)):
            whole.append(await router.whole(prompts))
            parts.append(await router.parts(prompts))
        keys, admit, place, match, fresh = (min(each) for each in zip(*parts, strict=True))
        return Decision(blocks, min(whole), keys, admit, place, match, fresh)
    finally:
        await router.close()


class _Router:
    """A router's parts over nodes that are up, and that nobody talks to."""

    def __init__(self) -> None:
        config = RouterConfig(nodes=tuple(f"node-{number}:1" for number in range(NODES)))
        self._registry = Registry(config.nodes)
        self._ledger = Ledger()
        self._index = Index(None, "")
        metrics = RouterMetrics().admission
        self._admitting = Admitting(config, self._registry, self._ledger, metrics, "bench")
        rng = random.Random(0)
        self._placement = Placement(
            self._registry,
            Eligibility(0.0, time.monotonic, rng),
            self._index,
            self._ledger,
            self._admitting.watermark,
            config.policy,
            rng,
        )
        for node in self._registry.nodes:
            node.num_blocks, node.max_num_seqs, node.epoch = 1 << 20, 256, 1
            node.health, node.load = Health.NODE_HEALTH_UP, NodeLoad(free_blocks=1 << 20)
        self._count = 0

    def hold(self, chains: list[list[bytes]]) -> None:
        """All nodes have all blocks of these prompts."""
        keys = [key for chain in chains for key in chain]
        events = Batch(0, 1, True, pack_held({TIER_GPU: keys})).to_proto()
        for node in self._registry.nodes:
            self._index.opened(node.name, 1)
            assert self._index.apply(node.name, 1, events)

    async def whole(self, prompts: list[bytes]) -> float:
        """Mean µs of a request."""
        start = time.thread_time_ns()
        for number in range(ROUND):
            prompt = _keyed(prompts[number % len(prompts)])
            with ExitStack() as holds:
                size = await self._admit(prompt, holds)
                self._ledger.release(self._place(prompt, size).reservation)
        return (time.thread_time_ns() - start) / ROUND / 1e3

    async def parts(self, prompts: list[bytes]) -> list[float]:
        """Mean µs of keys, admission, placement, and of a match: once more, and of fresh keys."""
        spent, clock, index = [0] * 5, time.thread_time_ns, self._index
        for number in range(ROUND):
            token_ids = prompts[number % len(prompts)]
            start = clock()
            prompt = _keyed(token_ids)
            keyed = clock()
            with ExitStack() as holds:
                size = await self._admit(prompt, holds)
                admitted = clock()
                placed = self._place(prompt, size)
                chosen = clock()
                self._ledger.release(placed.reservation)
            index.match(prompt.keys)
            known = clock()
            for _ in range(AGAIN):
                index.match(prompt.keys)
            matched = clock()
            fresh = _keyed(token_ids).keys
            made = clock()
            index.match(fresh)
            steps = (
                keyed - start,
                admitted - keyed,
                chosen - admitted,
                (matched - known) // AGAIN,
                clock() - made,
            )
            spent = [before + now for before, now in zip(spent, steps, strict=True)]
        return [each / ROUND / 1e3 for each in spent]

    async def _admit(self, prompt: Prompt, holds: ExitStack) -> RequestSize:
        """What RouterCore does between keys and dispatch."""
        sampling = pb.SamplingParams(max_tokens=OUTPUT)
        largest = self._registry.largest_pool
        assert largest is not None
        fit_max_tokens(sampling, prompt.count, MODEL, largest)
        size = RequestSize.of(sampling, prompt.count, BLOCK_SIZE)
        check_fits(size, largest)
        admission = self._admitting.admission
        holds.enter_context(admission.slot(EVERYBODY))
        deadline = time.monotonic() + 60.0
        holds.enter_context(closing(await admission.start(EVERYBODY, 0, size, deadline)))
        return size

    def _place(self, prompt: Prompt, size: RequestSize) -> Placed:
        self._count += 1
        return self._placement.place(str(self._count), prompt, MODEL, 1, size)

    async def close(self) -> None:
        await self._admitting.close()
        await self._registry.close()


def _keyed(token_ids: bytes) -> Prompt:
    keys = block_keys(ROOT, token_ids[:-TOKEN_BYTES], BLOCK_SIZE)
    return Prompt(token_ids, len(token_ids) // TOKEN_BYTES, keys, tokenize_us=0, key_us=0)


MODEL = Model(
    name="none",
    max_model_len=1 << 20,
    vocab_size=1 << 32,
    block_size=BLOCK_SIZE,
    tokenizer=cast(Tokenizer, None),  # nothing is tokenised
    root_of=lambda _salt: ROOT,
    created=0,
)
