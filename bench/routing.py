"""What routing makes of a trace: the router's own placement, index and ledger over simulated nodes.

Ideal is one node whose pool is as large as all pools together, one request at a time.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import cast

from bench.figures import Goal, quantile
from bench.simulated_node import SimulatedNode, VirtualClock, Work
from bench.trace import BLOCK_SIZE, TracedRequest
from cache_node.block_pool import BlockPool
from cache_node.key_chain import BlockContent
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2
from prefix_index.keys import KEY_BYTES, TOKEN_BYTES, block_keys
from router.config import RouterConfig
from router.eligibility import Eligibility
from router.fleet import Model
from router.index import Index
from router.ledger import Ledger
from router.node import Health
from router.node import Node as KnownNode
from router.placement import Placement
from router.prompt import Prompt
from router.registry import Registry
from router.request_size import RequestSize, blocks_of
from router.watermark import Marks, Watermark

DEFAULTS = RouterConfig(nodes=("simulated:1",))
MEASURED = ("prefix-aware", "least-loaded", "round-robin", "random")
ROOT = bytes(KEY_BYTES)
MAX_NUM_SEQS = 256  # a node's default
STATE_SECONDS = 0.01  # between two reports of a node
HIT_GOAL = 0.9  # of the ideal's hit tokens, at least
SPREAD_GOAL = 1.3  # largest of the nodes' prefilled tokens over their mean, at most


@dataclass(frozen=True, slots=True)
class Routed:
    """What a policy made of the trace."""

    policy: str
    hit_tokens: int
    prefilled: tuple[int, ...]  # tokens, by node
    ttfts: tuple[float, ...]  # seconds from arrival to the first token

    @property
    def hit_share(self) -> float:
        return self.hit_tokens / (self.hit_tokens + sum(self.prefilled))

    @property
    def spread(self) -> float:
        return max(self.prefilled) / mean(self.prefilled)

    @property
    def ttft_mean(self) -> float:
        return mean(self.ttfts)

    @property
    def ttft_quantiles(self) -> tuple[float, float]:
        """The median, and what 95 of 100 are below."""
        ranked = sorted(self.ttfts)
        return quantile(ranked, 0.5), quantile(ranked, 0.95)

    def as_json(self) -> dict[str, object]:
        p50, p95 = self.ttft_quantiles
        return {
            "policy": self.policy,
            "hit_tokens": self.hit_tokens,
            "hit_share": self.hit_share,
            "prefilled_tokens": list(self.prefilled),
            "spread": self.spread,
            "ttft_seconds": {"mean": self.ttft_mean, "p50": p50, "p95": p95},
        }


@dataclass(frozen=True, slots=True)
class Routing:
    """All policies on one trace. `ideal`: hit tokens of one pool as large as all together."""

    ideal: int
    policies: tuple[Routed, ...]  # prefix-aware first

    @property
    def goals(self) -> list[Goal]:
        ours = self.policies[0]
        of_ideal = ours.hit_tokens / self.ideal if self.ideal else 1.0
        return [
            Goal("hit tokens of one pool of the summed size", of_ideal, HIT_GOAL, at_most=False),
            Goal(
                "largest of the nodes' prefilled tokens over their mean", ours.spread, SPREAD_GOAL
            ),
        ]


def measure_routing(
    requests: Sequence[TracedRequest], nodes: int, num_blocks: int, seed: int = 0
) -> Routing:
    """Raises ValueError for a prompt that fits no node."""
    longest = max(
        blocks_of(each.prompt_tokens + each.output_tokens, BLOCK_SIZE) for each in requests
    )
    if longest > num_blocks:
        raise ValueError(f"blocks: a request of the trace takes {longest}, a node has {num_blocks}")
    routed = tuple(
        asyncio.run(route_trace(requests, policy, nodes, num_blocks, seed)) for policy in MEASURED
    )
    return Routing(ideal_hit_tokens(requests, nodes * num_blocks), routed)


async def route_trace(
    requests: Sequence[TracedRequest], policy: str, nodes: int, num_blocks: int, seed: int = 0
) -> Routed:
    """Runs the trace at its own times. Needs a running event loop, where nothing ever waits."""
    fleet = _Fleet(policy, nodes, num_blocks, seed)
    for request in requests:
        fleet.clock.after(request.arrival, lambda request=request: fleet.arrive(request))  # type: ignore[misc]
    fleet.clock.run()
    await fleet.registry.close()
    fleet.ledger.check_integrity()
    assert fleet.ledger.idle
    served = [each.node for each in fleet.nodes]
    return Routed(
        policy,
        sum(node.hit_tokens for node in served),
        tuple(node.prefilled_tokens for node in served),
        tuple(fleet.ttfts),
    )


def ideal_hit_tokens(requests: Iterable[TracedRequest], num_blocks: int) -> int:
    """Of one pool of `num_blocks` that holds nothing but what it has cached."""
    pool, hit = BlockPool(num_blocks, BLOCK_SIZE, cache_node_pb2.TIER_GPU, []), 0
    for request in requests:
        chain = contents(request.token_ids)
        hits = pool.lookup(chain)
        hit += len(hits) * BLOCK_SIZE
        table = pool.allocate(len(chain) - len(hits), hits)
        assert table is not None, "the pool holds any one prompt"
        for block, content in zip(table[len(hits) :], chain[len(hits) :], strict=True):
            pool.publish(block, content)
        pool.free(table)
    return hit


def contents(token_ids: bytes) -> list[BlockContent]:
    """Of the blocks of a prompt that may be hit: its last token is always computed."""
    keys = block_keys(ROOT, token_ids[:-TOKEN_BYTES], BLOCK_SIZE)
    size = BLOCK_SIZE * TOKEN_BYTES
    return [
        BlockContent(key, parent, token_ids[place * size : (place + 1) * size])
        for place, (parent, key) in enumerate(zip([ROOT, *keys], keys, strict=False))
    ]


class _Fleet:
    """A router's parts, and what its watchers do."""

    def __init__(self, policy: str, nodes: int, num_blocks: int, seed: int) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self.registry = Registry([f"simulated-{number}:1" for number in range(nodes)])
        self.index = Index(None, "")
        self.nodes = [
            _Watched(known, num_blocks, self.clock, self.index, self.ledger)
            for known in self.registry.nodes
        ]
        rng = random.Random(seed)
        self._placement = Placement(
            self.registry,
            Eligibility(0.0, self.clock, rng),
            self.index,
            self.ledger,
            Watermark(self.ledger, Marks(DEFAULTS.low_watermark, DEFAULTS.high_watermark)),
            policy,
            rng,
            self.clock,
        )
        self._by_name = {each.known.name: each.node for each in self.nodes}
        self._arrived = 0
        self.ttfts: list[float] = []

    def arrive(self, request: TracedRequest) -> None:
        token_ids = request.token_ids
        chain = contents(token_ids)
        keys = [content.key for content in chain]
        prompt = Prompt(token_ids, request.prompt_tokens, keys, tokenize_us=0, key_us=0)
        self._arrived += 1
        size = RequestSize(request.prompt_tokens, request.output_tokens, 1, BLOCK_SIZE)
        placed = self._placement.place(str(self._arrived), prompt, MODEL, 1, size)
        reservation, arrived = placed.reservation, self.clock.now

        def first_token() -> None:
            self.ledger.prefilled(reservation)
            self.ttfts.append(self.clock.now - arrived)

        self._by_name[placed.node.name].submit(
            Work(
                reservation.sequence,
                chain,
                request.prompt_tokens,
                request.output_tokens,
                on_first=first_token,
                on_end=lambda: self.ledger.release(reservation),
            )
        )


