"""Routing on a trace: the product's own parts on a virtual clock."""

import asyncio
import json
import random

import pytest

from bench.routing import ROOT, contents, ideal_hit_tokens, measure_routing, route_trace
from bench.simulated_node import PREFILL_SPEED, SimulatedNode, VirtualClock, Work
from bench.trace import BLOCK_SIZE, TracedRequest, read_trace
from prefix_index.keys import block_keys

NODES, BLOCKS = 4, 300


def conversations(count, seed=1):
    """Turns of conversations as in the recorded trace: all share their first block, each turn
    repeats the one before, and prompts are thousands of tokens long.
    """
    draw, open_ones, made, fresh, now = random.Random(seed), [], [], 0, 0.0
    for _ in range(count):
        now += draw.expovariate(2.0)
        if open_ones and draw.random() < 0.6:
            blocks = open_ones.pop(draw.randrange(len(open_ones)))
        else:
            blocks = (0,)
        grown = draw.randint(4, 16)
        blocks = (*blocks, *range(fresh + 1, fresh + grown + 1))
        fresh += grown
        if len(blocks) < 60:
            open_ones = [*open_ones, blocks][-100:]
        tokens = len(blocks) * BLOCK_SIZE - draw.randrange(BLOCK_SIZE)
        made.append(TracedRequest(now, tokens, draw.randint(20, 600), blocks))
    return made


@pytest.fixture(scope="module")
def measured():
    return measure_routing(conversations(300), NODES, BLOCKS)


def test_prefix_aware_nearly_reaches_one_cache_of_the_summed_size_and_spreads_the_work(measured):
    assert 0.1 < measured.ideal / sum(each.prompt_tokens for each in conversations(300)) < 0.9
    assert [goal.met for goal in measured.goals] == [True, True]


def test_policies_that_do_not_look_hit_less_and_wait_longer(measured):
    ours, *others = measured.policies
    for other in others:
        assert other.hit_tokens < 0.8 * ours.hit_tokens, other.policy
        assert other.ttft_mean > ours.ttft_mean, other.policy


def test_what_is_not_hit_is_prefilled(measured):
    total = sum(each.prompt_tokens for each in conversations(300))
    for each in measured.policies:
        assert each.hit_tokens + sum(each.prefilled) == total
        assert len(each.ttfts) == 300


def test_the_same_again():
    again = [
        asyncio.run(route_trace(conversations(60), "prefix-aware", 2, 100, seed=4))
        for _ in range(2)
    ]
    assert again[0] == again[1]


def test_the_ideal_forgets_what_was_used_least_lately():
    def turn(*blocks):
        return TracedRequest(0.0, len(blocks) * BLOCK_SIZE + 1, 1, (*blocks, 99))

    assert ideal_hit_tokens([turn(1, 2), turn(1, 2)], 4) == 2 * BLOCK_SIZE
    assert ideal_hit_tokens([turn(1, 2), turn(3, 4), turn(1, 2)], 4) == 2 * BLOCK_SIZE
    assert ideal_hit_tokens([turn(1, 2), turn(3, 4), turn(5), turn(1, 2)], 4) == BLOCK_SIZE


def test_a_node_prefills_one_after_the_other_and_tells_so():
    clock, first = VirtualClock(), []
    node = SimulatedNode(100, BLOCK_SIZE, clock, lambda: None)
    prompt = TracedRequest(0.0, 10 * BLOCK_SIZE + 1, 1, tuple(range(11)))
    chain = contents(prompt.token_ids)
    assert [content.key for content in chain] == block_keys(ROOT, prompt.token_ids, BLOCK_SIZE)

    def submit(sequence):
        node.submit(
            Work(sequence, chain, prompt.prompt_tokens, 1, lambda: first.append(clock.now), int)
        )

    submit(1)
    submit(2)
    load = node.load()
    assert (load.running, load.waiting, load.last_dispatch_sequence) == (1, 1, 2)
    assert load.queued_prefill_tokens == 2 * prompt.prompt_tokens
    clock.run()
    assert first == pytest.approx(
        [prompt.prompt_tokens / PREFILL_SPEED, first[0] + 1 / PREFILL_SPEED]
    )
    assert node.hit_tokens == 10 * BLOCK_SIZE
    assert (node.load().running, node.load().evictable_blocks) == (0, 10)
    assert node.pool.check_integrity([]) == []


def test_a_trace_is_read_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}
    path.write_text(f"{json.dumps(line)}\n\n" * 3)
    (request,) = read_trace(path, 1)
    assert request == TracedRequest(1.5, 600, 7, (3, 4))
    assert len(request.token_ids) == 4 * 600
    with pytest.raises(ValueError, match="3 requests, 4"):
        read_trace(path, 4)
    for wrong in ("{}", "nonsense", json.dumps({**line, "hash_ids": [3]})):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="Mooncake"):
            read_trace(path, 1)


def test_a_request_that_no_node_holds_is_named():
    with pytest.raises(ValueError, match="blocks"):
        measure_routing([TracedRequest(0.0, 5000, 1, tuple(range(10)))], 2, 5)
