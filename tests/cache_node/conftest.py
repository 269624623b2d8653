"""A live node: real engine, real model, real sockets, in the test's own process."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.load_executor import load_executor
from cache_node.node import Node
from tests.cache_node.live_node import LiveNode

CONFIG = NodeConfig(
    port=0,
    device="cpu",
    dtype="float32",
    kv_cache_bytes=64 << 20,
    max_model_len=1024,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_waiting=4,
    shutdown_grace=5.0,
)


@pytest.fixture(scope="session")
def executor(smollm2: Path) -> ModelExecutor:
    return load_executor(CONFIG, smollm2, lambda stage, fraction: None)


@pytest.fixture
async def live(executor: ModelExecutor, smollm2: Path) -> AsyncIterator[LiveNode]:
    """A node of its own for each test, over the shared model and pool memory."""
    node = Node(CONFIG, executor, smollm2)
    async with node.serve() as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        live = LiveNode(node, port, channel)
        yield live
        await live.settle()
