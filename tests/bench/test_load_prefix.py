"""What is compared with what, and by which figures."""

import json

import pytest

from bench.load.plan import make_plan
from bench.load.prefix import FULL, compare_caching, compare_routing


def summary(ttft, rate, cached):
    return {
        "latency": {"ttft": None if ttft is None else {"p50": ttft}},
        "throughput": {"requests_per_s": rate},
        "cache": {"cached_tokens": cached},
    }


class Measured:
    """Gives `figures` for one fleet after the other, and keeps what loads it was given."""

    def __init__(self, *figures):
        self.figures, self.loads = list(figures), []

    def __call__(self, loads):
        self.loads.append(loads)
        figures = self.figures.pop(0)
        return {name: summary(*figures) for name in loads}


def test_caching_is_the_only_difference_of_the_two_sides():
    measure = Measured((0.1, 6.0, 900), (0.5, 2.0, 0))
    _, goals = compare_caching(measure, FULL)
    on, off = measure.loads
    assert [each.enable_prefix_caching for each in on.values()] == [True, True]
    assert [each.enable_prefix_caching for each in off.values()] == [False, False]
    for name in on:
        assert make_plan(on[name]).turns == make_plan(off[name]).turns
    assert not on["light"].closed
    assert [(goal.value, goal.met) for goal in goals] == [
        (pytest.approx(0.2), True),
        (pytest.approx(3.0), True),
    ]


def test_routing_is_compared_on_the_same_requests(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": n, "input_length": 900, "output_length": 9, "hash_ids": [0, n]}
        for n in range(1000)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    measure = Measured((0.6, 1.0, 100), (0.5, 1.0, 200))
    _, goals = compare_routing(measure, FULL, path)
    ours, other = (loads["trace"] for loads in measure.loads)
    assert (ours.policy, other.policy) == ("prefix-aware", "round-robin")
    assert make_plan(ours).turns == make_plan(other).turns
    assert [(goal.value, goal.met) for goal in goals] == [
        (pytest.approx(1.2), False),
        (pytest.approx(0.5), False),
    ]


def test_a_side_that_answers_nothing_wins_nothing():
    measure = Measured((None, 0.0, 0), (0.5, 2.0, 0))
    _, goals = compare_caching(measure, FULL)
    assert [goal.met for goal in goals] == [False, False]
