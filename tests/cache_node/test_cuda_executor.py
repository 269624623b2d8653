"""The CUDA executor as far as it goes without a card: its arithmetic, and in Triton's interpreter
the tokens of a whole node.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs

from cache_node.config import NodeConfig
from cache_node.gpu_memory import GIB, MemoryProfile
from cache_node.load_executor import choose_device
from cache_node.main import _announce
from cache_node.sampler import choose, takes_greatest
from cache_node.sampling import SampleSpec, SamplingParams
from kvmesh.v1 import cache_node_pb2 as pb
from tests.interpreted import run_interpreted

PROFILE = MemoryProfile(
    total=80 * GIB, free=79 * GIB, peak=20 * GIB, graphs=2 * GIB, outside=GIB // 2
)


@pytest.mark.timeout(400)  # 40 s each on a quiet machine, by the interpreter's nature
@pytest.mark.parametrize("checks", ["check_cuda_executor.py", "check_cuda_kv_dtypes.py"])
def test_a_node_in_the_interpreter_gives_the_tokens_of_a_cpu_node(checks):
    pytest.importorskip("triton")
    run_interpreted(Path(__file__).with_name(checks))


def test_graphs_are_captured_for_powers_of_two_and_the_most_rows():
    pytest.importorskip("triton")
    from cache_node.decode_graphs import graph_sizes

    assert graph_sizes(256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(1) == [1]


@pytest.mark.parametrize(("tokens", "rows"), [(1024, 256), (300, 256), (7, 7), (4096, 2)])
def test_the_profile_runs_as_much_as_the_scheduler_may_plan(tokens, rows):
    pytest.importorskip("triton")
    from cache_node.make_cuda_executor import largest_step

    config = NodeConfig(max_num_batched_tokens=tokens, max_num_seqs=rows, max_model_len=512)
    plan = largest_step(config, max_positions=8192)
    assert plan.num_tokens == min(tokens, rows * 512)
    assert len(plan.rows) == rows
    assert max(row.end for row in plan.rows) <= 512
    for row in plan.rows:
        assert len(row.block_table) * config.block_size >= row.end
        assert len(row.samples) == 1


def test_the_pool_is_what_model_activations_and_graphs_leave_of_the_share():
    assert PROFILE.kv_cache_bytes(0.9) == int(72 * GIB) - int(22.5 * GIB)
    assert PROFILE.kv_cache_bytes(0.5) == int(40 * GIB) - int(22.5 * GIB)


def test_what_other_nodes_use_does_not_count_while_the_share_is_free():
    second = replace(PROFILE, free=39 * GIB)
    assert second.kv_cache_bytes(0.45) == PROFILE.kv_cache_bytes(0.45)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: 0\.5 .* lower it to 0\.49"):
        second.kv_cache_bytes(0.5)


def test_a_share_that_holds_no_block_is_refused():
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: .* raise it"):
        PROFILE.kv_cache_bytes(0.25)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_of_a_card_is_one(share):
    with pytest.raises(ValueError, match="gpu_memory_utilization: must be in"):
        NodeConfig(gpu_memory_utilization=share)


def test_an_unknown_device_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="device: must be one of auto, cpu, cuda, is 'tpu'"):
        NodeConfig(device="tpu")


def test_auto_takes_a_card_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device: cuda was asked for"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr("cache_node.load_executor.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="device: a GPU needs triton"):
        choose_device("auto")
    monkeypatch.setattr("cache_node.load_executor.find_spec", lambda name: name)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)


@pytest.mark.parametrize(("device", "blocks"), [("cuda", "gpu_blocks"), ("cpu", "kv_blocks")])
def test_the_first_line_says_how_many_blocks_of_what(device, blocks):
    scheme = pb.KeyScheme(block_size=16)
    info = pb.NodeInfo(
        device=device, num_blocks=300, num_cpu_blocks=20, max_model_len=64, key_scheme=scheme
    )
    with capture_logs() as lines:
        _announce(SimpleNamespace(info=info, config=NodeConfig()), 5000)
    assert lines[0]["device"] == device
    assert {name: n for name, n in lines[0].items() if name.endswith("blocks")} == {
        blocks: 300,
        "cpu_blocks": 20,
    }


def test_bytes_go_before_the_share_of_a_card():
    assert not NodeConfig().sized_in_bytes
    assert NodeConfig().kv_pool_bytes == GIB
    assert NodeConfig(kv_cache_bytes=1 << 20).sized_in_bytes
    assert NodeConfig(kv_cache_ram_share=0.1).sized_in_bytes


@pytest.mark.parametrize(
    ("params", "banned", "plain"),
    [
        ({}, (), True),
        ({"temperature": 0.5}, (), False),
        ({"logprobs": 0}, (), False),
        ({"best_of": 2}, (), False),
        ({"logit_bias": {1: 1.0}}, (), False),
        ({"presence_penalty": 0.1}, (), False),
        ({}, (2,), False),
        ({"top_k": 3, "top_p": 0.5, "min_p": 0.1}, (), True),
    ],
)
def test_only_plain_greedy_rows_leave_their_logits_on_the_device(params, banned, plain):
    spec = SampleSpec(SamplingParams(**{"temperature": 0.0, **params}), 5, banned=banned)
    assert takes_greatest(spec) is plain
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0])
    if plain:
        assert choose(logits.numpy(), spec).token == int(logits.argmax()) == 1
