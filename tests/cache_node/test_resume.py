"""A request that goes on after its node has died: what follows is what would have followed."""

from itertools import pairwise

import grpc
import pytest

from cache_node.commitment import Strict
from cache_node.preemption import PreemptionMode
from cache_node.sequence import Progress
from kvmesh.errors import from_rpc_error
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import generate_pb2
from tests.cache_node.mock_node import MockNode, reference, tokens
from tests.cache_node.test_sampling_service import by_sample, frames

LENGTH = generate_pb2.FINISH_REASON_LENGTH
# Few tokens to draw from: of 49,152 equally likely ones another sum order may take the next.
SAMPLED = {"temperature": 1.0, "top_k": 20, "seed": 7, "ignore_eos": True, "max_tokens": 8}
FORMS = {
    "greedy": {"temperature": 0.0, "max_tokens": 8},
    "three samples": {**SAMPLED, "n": 3},
    "all that looks back": {
        **SAMPLED,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.7,
        "min_tokens": 6,
        "logprobs": 2,
        "prompt_logprobs": 1,
    },
}


def resume_after(whole, count):
    """The resume entries of a client that has got the first `count` frames of `whole`."""
    got = generate_pb2.GenerateResponse()
    for frame in whole[:count]:
        got.MergeFrom(frame)
    entries = []
    for index in sorted({delta.index for delta in got.deltas}):
        deltas = [delta for delta in got.deltas if delta.index == index]
        entries.append(
            pb.Resume(
                index=index,
                token_ids=b"".join(delta.token_ids for delta in deltas),
                finished=any(delta.finish_reason for delta in deltas),
                text_bytes_sent=len("".join(delta.text for delta in deltas).encode()),
            )
        )
    return entries


def seen(all_frames):
    """Tokens, text, end and log-probabilities of each sample, as a client puts them together."""
    samples = {}
    for delta in (delta for frame in all_frames for delta in frame.deltas):
        tokens, texts, ends, scores = samples.setdefault(delta.index, ([], [], [], []))
        tokens.append(delta.token_ids)
        texts.append(delta.text)
        ends += [(delta.finish_reason, delta.stop_reason)] if delta.finish_reason else []
        scores += [(each.rank, [top.token_id for top in each.top]) for each in delta.logprobs]
    return {
        index: (b"".join(tokens), "".join(texts), ends, scores)
        for index, (tokens, texts, ends, scores) in samples.items()
    }


@pytest.mark.parametrize("form", FORMS)
async def test_r13_what_follows_is_what_would_have_followed(live, form):
    whole = await frames(live, **FORMS[form])
    assert len(whole) > 4
    for count in (1, len(whole) - 1):
        rest = await frames(live, resume=resume_after(whole, count), **FORMS[form])
        assert seen([*whole[:count], *rest]) == seen(whole)
        ours, its = rest[-1].summary.usage, whole[-1].summary.usage
        assert ours.completion_tokens == its.completion_tokens
        assert ours.prompt_tokens == its.prompt_tokens
        ranks = [[each.rank for each in run[-1].prompt_logprobs] for run in (whole, rest)]
        assert ranks[0] == ranks[1]


async def test_r13_a_stop_string_across_the_break_is_found_and_does_not_leak(live):
    free = await frames(live, temperature=0.0, max_tokens=8)
    texts = [delta.text for frame in free for delta in frame.deltas]
    crossing = next(a + b for a, b in pairwise(texts[2:]) if a.strip() and b.strip())
    asked = {"temperature": 0.0, "max_tokens": 8, "stop": [crossing]}
    whole = await frames(live, **asked)
    for count in range(2, len(whole)):
        rest = await frames(live, resume=resume_after(whole, count), **asked)
        assert seen([*whole[:count], *rest]) == seen(whole)
    assert seen(whole)[0][2] == [(generate_pb2.FINISH_REASON_STOP, crossing)]


