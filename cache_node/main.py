"""The process of a cache node."""

import asyncio
import signal
import sys
from collections.abc import Callable

import structlog

from cache_node.config import NodeConfig
from cache_node.load_executor import load_executor
from cache_node.model.source import Progress, find_model
from cache_node.node import Node
from kvmesh.addresses import host_and_port
from kvmesh.process_memory import settle

log = structlog.get_logger()


def run(config: NodeConfig, progress: Progress | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0 after an orderly end.

    A node that cannot start logs why and returns 2; one whose engine died returns 1.
    """
    progress = progress or _log_progress
    try:
        config.tls_files.load()  # what is wrong there is said before a model is loaded
        directory = find_model(config.model, config.cache_dir, progress)
        executor = load_executor(config, directory, progress)
        return asyncio.run(_serve(config, lambda: Node(config, executor, directory)))
    except (ValueError, OSError) as error:
        log.error("cannot_start", node=config.node_name, reason=str(error))
        return 2


async def _serve(config: NodeConfig, build: Callable[[], Node]) -> int:
    node = build()
    settle()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with node.serve() as port:
        _announce(node, port)
        ends = [asyncio.create_task(event.wait()) for event in (stopping, node.died)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
        log.info("stopping", node=config.node_name, requests=node.service.num_open)
    return 1 if node.died.is_set() else 0


def _announce(node: Node, port: int) -> None:
    """The line that says what an operator wants to know of a started node, and that it serves."""
    info = node.info
    tokens = info.num_blocks * info.key_scheme.block_size
    log.info(
        "ready",
        node=info.name,
        address=host_and_port(node.config.host, port),
        model=info.model,
        device=info.device,
        dtype=info.dtype,
        kv_cache_dtype=node.config.kv_cache_dtype,
        kv_cache_gib=round(tokens * info.kv_bytes_per_token / 2**30, 2),
        kv_cache_tokens=tokens,
        cpu_blocks=info.num_cpu_blocks,
        **{"gpu_blocks" if info.device == "cuda" else "kv_blocks": info.num_blocks},
        block_size=info.key_scheme.block_size,
        kv_bytes_per_token=info.kv_bytes_per_token,
        max_model_len=info.max_model_len,
        max_concurrency_at_max_len=round(tokens / info.max_model_len, 2),
    )


def _log_progress(stage: str, fraction: float | None) -> None:
    """Begin and end of each stage; the steps between would only fill the log."""
    if fraction is None or fraction >= 1.0 or fraction == 0.0:
        log.info("progress", stage=stage, done=fraction)


if __name__ == "__main__":
    sys.exit(run(NodeConfig()))
