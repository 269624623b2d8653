"""Whatever a dashboard or a rule selects is there: asked of a real Prometheus that scraped a fleet
whose requests queued, were preempted and refused, and whose nodes then died.
"""

import asyncio
import signal
import time
from collections import Counter
from types import SimpleNamespace

import promql_parser
import pytest
import pytest_asyncio

from tests.compose.live_fleet import ask, live_fleet
from tests.compose.test_dashboards import DASHBOARDS
from tests.compose.test_rules import RULES
from tests.redis_fixture import require_redis
from tests.router.process_fleet import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

# What Grafana puts in, as it would with everything chosen.
VARIABLES = {"$router": ".+", "$node": ".+", "$__rate_interval": "4s"}
# Of a node on a GPU; those here compute on the CPU.
MISSING = (
    "kvmesh_gpu_memory_used_bytes",
    "kvmesh_gpu_memory_total_bytes",
    "kvmesh_gpu_utilization",
)


def shown():
    """Each expression of a panel, by dashboard and title."""
    return [
        (f"{name}: {panel['title']}", _filled(target["expr"]))
        for name, board in DASHBOARDS.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def _filled(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def selectors(expression):
    """Metric names with their matchers."""
    found = []

    def visit(part):
        if isinstance(part, promql_parser.VectorSelector):
            found.append(str(part))

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scraped(smollm2, tmp_path_factory):
    """The Prometheus, and what became of requests. The fleet is dead by then."""
    require_redis()
    begin = time.time()
    async with live_fleet(smollm2, tmp_path_factory.mktemp("prometheus")) as fleet:
        codes = Counter(await asyncio.gather(*(ask(fleet.router, each, 100) for each in range(28))))
        codes.update(await lose_a_node(fleet))
        fleet.nodes[1].signal(signal.SIGKILL)
        await until(lambda: burning(fleet, codes), 60)
        yield SimpleNamespace(prometheus=fleet.prometheus, codes=codes, begin=begin)


async def lose_a_node(fleet):
    """While it has streams, which go on elsewhere, and requests that it has not begun, which are
    sent to the other.
    """
    begun = []
    asked = [asyncio.create_task(ask(fleet.router, each, 60, begun)) for each in range(4)]
    await until(lambda: came_from(begun, "node-0"))
    fleet.nodes[0].signal(signal.SIGSTOP)
    before = (await fleet.router.nodes())["node-0"].in_flight
    asked += [asyncio.create_task(ask(fleet.router, each, 30)) for each in range(6)]
    await until(lambda: has(fleet, before + 1))
    fleet.nodes[0].signal(signal.SIGKILL)
    return await asyncio.gather(*asked)


async def has(fleet, count):
    """Whether the first node has so many requests."""
    return (await fleet.router.nodes())["node-0"].in_flight >= count


async def came_from(begun, node):
    return node in begun


async def burning(fleet, codes):
    """Requests fail until somebody is told."""
    codes.update([await ask(fleet.router, 0, 8)])
    fires = 'ALERTS{alertname="ErrorsBurn", alertstate="firing"}'
    return await asyncio.to_thread(fleet.prometheus.query, fires)


async def test_the_load_was_one(scraped):
    assert scraped.codes["OK"] > 8
    assert scraped.codes["RESOURCE_EXHAUSTED"] > 0
    assert scraped.codes["UNAVAILABLE"] > 0
    for happened in (
        "kvmesh_num_preemptions_total",
        "kvmesh_swap_bytes_total",
        "kvmesh_cached_tokens_total",
        "kvmesh_router_refused_total",
        "kvmesh_router_queue_depth",
        "kvmesh_router_retries_total",
        "kvmesh_router_resumes_total",
    ):
        assert scraped.prometheus.query(f"max_over_time({happened}[5m]) > 0"), happened


async def test_every_selector_has_a_series(scraped):
    wanted = [*shown(), *((f"rule {each.get('alert')}", each["expr"]) for each in RULES)]
    found = {each: name for name, expression in wanted for each in selectors(expression)}
    assert len(found) > 60
    empty = {
        f"{name}: {selector}"
        for selector, name in found.items()
        if selector.partition("{")[0] not in MISSING and not series(scraped, selector)
    }
    assert empty == set()


async def test_every_panel_shows_something(scraped):
    """What is right by parts can still be empty: labels that never match, a share of nothing."""
    times = {"start": str(scraped.begin), "end": str(time.time() + 2), "step": "1"}
    empty = {
        f"{name}: {expression}"
        for name, expression in shown()
        if not any(metric in expression for metric in MISSING)
        and not scraped.prometheus.get("query_range", query=expression, **times)["result"]
    }
    assert empty == set()


async def test_a_metric_that_nobody_tells_is_found_out(scraped):
    assert selectors("sum(rate(kvmesh_no_such_total[5m])) / 2") == ["kvmesh_no_such_total{}"]
    assert not series(scraped, "kvmesh_no_such_total{}")
    assert not series(scraped, 'kvmesh_router_nodes{health="no such"}')


def series(scraped, selector):
    """Since the fleet was started, dead processes' too."""
    return scraped.prometheus.get(
        "series", **{"match[]": selector, "start": str(scraped.begin), "end": str(time.time())}
    )
