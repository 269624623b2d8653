"""The miss-ratio curve of a trace: what an LRU cache of each size really finds."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.miss_ratio import miss_ratio_curve
from bench.routing import ideal_hit_tokens
from bench.trace import BLOCK_SIZE, TracedRequest


def request(chunks, last=BLOCK_SIZE):
    tokens = BLOCK_SIZE * (len(chunks) - 1) + last if chunks else 0
    return TracedRequest(0.0, tokens, 1, tuple(chunks))


def lru_hits(requests, block_size, size):
    """Block by block, with a dictionary in the order of use."""
    cache, hits = OrderedDict(), 0
    for each in requests:
        keys = [
            (each.blocks[end // BLOCK_SIZE], end)
            for end in range(block_size - 1, each.prompt_tokens, block_size)
        ]
        hits += sum(key in cache and key[1] < each.prompt_tokens - 1 for key in keys)
        for key in reversed(keys):
            cache[key] = True
            cache.move_to_end(key)
            while len(cache) > size:
                cache.popitem(last=False)
    return hits


@st.composite
def traces(draw):
    """Prompts that begin like earlier ones, as in a tree; a chunk of one id has one place."""
    requests, path = [], [(0,)]
    for number in range(1, draw(st.integers(2, 12))):
        base = draw(st.sampled_from(path))
        keep = draw(st.integers(0, len(base)))
        fresh = [100 * number + i for i in range(draw(st.integers(0, 4)))]
        chunks = (*base[:keep], *fresh)
        path.append(chunks)
        requests.append(request(chunks))
    return [each for each in requests if each.blocks] or [request((1,))]


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from([64, 128, 512]), st.integers(0, 200))
def test_it_equals_an_lru_cache_of_every_size(requests, block_size, size):
    curve = miss_ratio_curve(requests, block_size)
    assert curve.hit_blocks(size) == lru_hits(requests, block_size, size)


@settings(max_examples=30, deadline=None)
@given(traces(), st.integers(1, 40))
def test_it_says_what_the_block_pool_of_a_node_would_hit(requests, size):
    requests = [request([*each.blocks, 10_000 + i], last=1) for i, each in enumerate(requests)]
    curve = miss_ratio_curve(requests, BLOCK_SIZE)
    size = max(size, *(len(each.blocks) for each in requests))
    assert curve.hit_blocks(size) * BLOCK_SIZE == ideal_hit_tokens(requests, size)


@settings(max_examples=30, deadline=None)
@given(traces(), st.floats(0.05, 1.0))
def test_the_size_for_a_share_is_the_smallest_that_hits_it(requests, share):
    curve = miss_ratio_curve(requests, 64)
    size, best = curve.size_for(share), curve.hits[-1]
    assert curve.hit_blocks(size) >= share * best
    assert size == 0 or curve.hit_blocks(size - 1) < share * best


def test_a_chat_that_grows_is_hit_as_far_as_it_was_there():
    turns = [request([*range(n), 90 + n], last=1) for n in (1, 2, 3)]
    curve = miss_ratio_curve(turns, 16)
    chunk = BLOCK_SIZE // 16
    assert curve.distinct == 3 * chunk
    assert curve.hit_blocks(3 * chunk) == 3 * chunk
    assert curve.hit_blocks(chunk) == 2 * chunk, "the first chunk is the last to go"
    assert curve.hit_share(3 * chunk) == pytest.approx(1536 / (3072 + 3))


def test_the_end_of_a_prompt_is_never_hit():
    for last, hit in ((40, 2), (48, 2), (49, 3)):
        curve = miss_ratio_curve([request((1, 2), last=last)] * 2, 16)
        assert curve.hit_blocks(1000) == BLOCK_SIZE // 16 + hit


def test_a_trace_that_tells_no_blocks_is_refused():
    with pytest.raises(ValueError, match="trace: tells nothing"):
        miss_ratio_curve([TracedRequest(0.0, 100, 1, ())], 16)
