"""Writes docs/metrics.md, a table of all metrics, from what the processes would tell:

python -m kvmesh.cli.metrics_table            writes it
python -m kvmesh.cli.metrics_table --check    exit code 1 if it is not what there is
"""

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

TABLE = Path(__file__).parents[2] / "docs" / "metrics.md"
HEAD = """# Metrics

Every process tells Prometheus under `/metrics`: a router on its HTTP port, a cache node on
`--metrics-port`. Times are in seconds. `make metrics` writes this file from the code.
"""
ROUTER = """
## Router

Labels are bounded: nodes are those of the fleet, tenants are none of them.
"""
NODE = """
## Cache node

Most are read, when asked for, from the state that the engine publishes after each step; histograms
are counted once a step. Those of a GPU need one, and `nvidia-ml-py`.
"""
VLLM = """
## Cache node with `--vllm-metrics`

The same under vLLM's names, with its labels, for its dashboards. Requests are samples here.
"""


def main(arguments: list[str]) -> int:
    text = asyncio.run(whole_table())
    if arguments == ["--check"]:
        if TABLE.read_text() != text:
            print(f"{TABLE.name} is not what the code registers: make metrics", file=sys.stderr)
            return 1
        return 0
    TABLE.write_text(text)
    return 0


async def whole_table() -> str:
    router, node = await router_metrics(), node_metrics()
    tables = (
        (ROUTER, named("kvmesh_", router)),
        (NODE, named("kvmesh_", node)),
        (VLLM, named("vllm:", node)),
    )
    return HEAD + "".join(head + table(metrics) for head, metrics in tables)


def table(metrics: Iterable[Metric]) -> str:
    lines = ["", "| metric | kind | labels | what |", "|---|---|---|---|"]
    for metric in sorted(metrics, key=lambda each: each.name):
        suffix = "_total" if metric.type == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in label_names(metric))
        text = metric.documentation.replace("|", "\\|")
        lines.append(f"| `{metric.name}{suffix}` | {metric.type} | {labels} | {text} |")
    return "\n".join(lines) + "\n"


def label_names(metric: Metric) -> tuple[str, ...]:
    return tuple(getattr(metric, "_labelnames", ()))


async def router_metrics() -> list[Metric]:
    """Of a router that has all that a router can have, and is not started."""
    from router.app import RouterApp
    from router.config import RouterConfig

    config = RouterConfig(nodes=("127.0.0.1:1",), redis_url="redis://127.0.0.1:1", tenants="redis")
    app = RouterApp(config)
    try:
        return list(app.metrics.registry.collect())
    finally:
        await app.stop()


def node_metrics() -> list[Metric]:
    """Of a node with a GPU that has done nothing yet."""
    from cache_node.gpu_gauges import memory_families, utilization_family
    from cache_node.limits import Counters
    from cache_node.metrics import LoadCollector
    from cache_node.node_facts import LABELS, FactGauges, NodeFacts
    from cache_node.step_output import Load
    from cache_node.timings import Timings
    from cache_node.vllm_metrics import VllmMetrics

    zeros: dict[str, Any] = {field.name: 0 for field in fields(Load)}
    idle = Load(**zeros | {"free_blocks": 1, "counters": Counters(), "last_dispatch": {}})
    facts = NodeFacts(dict.fromkeys(LABELS, ""), 0, 0, 0, 0)
    timings = Timings()
    collectors = (
        LoadCollector(lambda: idle, 0),
        timings,
        FactGauges(facts),
        VllmMetrics(lambda: idle, timings, facts),
    )
    gpu = (*memory_families(0, 0), utilization_family(0))
    return [*(metric for each in collectors for metric in each.collect()), *gpu]


def named(prefix: str, metrics: Iterable[Metric]) -> list[Metric]:
    """The client library adds some, which every process has."""
    return [metric for metric in metrics if metric.name.startswith(prefix)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
