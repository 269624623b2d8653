"""Latency and SLO: how long do clients wait, for what, and is it more than was promised?"""

from collections.abc import Callable

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.models.units import PercentUnit, Seconds, Short

from .board import Panels, board
from .panels import GREEN, NONE_IS_GOOD, ORANGE, RED, Query, Steps, graph, number
from .queries import (
    known_nodes,
    largest,
    node_percentile,
    node_rate,
    of_all,
    of_nodes,
    of_routers,
    router_percentile,
    router_rate,
    total,
)

SHARES = (0.5, 0.9, 0.99)
ALLOWED = 0.001  # share of requests that may end in a fault, as rules.yml says
FAULTS = 'code=~"INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|UNKNOWN"'
BURN: Steps = ((None, GREEN), (1, ORANGE), (14.4, RED))


def latency() -> dashboard.Dashboard:
    rows = {
        "How long do clients wait?": clients(),
        "Is the error budget burnt?": budget(),
        "Who is waiting?": queue(),
        "What takes a node's time?": nodes(),
        "What does the router cost?": router(),
    }
    return board("kvmesh-latency", "kvmesh: latency and SLO", __doc__, rows)


def clients() -> Panels:
    return [
        _router_times("First token", "Arrival to the first frame.", "time_to_first_token"),
        _router_times(
            "Between tokens",
            "One frame of an answer to its next, as the client takes them.",
            "inter_token",
        ),
        _router_times("Whole answers", "Arrival at a router to the end of the answer.", "request"),
    ]


def budget() -> Panels:
    first = "kvmesh_router_time_to_first_token_seconds"
    return [
        number(
            "Burn of the last hour",
            "How many times faster than allowed: at 1 a month's allowance lasts a month, at 14.4"
            " two days. ErrorsBurn fires when this and the one of five minutes are over 14.4.",
            Short,
            f"kvmesh:faults:ratio_rate1h / {ALLOWED}",
            BURN,
        ),
        number(
            "Allowance left",
            "Of 30 days' faults, one in a thousand requests, what has not been used.",
            PercentUnit,
            "1 - (sum(increase(kvmesh_router_requests_total{" + FAULTS + "}[30d])) or vector(0))"
            " / (sum(increase(kvmesh_router_requests_total[30d])) > 0)"
            f" / {ALLOWED}",
            ((None, RED), (0.1, ORANGE), (0.5, GREEN)),
        ),
        graph(
            "Burn",
            "Faults a request over the allowed one in a thousand.",
            Short,
            (f"kvmesh:faults:ratio_rate5m / {ALLOWED}", "five minutes"),
            (f"kvmesh:faults:ratio_rate1h / {ALLOWED}", "an hour"),
            steps=BURN,
            width=8,
        ),
        graph(
            "First token in time",
            "Share of requests whose first token came within so many seconds.",
            PercentUnit,
            *(
                (
                    of_all(
                        router_rate(f"{first}_bucket", matcher=f'le="{seconds}"'),
                        router_rate(f"{first}_count"),
                    ),
                    f"{seconds} s",
                )
                for seconds in ("0.25", "1.0", "5.0")
            ),
            width=8,
        ),
        graph(
            "Faults",
            "By code. UNAVAILABLE: no node, or nodes die in mid-request. DEADLINE_EXCEEDED: too"
            " slow for clients' patience. INTERNAL: a fault of ours, in the log with its id.",
            "requests/s",
            (
                router_rate("kvmesh_router_requests_total", "endpoint, code", FAULTS),
                "{{endpoint}} {{code}}",
            ),
            stacked=True,
            width=24,
        ),
    ]


def queue() -> Panels:
    return [
        graph(
            "Requests in queues",
            "By class, and what they wait for: seats or blocks on a node, nodes above their"
            " watermark, or the turn of others.",
            Short,
            (
                total(of_routers("kvmesh_router_queue_depth"), "priority, reason"),
                "{{priority}}: {{reason}}",
            ),
            stacked=True,
        ),
        graph(
            "The oldest that waits",
            "By class. Over 10 s: QueueOld in docs/runbook.md.",
            Seconds,
            (
                largest(of_routers("kvmesh_router_queue_oldest_seconds"), "priority"),
                "{{priority}}",
            ),
            steps=((None, GREEN), (10, RED)),
        ),
        graph(
            "Refused",
            "By what was in the way: no room in the queue, no node, a tenant's limit.",
            "requests/s",
            (router_rate("kvmesh_router_refused_total", "reason"), "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Admission, p99",
            "Arrival to start, or to leaving the queue without one.",
            Seconds,
            (
                router_percentile(0.99, "kvmesh_router_admission_seconds", "priority, outcome"),
                "{{priority}}: {{outcome}}",
            ),
        ),
        graph(
            "Requests before a new one, p90",
            "In the queue, by class.",
            Short,
            (router_percentile(0.9, "kvmesh_router_queue_position", "priority"), "{{priority}}"),
        ),
        graph(
            "Nodes above their watermark",
            "They get nothing new until they are below the low one.",
            Short,
            (largest(known_nodes("kvmesh_router_above_watermark"), "node"), "{{node}}"),
            steps=NONE_IS_GOOD,
        ),
    ]


def nodes() -> Panels:
    return [
        _node_times(
            "First token of a node", "Arrival at a node to the first token.", "time_to_first_token"
        ),
        _node_times("Waiting", "Arrival at a node to the first step.", "request_queue_time"),
        _node_times("Prefill", "First step to first token.", "request_prefill_time"),
        _node_times(
            "Between tokens of a node", "One token of a sample to its next.", "inter_token_latency"
        ),
        _node_times("Whole", "Arrival at a node to the last token.", "e2e_request_latency"),
        _node_times("Time of a step", "A step, planned and computed.", "engine_step"),
        graph(
            "Tokens of a step",
            "Prompts' among them: many a step is a long prompt, which others' tokens wait for.",
            Short,
            *_percentiles(node_percentile, "kvmesh_iteration_tokens"),
        ),
        graph(
            "Steps a second",
            "Of each node, idle ones apart.",
            "steps/s",
            (node_rate("kvmesh_engine_steps_total", "node"), "{{node}}"),
        ),
        graph(
            "GPUs at work",
            "Share of the time in which each computes, as its driver says. Empty without a GPU.",
            PercentUnit,
            (of_nodes("kvmesh_gpu_utilization"), "{{node}}"),
        ),
    ]


def router() -> Panels:
    return [
        _router_times("Template and tokens", "Rendering and tokenising a prompt.", "tokenize"),
        _router_times("Block keys", "Hashing a prompt into the keys of its blocks.", "block_keys"),
        _router_times(
            "Routing",
            "Look-up in the index, choice and reservation. Tens of µs; ms: a router short of CPU.",
            "route",
        ),
    ]


def _router_times(title: str, description: str, stage: str) -> timeseries.Panel:
    """Percentiles of kvmesh_router_STAGE_seconds."""
    lines = _percentiles(router_percentile, f"kvmesh_router_{stage}_seconds")
    return graph(title, description, Seconds, *lines)


def _node_times(title: str, description: str, stage: str) -> timeseries.Panel:
    """Percentiles of kvmesh_STAGE_seconds."""
    lines = _percentiles(node_percentile, f"kvmesh_{stage}_seconds")
    return graph(title, description, Seconds, *lines)


def _percentiles(of: Callable[[float, str], str], histogram: str) -> list[Query]:
    return [(of(share, histogram), f"p{share * 100:.0f}") for share in SHARES]
