"""kvmesh sim: what its figures mean, and that they can be repeated."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from bench.load.config import LoadConfig
from bench.sim.config import Failure, SimConfig
from bench.sim.run import fleet_of
from bench.sim.scaled_trace import scaled_plan
from bench.sim.simulate import simulate
from bench.sim.step_model import Profile, profile_named
from bench.sim.virtual_loop import VirtualLoop
from bench.trace import read_any_trace
from kvmesh.cli.main import app
from tests.bench.sim_fixture import of_policy, simulated, write_trace

ONE = ("prefix-aware",)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("trace") / "conversations.jsonl")


def outcomes_of(config, **changes):
    """What became of each request, as its client saw it."""
    profile = Profile.read(profile_named("accelerator"))
    plan = scaled_plan(read_any_trace(config.trace), config.requests, 1.0, 1.0, config.seed)
    fleet = fleet_of(config, profile, "prefix-aware")
    fleet = replace(fleet, spec=replace(fleet.spec, **changes))
    return simulate(plan, LoadConfig(), fleet)


def test_the_same_seed_gives_the_same_bytes_in_another_process_and_another_seed_others(trace):
    command = [sys.executable, "-m", "kvmesh.cli", "sim", "--trace", str(trace), "--json"]
    size = ["--nodes", "3", "--requests", "40", "--blocks", "400", "--fail", "20:node-1:10"]

    def report(seed, hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [*command, *size, "--seed", seed], env=environment, capture_output=True, check=True
        ).stdout

    first = report("4", "1")
    assert first == report("4", "2")
    assert json.loads(first)["policies"] != json.loads(report("5", "1"))["policies"]


def test_prefix_aware_hits_most_and_answers_soonest_as_bench_routing_says(trace):
    report = simulated(trace, policy=("prefix-aware", "least-loaded", "round-robin"))
    ours, *others = report["policies"]
    assert ours["answered"] == 100
    for other in others:
        assert other["hit_share"] < 0.8 * ours["hit_share"], other["policy"]
        assert other["ttft_seconds"]["mean"] > ours["ttft_seconds"]["mean"], other["policy"]
    assert ours["imbalance"] < 1.3


def test_what_is_neither_hit_nor_preempted_is_computed_once(trace):
    ours = of_policy(simulated(trace, policy=ONE))
    assert ours["preemptions"] == 0
    # A prompt whose last chunk is one token is counted as a decode.
    missed = ours["prompt_tokens"] - ours["hit_tokens"]
    assert missed - ours["requests"] <= sum(ours["computed_tokens"]) <= missed


def test_reports_that_come_late_cost_hits(trace):
    fresh, stale = (
        of_policy(simulated(trace, policy=ONE, rate=4.0, index_delay=delay)) for delay in (0, 20)
    )
    assert stale["hit_tokens"] < 0.9 * fresh["hit_tokens"]


def test_steps_that_are_passed_together_change_nothing(trace):
    config = SimConfig(trace=trace, nodes=2, requests=40, blocks=800, scheduling_policy="strict")
    one_by_one, together = (outcomes_of(config, skip=skip) for skip in (False, True))
    assert one_by_one.seconds == together.seconds
    assert one_by_one.computed == together.computed
    for a, b in zip(one_by_one.outcomes, together.outcomes, strict=True):
        assert (a.node, a.cached_tokens, a.first, a.last) == (
            b.node,
            b.cached_tokens,
            b.first,
            b.last,
        )


def test_a_node_that_fails_loses_no_request_and_comes_back(trace):
    config = SimConfig(
        trace=trace, nodes=3, requests=100, blocks=400, fail=("30:node-1:20", "60:node-0:15")
    )
    result = outcomes_of(config)
    assert [each.status for each in result.outcomes] == ["OK"] * 100
    assert [each.output_tokens for each in result.outcomes] == [
        each.turn.output for each in result.outcomes
    ]
    ends = {"node-1": 50.0, "node-0": 75.0}
    for node, end in ends.items():
        assert any(each.node == node and each.planned > end for each in result.outcomes)
    assert sum(result.computed) > sum(
        outcomes_of(SimConfig(trace=trace, nodes=3, requests=100, blocks=400)).computed
    )


def test_strict_never_preempts_where_adaptive_does(tmp_path):
    """Short prompts with long answers: what they grow to is more than the pool."""
    line = {"timestamp": 0, "input_length": 64, "output_length": 400, "hash_ids": [0]}
    path = tmp_path / "answers.jsonl"
    path.write_text(
        "".join(
            f"{json.dumps({**line, 'timestamp': 50 * i, 'hash_ids': [i]})}\n" for i in range(20)
        )
    )
    adaptive, strict = (
        of_policy(
            simulated(
                path,
                policy=ONE,
                requests=20,
                rate=20.0,
                nodes=1,
                blocks=100,
                block_size=16,
                scheduling_policy=policy,
            )
        )
        for policy in ("adaptive", "strict")
    )
    assert strict["preemptions"] == 0 < adaptive["preemptions"]
    assert strict["answered"] == adaptive["answered"] == 20


def test_a_full_fleet_refuses_and_says_so(trace):
    ours = of_policy(
        simulated(trace, policy=ONE, rate=50.0, nodes=1, max_queue=2, queue_timeout=5.0)
    )
    assert ours["failed"].keys() == {"RESOURCE_EXHAUSTED"}
    assert ours["answered"] + sum(ours["failed"].values()) == 100
    assert ours["goodput"]["share"] <= ours["answered"] / 100


def test_the_command_prints_a_row_a_policy_and_what_is_approximated(trace):
    arguments = ["sim", "--trace", str(trace), "--requests", "10", "--policy", "random"]
    result = CliRunner().invoke(app, [*arguments, "--profile", "accelerator"])
    assert result.exit_code == 0, result.output
    assert "random" in result.output
    assert "Approximated: " in result.output
    refused = CliRunner().invoke(app, ["sim", "--requests", "10"])
    assert refused.exit_code == 2
    assert "--trace must be given" in refused.output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trace": None}, "--trace must be given"),
        ({"rate": 0.0}, "--rate must be above 0"),
        ({"index_delay": -1.0}, "--index-delay must be at least 0"),
        ({"policy": ("fastest",)}, "--policy must be one of prefix-aware"),
        ({"policy": ("random", "random")}, "--policy must be different"),
        ({"max_num_batched_tokens": 8}, "--max-num-batched-tokens must be at least"),
        ({"fail": ("soon",)}, "--fail must be AT:NODE:SECONDS"),
        ({"fail": ("1:node-9:5",)}, "no node 'node-9', they are node-0 to node-7"),
        ({"fail": ("1:node-0:5", "3:node-0:5")}, "node-0 is down already at 3"),
    ],
)
def test_wrong_input_is_named(trace, fields, said):
    with pytest.raises(ValueError, match=said):
        SimConfig(**{"trace": trace, **fields})


def test_what_cannot_be_simulated_is_named(trace, tmp_path):
    with pytest.raises(ValueError, match="--blocks must be at least"):
        simulated(trace, blocks=3)
    with pytest.raises(FileNotFoundError):
        simulated(trace, profile="of-nobody")
    wrong = tmp_path / "profile.json"
    wrong.write_text('{"seconds": {"step": -1}}')
    with pytest.raises(ValueError, match="not a profile of step times"):
        simulated(trace, profile=str(wrong))


def test_a_failure_is_read_from_the_command_line():
    assert Failure.parse("12.5:node-3:30") == Failure(12.5, "node-3", 30.0)


def test_virtual_time_passes_without_waiting_and_a_deadlock_is_an_error():
    loop = VirtualLoop()

    async def year():
        await asyncio.sleep(365 * 86400.0)
        return loop.time()

    assert loop.run_until_complete(year()) == 365 * 86400.0
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(RuntimeError, match="nothing is due"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