async def test_r13_text_that_the_client_lacks_is_sent_first(live):
    whole = await frames(live, **FORMS["greedy"])
    entries = resume_after(whole, 5)
    text = seen(whole[:5])[0][1]
    entries[0].text_bytes_sent = 3
    rest = await frames(live, resume=entries, **FORMS["greedy"])
    assert text.encode()[:3].decode() + seen(rest)[0][1] == seen(whole)[0][1]


async def test_r13_samples_that_had_ended_are_not_computed_again(live):
    asked = {**SAMPLED, "n": 2}
    whole = await frames(live, **asked)
    entries = resume_after(whole, 2)
    entries[0].finished = True
    steps = live.node.state.load.steps
    rest = await frames(live, resume=entries, **asked)
    assert list(by_sample(rest)) == [1]
    assert live.node.state.load.steps - steps <= 7
    assert rest[-1].summary.usage.completion_tokens == 2 + 8


def entry(index=0, count=1, **fields):
    return pb.Resume(index=index, token_ids=pack_tokens(range(5, 5 + count)), **fields)


@pytest.mark.parametrize(
    ("resume", "fields", "named"),
    [
        ([entry(0), entry(1)], {}, "resume"),
        ([entry(1)], {}, "resume"),
        ([entry(0)], {"n": 2}, "resume"),
        ([entry(0), entry(0)], {"n": 2}, "resume"),
        ([entry(finished=True)], {}, "resume"),
        ([entry()], {"n": 1, "best_of": 2}, "resume"),
        ([entry(count=8)], {}, "resume[0].token_ids"),
        ([pb.Resume(token_ids=b"abc")], {}, "resume[0].token_ids"),
        ([pb.Resume(token_ids=pack_tokens([1 << 20]))], {}, "resume[0].token_ids"),
        ([entry(text_bytes_sent=999)], {}, "resume[0].text_bytes_sent"),
    ],
)
async def test_a_resume_that_cannot_be_is_refused_by_name(live, resume, fields, named):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate([5, 6], max_tokens=8, resume=resume, **fields)
    assert (caught.value.code().name, from_rpc_error(caught.value).field) == (
        "INVALID_ARGUMENT", named,
    )  # fmt: skip
    assert live.node.state.load.steps == 0


PROMPT = tokens(18)
ANSWERS = [reference(PROMPT, 10, sample) for sample in range(3)]


def outputs(node):
    return {index: list(seq.output) for (_, index), seq in node.finished.items()}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("cut", [1, 4, 9])
def test_r13_every_sample_goes_on_alone_whatever_the_cache_does(cache, cut):
    node = MockNode()
    resumed = [Progress(answer[:cut]) for answer in ANSWERS]
    node.submit(PROMPT, 10, n=3, temperature=1.0, cache=cache, resumed=resumed)
    node.run()
    assert outputs(node) == dict(enumerate(ANSWERS))


@pytest.mark.parametrize("mode", PreemptionMode)
def test_r13_a_resumed_request_may_be_preempted_like_any_other(mode):
    node = MockNode(num_blocks=16, num_cpu_blocks=12, preemption=mode)
    resumed = [Progress(answer[:4]) for answer in ANSWERS]
    node.submit(PROMPT, 10, n=3, temperature=1.0, resumed=resumed)
    node.submit(tokens(12, 1), 20)
    node.run()
    assert {i: out for i, out in outputs(node).items() if i} == {1: ANSWERS[1], 2: ANSWERS[2]}
    assert node.counters.preemptions > 0


def test_r13_in_strict_mode_it_is_never_preempted():
    node = MockNode(num_blocks=20, commitment=Strict())
    for _ in range(2):
        resumed = [Progress(answer[:4]) for answer in ANSWERS]
        node.submit(PROMPT, 10, n=3, temperature=1.0, resumed=resumed)
    node.run()  # Strict asserts that nothing is preempted
    assert outputs(node) == dict(enumerate(ANSWERS))
