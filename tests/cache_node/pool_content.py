"""Contents for a pool under test."""

from cache_node.block_pool import BlockPool
from cache_node.key_chain import BlockContent, KeyChain
from kvmesh.v1.cache_node_pb2 import TIER_GPU

ROOT = b"r" * 16
BLOCK = 4


def make_pool(num_blocks: int, block_size: int = BLOCK) -> BlockPool:
    """A pool whose events are in its attribute `events`."""
    events: list = []
    pool = BlockPool(num_blocks, block_size, TIER_GPU, events)
    pool.events = events
    return pool


def chain(tokens: list[int], block_size: int = BLOCK) -> list[BlockContent]:
    return list(KeyChain(ROOT, block_size).extend_to(tokens, len(tokens) // block_size))


def cached(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Fills blocks with `tokens`, publishes them and lets them go."""
    contents = chain(tokens)
    table = pool.allocate(len(contents))
    for block, content in zip(table, contents, strict=True):
        pool.publish(block, content)
    pool.free(table)
    return table
