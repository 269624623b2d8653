"""A node on a card serves the real model over gRPC, with the tokens of the CPU in float32."""

import grpc
import pytest

pytest.importorskip("triton", reason="gpu: triton is not installed")

from cache_node.config import NodeConfig
from cache_node.load_executor import load_executor
from cache_node.node import Node
from kvmesh.tokenizer import Tokenizer
from tests.cache_node.live_node import LiveNode
from tests.model_driver import Driver, make_executor

CONFIG = NodeConfig(
    port=0,
    device="cuda",
    dtype="float32",
    kv_cache_bytes=256 << 20,
    max_model_len=1024,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    swap_space=0.1,
)
TEXTS = ["The capital of France is", "Once upon a time there was a mill by a slow river. " * 8]


@pytest.fixture(scope="module")
def executor(smollm2, card):
    return load_executor(CONFIG, smollm2, lambda stage, fraction: None)


async def test_a_node_serves_and_reuses_a_prefix(executor, smollm2):
    tokenizer = Tokenizer.from_directory(smollm2)
    prompts = [tokenizer.encode(text, False) for text in TEXTS]
    expected = Driver(make_executor(smollm2)).generate(prompts, 8)
    node = Node(CONFIG, executor, smollm2)
    assert node.info.device == "cuda"
    async with node.serve() as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        live = LiveNode(node, port, channel)
        first = [await live.generate(prompt) for prompt in prompts]
        again = await live.generate(prompts[1])
        assert [answer.tokens for answer in first] == expected
        assert again.tokens == expected[1]
        assert again.cached_tokens > 0
        await live.settle()
