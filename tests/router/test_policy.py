"""What the policies choose and say. Plain Python: no sockets, a seeded generator."""

import random
from collections import Counter

import pytest

from router.policies import POLICIES, make_policy
from router.policy import Candidate


def policy(name="prefix-aware", seed=3):
    return make_policy(name, 16, random.Random(seed))


def test_the_longest_prefix_wins_among_idle_nodes():
    nodes = [Candidate("a", cached_gpu_tokens=512), Candidate("b", cached_gpu_tokens=1024)]
    choice = policy().choose(1040, nodes)
    assert choice.candidate.node == "b"
    assert choice.reason == "longest prefix: 1024 of 1040 tokens"
    assert choice.costs()["b"] < choice.costs()["a"]


def test_a_prefix_in_swap_space_counts_for_less_than_one_in_the_pool():
    nodes = [Candidate("a", cached_cpu_tokens=512), Candidate("b", cached_gpu_tokens=512)]
    assert policy().choose(1040, nodes).candidate.node == "b"
    assert policy().choose(1040, [nodes[0], Candidate("c")]).candidate.node == "a"


def test_a_queue_outweighs_a_prefix_and_the_reason_says_so():
    nodes = [Candidate("a", cached_gpu_tokens=512, queued_prefill_tokens=4000), Candidate("b")]
    choice = policy().choose(600, nodes)
    assert choice.candidate.node == "b"
    assert choice.kind == "load"
    assert choice.reason == "least loaded of 2; a holds 512 of 600 tokens but is busier"


def test_a_shorter_prefix_on_a_quieter_node():
    nodes = [
        Candidate("a", cached_gpu_tokens=1024, active_blocks=1000),
        Candidate("b", cached_gpu_tokens=512),
    ]
    choice = policy().choose(1040, nodes)
    assert (choice.candidate.node, choice.kind) == ("b", "shorter-prefix")
    assert choice.reason == "prefix of 512 of 1040 tokens; a has 1024 but is busier"


def test_decoding_requests_push_new_ones_away():
    nodes = [Candidate("a", active_blocks=200), Candidate("b", active_blocks=20)]
    assert {policy(seed=i).choose(100, nodes).candidate.node for i in range(20)} == {"b"}


def test_affinity_gives_way_to_a_much_earlier_first_token():
    slow = Candidate("a", cached_gpu_tokens=1024, queued_prefill_tokens=900, prefill_speed=100)
    fast = Candidate("b", prefill_speed=10_000, active_blocks=100)
    assert policy().choose(1040, [slow, fast]).candidate.node == "b"


def test_a_single_node_is_the_only_one():
    assert policy().choose(10, [Candidate("a")]).reason == "only node; no node holds the prefix"


def test_least_loaded_counts_requests():
    nodes = [Candidate("a", requests=3), Candidate("b", requests=1), Candidate("c", requests=1)]
    chosen = {policy("least-loaded", i).choose(9, nodes).candidate.node for i in range(30)}
    assert chosen == {"b", "c"}


def test_round_robin_takes_turns():
    turns, nodes = policy("round-robin"), [Candidate("a"), Candidate("b"), Candidate("c")]
    assert "".join(turns.choose(1, nodes).candidate.node for _ in range(6)) == "abcabc"


def test_random_takes_all():
    any_of, nodes = policy("random"), [Candidate("a"), Candidate("b")]
    counts = Counter(any_of.choose(1, nodes).candidate.node for _ in range(200))
    assert min(counts.values()) > 60


def test_what_was_sent_a_moment_ago_counts_as_cached():
    nodes = [Candidate("a", speculative_tokens=1024), Candidate("b", cached_gpu_tokens=512)]
    choice = policy().choose(1040, nodes)
    assert choice.candidate.node == "a"
    assert choice.reason == "longest prefix: 1024 of 1040 tokens"


def test_a_cost_is_the_sum_of_its_parts():
    nodes = [
        Candidate("a", cached_gpu_tokens=512, queued_prefill_tokens=30, active_blocks=7),
        Candidate("b", cached_cpu_tokens=400, speculative_tokens=100, active_blocks=1),
    ]
    costs = policy().choose(1040, nodes).costs()
    assert costs["a"] == pytest.approx((6 * 528 + 30 + 33.6, 6 * 528, 30, 33.6))
    assert costs["b"] == pytest.approx((6 * (1040 - 300 - 100) + 4.8, 6 * 640, 0, 4.8))


def test_a_session_stays_on_its_node_and_only_those_of_a_lost_one_move():
    nodes = [Candidate(name) for name in "abcd"]
    one, other = policy("session", seed=1), policy("session", seed=2)
    sessions = [f"user-{number}" for number in range(200)]
    before = {each: one.choose(9, nodes, each).candidate.node for each in sessions}
    assert before == {each: other.choose(9, nodes[::-1], each).candidate.node for each in sessions}
    assert min(Counter(before.values()).values()) > 25
    after = {each: one.choose(9, nodes[:3], each).candidate.node for each in sessions}
    assert {each for each in sessions if before[each] != after[each]} == {
        each for each in sessions if before[each] == "d"
    }


def test_a_request_without_a_session_goes_where_its_prefix_lies():
    nodes = [Candidate("a"), Candidate("b", cached_gpu_tokens=512)]
    assert policy("session").choose(600, nodes).candidate.node == "b"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_goes_by_its_name_and_takes_what_there_is(name):
    made = policy(name)
    assert made.name == name
    for session in ("", "s"):
        assert made.choose(5, [Candidate("only")], session).candidate.node == "only"


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="policy"):
        policy("best")
