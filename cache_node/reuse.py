"""What of a sequence's KV exists already, and where."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from cache_node.block_pool import BlockPool
from cache_node.cpu_tier import CpuTier
from cache_node.key_chain import BlockContent
from cache_node.sequence import Sequence
from cache_node.step_plan import BlockId


@dataclass(slots=True)
class Reuse:
    """The leading tokens of a sequence that need not be computed.

    `kv` and `cpu` map places of the block table to blocks that hold what belongs there; `partial`
    is a block whose first tokens belong at the place behind them.
    """

    tokens: int = 0
    kv: dict[int, BlockId] = field(default_factory=dict)
    cpu: dict[int, BlockId] = field(default_factory=dict)
    partial: BlockId | None = None
    missing: BlockContent | None = None  # the first whole block that is nowhere

    @property
    def sources(self) -> list[BlockId]:
        """KV blocks that must not be reused while the table is being built."""
        return [*self.kv.values(), *([] if self.partial is None else [self.partial])]


def find_reuse(sequence: Sequence, pool: BlockPool, tier: CpuTier | None) -> Reuse:
    """Fresh at every try, since blocks come and go. Takes no reference.

    The last token is always left out: it is computed, into a block of the sequence's own.
    """
    if sequence.swapped:
        return _swapped(sequence, pool)
    if not sequence.request.use_cache or sequence.scores_prompt:
        return Reuse()  # the prompt's log-probabilities need every one of its tokens computed
    reuse = Reuse()
    whole = (len(sequence.tokens) - 1) // pool.block_size
    contents = sequence.keys.extend_to(sequence.tokens, whole)
    for place, content in enumerate(contents):
        if not _place(reuse, place, content, pool, tier):
            reuse.missing = content
            break
    found = len(reuse.kv) + len(reuse.cpu)
    reuse.tokens = found * pool.block_size
    if not reuse.cpu:
        _match_partial(reuse, sequence, pool, found)
    return reuse


def _swapped(sequence: Sequence, pool: BlockPool) -> Reuse:
    """What was computed before the preemption: from the KV pool where it still is, else swapped."""
    reuse = Reuse(tokens=sequence.swapped_tokens)
    whole = sequence.swapped_tokens // pool.block_size if sequence.request.use_cache else 0
    contents = sequence.keys.extend_to(sequence.tokens, whole)
    for place, block in enumerate(sequence.swapped):
        hit = pool.find(contents[place]) if place < whole else None
        if hit is None:
            reuse.cpu[place] = block
        else:
            reuse.kv[place] = hit
    return reuse


def _place(
    reuse: Reuse, place: int, content: BlockContent, pool: BlockPool, tier: CpuTier | None
) -> bool:
    if (block := pool.find(content)) is not None:
        reuse.kv[place] = block
    elif tier is not None and (block := tier.find(content)) is not None:
        reuse.cpu[place] = block
    else:
        return False
    return True


def _match_partial(reuse: Reuse, sequence: Sequence, pool: BlockPool, place: int) -> None:
    """The longest run of tokens inside the first block that differs, by copy: sharing as fine as a
    radix tree's (SGLang), on paged memory.
    """
    start = place * pool.block_size
    rest: Seq[int] = sequence.tokens[start : min(start + pool.block_size, len(sequence.tokens) - 1)]
    match = pool.find_partial(sequence.keys.parent(place), rest) if rest else None
    if match is not None:
        reuse.partial, shared = match
        reuse.tokens += shared
