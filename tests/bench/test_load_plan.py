"""Which requests a load consists of: sharing, times, traces, and that a seed fixes all of it."""

import json
import random
from collections import Counter
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from bench.load.arrivals import BURST_VARIATION, arrival_times
from bench.load.config import WORKLOADS, LoadConfig
from bench.load.plan import make_plan
from bench.load.prompt import Piece, Writer, prompt_tokens

SIZES = {"prefix_tokens": 60, "prompt_tokens": 10, "output_tokens": 5}


def plan(**fields):
    return make_plan(LoadConfig(**{**SIZES, **fields}))


def shared(a, b):
    """Tokens at the beginning that two prompts have in common."""
    pairs = zip(a, b, strict=False)
    return next((place for place, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def written(turns, seed=0):
    writer = Writer(seed, range(1000, 30_000))
    return [writer.token_ids(turn.prompt) for turn in turns]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_makes_the_same_requests_and_another_seed_others(workload):
    first, again, other = (plan(workload=workload, requests=30, seed=seed) for seed in (1, 1, 2))
    assert first.turns == again.turns
    assert written(first.turns, 1) == written(again.turns, 1)
    assert len(first.turns) == 30
    assert written(first.turns, 1) != written(other.turns, 2)
    assert all(
        turn.prompt_tokens == len(ids)
        for turn, ids in zip(first.turns, written(first.turns), strict=True)
    )


def test_requests_of_one_system_prompt_share_it_and_no_more():
    turns = plan(prefixes=3, requests=40).turns
    systems = Counter(turn.prompt[0] for turn in turns)
    assert len(systems) == 3
    ids = written(turns)
    for (a, x), (b, y) in pairwise(zip(turns, ids, strict=True)):
        assert shared(x, y) == (60 if a.prompt[0] == b.prompt[0] else 0)


def test_a_chat_repeats_all_that_was_said_and_waits_for_the_answer():
    turns = plan(workload="chat", turns=3, requests=6, prefixes=1).turns
    first, second, third = written(turns)[:3]
    assert shared(first, second) == len(first)
    assert len(second) == len(first) + 5 + 10
    assert shared(second, third) == len(second)
    assert [turn.after for turn in turns] == [None, 0, 1, None, 3, 4]
    roles = [m["role"] for m in Writer(0, range(9)).messages(turns[2].prompt)]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


def test_agents_branch_and_go_on_with_one_way():
    turns = plan(workload="agents", turns=3, branches=3, requests=7, prefixes=1).turns
    assert [turn.after for turn in turns] == [None, 0, 0, 0, 1, 1, 1]
    ids = written(turns)
    assert shared(ids[1], ids[2]) == shared(ids[1], ids[3]) == 60 + 10 + 5
    assert shared(ids[1], ids[4]) == len(ids[1])


def test_questions_about_documents_share_the_popular_ones():
    turns = plan(workload="rag", documents=8, requests=200).turns
    firsts = Counter(turn.prompt[1].name for turn in turns)
    assert len(firsts) == 8
    assert firsts["document/0"] > 2 * firsts["document/7"]
    assert all(len({p.name for p in turn.prompt[1:4]}) == 3 for turn in turns)


def test_random_and_mixed_share_nothing():
    for workload in ("random", "mixed"):
        ids = written(plan(workload=workload, requests=30).turns)
        assert max(shared(a, b) for a, b in pairwise(ids)) <= 1
    lengths = [turn.prompt_tokens for turn in plan(workload="mixed", requests=400).turns]
    assert fmean(lengths) == pytest.approx(70, rel=0.05)
    assert max(lengths) > 4 * min(lengths)


@pytest.mark.parametrize(
    ("kind", "variation"), [("constant", 0.0), ("poisson", 1.0), ("bursty", BURST_VARIATION)]
)
def test_arrivals_have_their_rate_and_unevenness(kind, variation):
    times = list(islice(arrival_times(kind, 5.0, random.Random(3)), 20_000))
    pauses = [b - a for a, b in pairwise(times)]
    assert fmean(pauses) == pytest.approx(0.2, rel=0.07)
    assert pstdev(pauses) / fmean(pauses) == pytest.approx(variation, abs=0.2)


def test_the_rate_is_that_of_requests_not_of_sessions():
    roots = plan(workload="chat", turns=5, requests=1000, rate=10).roots
    assert len(roots) == 200
    assert roots[-1].delay == pytest.approx(100, rel=0.2)


def test_a_duration_ends_the_sending():
    turns = plan(arrivals="constant", rate=10, requests=100, duration=2.0).turns
    assert len(turns) == 20


def test_the_shorter_of_two_pieces_of_one_name_begins_the_longer():
    writer = Writer(0, range(500))
    long, short = (writer.token_ids((Piece("block/7", size),)) for size in (40, 9))
    assert long[:9] == short
    assert prompt_tokens((Piece("a", 3), Piece("b", 4))) == 7


def test_text_shares_as_tokens_do():
    writer = Writer(0, range(500))
    a, b = (writer.text((Piece("system", 30), Piece(name, 20))) for name in ("x", "y"))
    assert shared(a.split(), b.split()) in range(30, 34)
    assert len(a.split()) == 50


@pytest.fixture
def mooncake(tmp_path):
    """Three conversations of two turns; all share block 0, as in the recorded trace."""
    path = tmp_path / "trace.jsonl"
    lines = []
    for second in range(2):
        for talk in range(1, 4):
            blocks = [0, talk, *range(10 * talk, 10 * talk + second + 1)]
            lines.append(
                {
                    "timestamp": 1000 * (3 * second + talk),
                    "input_length": 512 * len(blocks) - 100,
                    "output_length": 320,
                    "hash_ids": blocks,
                }
            )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("scale", [1.0, 1 / 32, 0.3])
def test_equal_hash_ids_share_equally_at_any_scale(mooncake, scale):
    turns = plan(trace=mooncake, length_scale=scale).turns
    block = round(512 * scale)
    first, second, _, later, *_ = written(turns)
    assert shared(first, second) == block
    assert shared(first, later) == len(first)
    assert len(first) == pytest.approx((3 * 512 - 100) * scale, abs=3)
    assert turns[0].output == round(320 * scale)


def test_a_trace_is_sent_faster_and_in_part(mooncake):
    assert [turn.delay for turn in plan(trace=mooncake, speed=4.0).turns][:2] == [0.25, 0.5]
    assert len(plan(trace=mooncake, requests=4).turns) == 4
    for seed in range(20):
        kept = Counter(
            turn.prompt[1].name for turn in plan(trace=mooncake, trace_share=0.9, seed=seed).turns
        )
        assert set(kept.values()) == {2}  # conversations stay whole


def test_azures_trace_has_times_and_lengths_only(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n"
    )
    first, second = plan(trace=path, length_scale=0.5).turns
    assert (first.delay, second.delay) == (0.0, pytest.approx(0.052, abs=1e-5))
    assert (first.prompt_tokens, first.output, second.output) == (2404, 5, 4)
    assert shared(*written([first, second])) <= 1


NONSENSE = "a,b\nnonsense,2\n"
NEGATIVE = '{"timestamp": 0, "input_length": -9, "output_length": 1, "hash_ids": []}'


@pytest.mark.parametrize(
    ("name", "text"),
    [("trace.jsonl", NONSENSE), ("trace.csv", NONSENSE), ("negative.jsonl", NEGATIVE)],
)
def test_what_is_no_trace_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        plan(trace=tmp_path / name)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rate": 0}, "--rate"),
        ({"rate": float("nan")}, "--rate"),
        ({"slo_e2e": float("nan")}, "--slo-e2e"),
        ({"trace": "t", "arrivals": "closed"}, "--arrivals"),
        ({"token_ids": "9:3"}, "--token-ids"),
        ({"token_ids": f"9:{(1 << 32) + 1}"}, "--token-ids"),
        ({"target": "host:1", "fleet": "host:2"}, "--fleet"),
    ],
)
def test_what_makes_no_sense_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        LoadConfig(**fields)
