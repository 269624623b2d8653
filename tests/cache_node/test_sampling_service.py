"""How tokens are chosen, as a client of a live node asks for it and is told of it."""

import math
from collections import defaultdict

import grpc

from kvmesh.packing import unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from tests.cache_node.mock_node import tokens

PROMPT = tokens(20)


async def frames(live, prompt=PROMPT, **fields) -> list[pb.GenerateResponse]:
    call, found = live.call(list(prompt), **fields), []
    while (frame := await call.read()) is not grpc.aio.EOF:
        found.append(frame)
    return found


def by_sample(found: list[pb.GenerateResponse]) -> dict[int, list[int]]:
    samples: dict[int, list[int]] = defaultdict(list)
    for frame in found:
        for delta in frame.deltas:
            samples[delta.index] += unpack_tokens(delta.token_ids)
    return dict(samples)


async def test_a_bias_of_100_decides_and_penalties_end_the_repetition(live):
    biased = await live.generate(PROMPT, max_tokens=4, logit_bias={77: 100.0})
    assert biased.tokens == [77] * 4
    asked = {"logit_bias": {77: 100.0, 78: 100.0}, "repetition_penalty": 10.0}
    first, second = (await live.generate(PROMPT, max_tokens=2, **asked)).tokens
    assert {first, second} == {77, 78}
    assert (await live.generate([*PROMPT, first], max_tokens=1, **asked)).tokens == [second]


async def test_a_stop_string_does_not_count_before_min_tokens(live):
    asked = {"max_tokens": 6, "logit_bias": {77: 100.0}}
    one = (await live.generate(PROMPT, **asked | {"max_tokens": 1})).text
    late = await live.generate(PROMPT, stop=[one], min_tokens=3, **asked)
    assert (late.text, len(late.tokens)) == (one * 3, 4)
    assert late.finish == pb.FINISH_REASON_STOP


async def test_log_probabilities_come_with_each_token(live):
    found = await frames(live, max_tokens=5, logprobs=3)
    deltas = [delta for frame in found for delta in frame.deltas]
    chosen = [token for delta in deltas for token in unpack_tokens(delta.token_ids)]
    scores = [score for delta in deltas for score in delta.logprobs]
    assert len(scores) == len(chosen) == 5
    for token, score in zip(chosen, scores, strict=True):
        assert (score.rank, score.top[0].token_id) == (1, token)
        assert score.top[0].logprob == score.logprob <= 0.0
        assert len(score.top) == 3
        assert sum(math.exp(each.logprob) for each in score.top) < 1.0001


async def test_a_prompt_alone_is_scored_the_same_with_and_without_the_cache(live):
    whole = await frames(live, max_tokens=0, prompt_logprobs=2)
    again = await frames(live, max_tokens=0, prompt_logprobs=2)
    scores = list(whole[-1].prompt_logprobs)
    assert len(scores) == len(PROMPT) - 1
    assert [len(score.top) for score in scores] == [2] * len(scores)
    assert [score.rank for score in again[-1].prompt_logprobs] == [score.rank for score in scores]
    assert all(tokens == [] for tokens in by_sample(whole).values())


async def test_samples_differ_and_are_those_of_the_seed(live):
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    three = by_sample(await frames(live, n=3, **asked))
    assert sorted(three) == [0, 1, 2]
    assert len({tuple(each) for each in three.values()}) == 3
    assert by_sample(await frames(live, n=2, **asked)) == {0: three[0], 1: three[1]}
    best = by_sample(await frames(live, best_of=3, **asked))
    assert list(best) == [0]
    assert best[0] in three.values()
