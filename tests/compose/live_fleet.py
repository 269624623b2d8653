"""A fleet of processes under a load that fills its memory, scraped by a real Prometheus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc

from bench.prometheus import PrometheusServer
from kvmesh.cli.ports import free_ports
from kvmesh.v1 import generate_pb2 as pb
from tests.prometheus_fixture import require_prometheus
from tests.redis_fixture import RedisServer
from tests.router.process_fleet import RouterProcess, router_processes, until
from tests.router.real_node import RealNode

RULES = Path(__file__).resolve().parents[2] / "compose" / "prometheus" / "rules.yml"
NODE = {
    "dtype": "bfloat16",
    "num_blocks": 32,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "swap_space": 0.05,
    "scheduling_policy": "fcfs-greedy",  # promises nothing, so that it has to preempt
    "preemption_mode": "swap",
}
ROUTER = {
    "max_queue": 8,
    "queue_timeout": 2.0,
    "node_silence": 1.0,
    "high_watermark": 1.0,
    "low_watermark": 0.99,
    "slow_start": 0.1,
}
PREFIX = "You are the guide of a museum of clocks, and you know each of them by heart. " * 5


@asynccontextmanager
async def live_fleet(
    model: Path, directory: Path, nodes: int = 2
) -> AsyncIterator[SimpleNamespace]:
    """`redis`, `nodes`, `router` and `prometheus`, all up and scraped once: a rate needs to have
    seen a counter before it rises. `directory` is Prometheus' own.
    """
    require_prometheus()
    async with AsyncExitStack() as stack:
        redis = RedisServer(directory)
        redis.start()
        stack.callback(redis.stop)
        ports = free_ports("127.0.0.1", nodes)

        def node(place: int) -> RealNode:
            where = {"node_name": f"node-{place}", "metrics_port": ports[place], "redis": redis.url}
            made = RealNode(model, **where, **NODE)
            stack.callback(made.close)
            return made

        started = await asyncio.gather(*(asyncio.to_thread(node, each) for each in range(nodes)))
        addresses = [each.address for each in started]
        (router,) = await stack.enter_async_context(
            router_processes(1, addresses, redis=redis.url, **ROUTER)
        )
        await until(lambda: router.up(*(f"node-{each}" for each in range(nodes))), 30)
        targets = {
            "router": [router.http.base_url.netloc.decode()],
            "cache-node": [f"127.0.0.1:{port}" for port in ports],
        }
        prometheus = PrometheusServer(directory, targets, rules=RULES)
        stack.callback(prometheus.stop)
        prometheus.start()
        await until(lambda: asyncio.to_thread(prometheus.scrapes), 30)
        yield SimpleNamespace(nodes=started, router=router, prometheus=prometheus)


def question(place: int, max_tokens: int) -> pb.GenerateRequest:
    sampling = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(text=f"{PREFIX}Clock number {place} is", sampling=sampling)


async def ask(
    router: RouterProcess, place: int, max_tokens: int, begun: list[str] | None = None
) -> str:
    """The code that it ended with. Each time that tokens come, `begun` gets the node's name."""
    call = router.inference.Generate(question(place, max_tokens), timeout=60)
    node = ""
    try:
        async for frame in call:
            node = frame.route.node or node
            if frame.deltas and begun is not None:
                begun.append(node)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"
