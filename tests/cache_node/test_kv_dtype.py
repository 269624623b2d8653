"""Where the scales of a quantised cache come from, and what a node tells of its dtype."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from cache_node.config import NodeConfig
from cache_node.executor_cpu import CpuExecutor
from cache_node.identity import node_info
from cache_node.preemption import PreemptionMode
from cache_node.step_plan import Row
from prefix_index.keys import root_key
from tests.cache_node.mock_node import MockNode
from tests.model_driver import make_executor
from tests.tiny_model import add_kv_scales, save_tiny


@pytest.fixture
def tiny(tmp_path):
    return save_tiny(tmp_path / "tiny")


def info(executor, **flags):
    config = NodeConfig(max_model_len=64, **flags)
    tokenizer = SimpleNamespace(eos_token_ids=(2,))
    return node_info(config, executor, b"fingerprint", tokenizer)


def test_fp8_takes_the_scales_of_the_checkpoint(tiny):
    add_kv_scales(tiny, 0.02)
    scales = make_executor(tiny, kv_cache_dtype="fp8").pool.head_scales
    assert scales.shape == (3, 2, 2)
    torch.testing.assert_close(scales, torch.full((3, 2, 2), 0.02))


def test_scales_may_be_one_for_each_head(tiny):
    add_kv_scales(tiny, 0.02)
    path = tiny / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.v_scale"] = torch.tensor([0.5, 0.25])
    save_file(tensors, path)
    scales = make_executor(tiny, kv_cache_dtype="fp8").pool.head_scales
    assert scales[1].tolist() == [pytest.approx([0.02, 0.02]), [0.5, 0.25]]


def test_else_they_are_made_for_a_sample(smollm2, tmp_path):
    sample = tmp_path / "sample.txt"
    sample.write_text("Only this sentence. " * 3)
    flags = {"kv_cache_dtype": "fp8", "num_blocks": 4}
    built_in = make_executor(smollm2, "bfloat16", **flags).pool.head_scales
    own = make_executor(smollm2, "bfloat16", **flags, kv_scale_sample=sample).pool.head_scales
    assert built_in.shape == own.shape == (30, 2, 3)
    assert (built_in > 0).all()
    assert not torch.equal(built_in, own)


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_keys_are_centred_and_no_score_moves(smollm2, dtype):
    """Long prompts of one word have keys far from 0, but every query sees the same shift."""
    executors = [
        make_executor(smollm2, "float32", num_blocks=8, kv_cache_dtype=each)
        for each in ("auto", dtype)
    ]
    centres = executors[1].pool.centres
    assert centres.shape == (30, 2, 3, 64)
    assert centres.abs().max() > 1.0
    row = Row([504, 1127, 282] * 20, 0, range(1, 5))
    exact, found = (each.prompt_logits(row).log_softmax(-1) for each in executors)
    assert (found - exact).abs().mean() < {"fp8": 0.5, "int8": 0.1}[dtype]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\xff"])
def test_a_sample_that_is_no_text_is_refused_by_name(smollm2, tmp_path, content):
    sample = tmp_path / "sample.txt"
    if content is not None:
        sample.write_bytes(content)
    flags = {"kv_cache_dtype": "fp8", "num_blocks": 4, "kv_scale_sample": sample}
    with pytest.raises(ValueError, match=f"kv_scale_sample: {sample}"):
        make_executor(smollm2, "bfloat16", **flags)


def test_nodes_that_read_other_numbers_share_no_keys(tiny):
    roots = set()
    for scale in (0.02, 0.03):
        add_kv_scales(tiny, scale)
        for dtype in ("auto", "fp8", "int8"):
            executor = make_executor(tiny, kv_cache_dtype=dtype)
            scheme = info(executor, kv_cache_dtype=dtype, dtype="float32").key_scheme
            roots.add(root_key(scheme, b"model", "", b""))
    assert len(roots) == 4, "fp8 alone depends on the scales of the checkpoint"


def test_a_node_counts_the_bytes_of_its_scales(tiny):
    add_kv_scales(tiny, 0.02)
    plain, quantised = (make_executor(tiny, kv_cache_dtype=d) for d in ("auto", "int8"))
    assert info(plain).kv_bytes_per_token == 3 * 2 * 2 * 8 * 4
    assert info(quantised, kv_cache_dtype="int8").kv_bytes_per_token == 3 * 2 * 2 * (8 + 2)


def test_an_unknown_dtype_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"kv_cache_dtype: must be one of .*int4, is 'int3'"):
        replace(NodeConfig(), kv_cache_dtype="int3")


@pytest.mark.parametrize("dtype", ["auto", "fp8", "int8", "int4"])
def test_a_preempted_request_comes_back_from_the_cpu_pool_as_it_went(tmp_path, dtype):
    """Also the keys of an int4 block that was not full."""
    directory = save_tiny(tmp_path / "tiny", num_hidden_layers=1, head_dim=16)
    add_kv_scales(directory, 0.02)
    made = make_executor(directory, block_size=8, num_blocks=41, kv_cache_dtype=dtype)
    executor = CpuExecutor(made._model, made.pool, 40)
    draw, swapped = random.Random(1), 0
    for _ in range(24):
        prompts = [[draw.randrange(3, 93) for _ in range(draw.randrange(17, 40))] for _ in "ab"]
        roomy, _ = outputs(executor, prompts, num_blocks=40)
        tight, node = outputs(executor, prompts, num_blocks=9)
        assert tight == roomy
        swapped += node.counters.preempted_by_swap
    assert swapped > 10


def outputs(executor, prompts, **settings):
    node = MockNode(
        block_size=8,
        executor=executor,
        num_cpu_blocks=39,
        max_num_batched_tokens=64,
        preemption=PreemptionMode.SWAP,
        **settings,
    )
    for prompt in prompts:
        node.submit(prompt, 14, ignore_eos=True)
        node.step()
    node.run()
    return {name: sequence.output for name, sequence in node.finished.items()}, node
