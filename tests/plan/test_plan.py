"""How many bytes, how many blocks: published figures, every kind of attention, tp and pp."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cache_node.config import KV_CACHE_DTYPES, NodeConfig
from cache_node.plan.find_shape import find_shape
from cache_node.plan.hardware import CARDS, GIB, Hardware, find_card
from cache_node.plan.known_models import KNOWN_MODELS
from cache_node.plan.plan import make_plan
from cache_node.plan.shard import shards_of

SERVED = [name for name in KNOWN_MODELS if find_shape(name).unserved is None]


def plan(model, gpu=None, tp=1, pp=1, gpus=None, **config):
    card = None if gpu is None else find_card(gpu)
    hardware = Hardware(card=card, ram=64 * GIB, gpus=gpus or tp * pp, tp=tp, pp=pp)
    return make_plan(find_shape(model), hardware, NodeConfig(**config))


def test_llama_70b_with_a_key_and_value_for_each_head_as_published():
    """2.6 MB a token, 170 GB for 16 sequences of 4,096, in two bytes an element."""
    found = plan("llama-70b-mha")
    assert found.layout.bytes_per_token == 2 * 80 * 64 * 128 * 2 == 2_621_440
    assert found.kv_bytes(4096, 16) == 171_798_691_840


def test_llama_3_70b_as_published():
    found = plan("llama-3-70b")
    assert found.layout.bytes_per_token == 2 * 80 * 8 * 128 * 2 == 327_680
    assert found.kv_bytes(8192, 16) == 42_949_672_960


@pytest.mark.parametrize(
    ("model", "attention", "bytes_per_token"),
    [
        ("llama-2-7b", "MHA", 2 * 32 * 32 * 128 * 2),
        ("mistral-7b-v0.1", "GQA", 2 * 32 * 8 * 128 * 2),
        ("mixtral-8x7b", "GQA", 2 * 32 * 8 * 128 * 2),
        ("gemma-3-1b", "MQA", 2 * 26 * 1 * 256 * 2),
        ("qwen3-0.6b", "GQA", 2 * 28 * 8 * 128 * 2),
        ("deepseek-v3", "MLA", 61 * (512 + 64) * 2),
        ("deepseek-v2-lite", "MLA", 27 * (512 + 64) * 2),
        ("phi-3-medium-4k", "GQA", 2 * 40 * 10 * 128 * 2),
        ("smollm2-135m", "GQA", 2 * 30 * 3 * 64 * 2),
    ],
)
def test_bytes_of_a_token(model, attention, bytes_per_token):
    found = plan(model)
    assert found.shape.attention == attention
    assert found.layout.bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("flags", "bytes_per_token"),
    [
        ({"dtype": "float32"}, 2 * 32 * 8 * 128 * 4),
        ({"kv_cache_dtype": "fp8"}, 2 * 32 * 8 * 128),
        ({"kv_cache_dtype": "int8"}, 2 * 32 * 8 * (128 + 2)),
        ({"dtype": "float32", "kv_cache_dtype": "fp8"}, 2 * 32 * 8 * 128),
    ],
    ids=str,
)
def test_bytes_of_a_token_by_dtype(flags, bytes_per_token):
    assert plan("llama-3-8b", **flags).layout.bytes_per_token == bytes_per_token


def test_windows_would_hold_no_more_than_they_see():
    """A node keeps all blocks today; both figures are told."""
    found = plan("gemma-3-27b", "h100", max_model_len=32768)
    a_layer = 2 * 16 * 128 * 2  # bytes of a token
    full, windowed = 10 * 32768, 52 * (1024 + 16)  # a window touches one block more
    assert found.kv_bytes(32768, 1) == 62 * 32768 * a_layer
    assert found.windowed_kv_bytes(32768) == (full + windowed) * a_layer
    assert found.windowed_concurrency(32768) > found.concurrency(32768) > 0
    assert found.windowed_kv_bytes(512) == found.kv_bytes(512, 1), "shorter than the window"


def test_tensor_parallelism_shares_heads_until_there_are_none_left_to_share():
    one, *shared = (plan("llama-3-70b", "h200", tp=tp) for tp in (1, 2, 8, 16))
    whole = one.layout.bytes_per_token
    sizes = [each.stages[0].layout.bytes_per_token for each in shared]
    assert sizes == [whole // 2, whole // 8, whole // 8]
    assert all(each.layout.bytes_per_token == whole for each in shared)


def test_a_latent_is_on_every_gpu_of_a_replica_but_only_on_those_of_its_layers():
    tensor, pipeline = plan("deepseek-v3", "h200", tp=8), plan("deepseek-v3", "h200", tp=4, pp=2)
    assert tensor.stages[0].layout.bytes_per_token == 61 * 576 * 2
    assert [stage.layout.bytes_per_token for stage in pipeline.stages] == [
        31 * 576 * 2,
        30 * 576 * 2,
    ]


def test_replicas_are_nodes_of_their_own():
    alone, eight = plan("llama-3-8b", "h100"), plan("llama-3-8b", "h100", gpus=8)
    assert eight.hardware.replicas == 8
    assert eight.num_blocks == alone.num_blocks


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SERVED),
    st.sampled_from(KV_CACHE_DTYPES),
    st.integers(1, 128),
    st.integers(1 << 26, 1 << 40),
)
def test_the_pool_is_as_many_blocks_as_fit(model, dtype, block_size, budget):
    config = {"kv_cache_dtype": dtype, "block_size": block_size, "kv_cache_bytes": budget}
    found = plan(model, **config)
    block = found.layout.bytes_per_block
    if found.num_blocks == 0:
        assert budget < 2 * block
        return
    assert found.num_blocks * block <= budget < (found.num_blocks + 1) * block
    assert found.usable_blocks == found.num_blocks - 1


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(KNOWN_MODELS)),
    st.sampled_from(list(CARDS)),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 4),
    st.sampled_from(KV_CACHE_DTYPES),
)
def test_what_a_gpu_holds_fits_its_share(model, gpu, tp, pp, dtype):
    shape = find_shape(model)
    assume(shape.num_heads % tp == 0)
    assume(shape.latent or shape.num_kv_heads % tp == 0 or tp % shape.num_kv_heads == 0)
    found = plan(model, gpu, tp=tp, pp=pp, kv_cache_dtype=dtype)
    room = [stage.budget.left - 2 * stage.layout.bytes_per_block for stage in found.stages]
    assert (found.num_blocks == 0) == (min(room) < 0)
    for stage in found.stages:
        assert not found.num_blocks or (
            found.num_blocks * stage.layout.bytes_per_block <= stage.budget.left
        )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(KNOWN_MODELS)), st.integers(1, 8))
def test_stages_have_all_layers_and_all_weights(model, pp):
    shape = find_shape(model)
    stages = shards_of(shape, pp=pp)
    assert sum((stage.windows for stage in stages), ()) == shape.windows
    assert sum(stage.parameters for stage in stages) == shape.parameters.total
    counts = [stage.num_layers for stage in stages]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"tp": 3}, "tp: must divide the model's 64 heads"),
        ({"pp": 100}, "pp: must be at most the model's 80 layers"),
        ({"tp": 2, "gpus": 3}, "gpus: must be a multiple of tp x pp"),
        ({"gpu": None, "tp": 2}, "gpu: must name the card"),
        ({"gpu": "h300"}, "gpu: must be a known card .* h200"),
        ({"gpu": "-4"}, "gpu: must have between 0"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(flags, field):
    with pytest.raises(ValueError, match=field):
        plan("llama-3-70b", **{"gpu": "h200", **flags})


def test_a_card_may_be_told_by_its_memory():
    assert plan("llama-3-8b", "24").hardware.card.memory == 24 * GIB
    assert plan("llama-3-8b", "24GiB").num_blocks == plan("llama-3-8b", "24").num_blocks > 0