class _Watched:
    """A node and its state stream."""

    def __init__(
        self,
        known: KnownNode,
        num_blocks: int,
        clock: VirtualClock,
        index: Index,
        ledger: Ledger,
    ) -> None:
        self.known = known
        self.node = SimulatedNode(num_blocks, BLOCK_SIZE, clock, self._change)
        self._clock, self._index, self._ledger = clock, index, ledger
        self._events = self.node.log.subscribe()
        self._reporting = False
        known.num_blocks, known.epoch = num_blocks, self.node.log.epoch
        known.max_num_seqs = MAX_NUM_SEQS
        known.health = Health.NODE_HEALTH_UP
        index.opened(known.name, known.epoch)
        self._report()

    def _change(self) -> None:
        if not self._reporting:
            self._reporting = True
            self._clock.after(STATE_SECONDS, self._report)

    def _report(self) -> None:
        self._reporting = False
        self.known.load = self.node.load()
        self._ledger.report(self.known.name, self.known.load.last_dispatch_sequence)
        if (batch := self._events.take()) is not None:
            assert self._index.apply(self.known.name, self.known.epoch, batch.to_proto())


MODEL = Model(
    name="traced",
    max_model_len=1 << 20,
    vocab_size=1 << 32,
    block_size=BLOCK_SIZE,
    tokenizer=cast(Tokenizer, None),  # the trace has no text
    root_of=lambda _salt: ROOT,
    created=0,
)
