"""Prefix cache and routing: is the cache working, and does the router know it?"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.units import PercentUnit, Seconds, Short

from .board import Panels, board
from .panels import GREEN, NONE_IS_GOOD, ORANGE, RED, graph, number
from .queries import known_nodes, largest, node_rate, of_all, of_nodes, router_rate

TOKENS = "tokens/s"
PREDICTED = router_rate("kvmesh_router_predicted_cached_tokens_total")
ACTUAL = router_rate("kvmesh_router_cached_tokens_total")


def cache() -> dashboard.Dashboard:
    rows = {
        "Is the cache working?": hits(),
        "Does the router know?": predictions(),
        "Why do requests go where they go?": routes(),
        "How good is the index?": index(),
    }
    return board("kvmesh-cache", "kvmesh: prefix cache and routing", __doc__, rows)


def hits() -> Panels:
    prompts = node_rate("kvmesh_prompt_tokens_total")
    tiers = node_rate("kvmesh_cached_tokens_total", "tier")
    return [
        number(
            "Prompt tokens from the cache",
            "Share of all prompt tokens of the last five minutes that were not computed again.",
            PercentUnit,
            "kvmesh:prefix_hit:ratio_rate5m",
        ),
        graph(
            "Hits by tier",
            "Share of prompt tokens that a tier had: the KV pool (gpu), the CPU pool (cpu).",
            PercentUnit,
            (f"{tiers} / ignoring (tier) group_left () ({prompts} > 0)", "{{tier}}"),
            stacked=True,
            width=10,
        ),
        graph(
            "Hits of each node",
            "Share of the prompt tokens that were looked up on a node and found. One that finds"
            " much less than the others gets prompts that nobody knows.",
            PercentUnit,
            (
                of_all(
                    node_rate("kvmesh_prefix_cache_hits_total", "node"),
                    node_rate("kvmesh_prefix_cache_queries_total", "node"),
                ),
                "{{node}}",
            ),
            width=10,
        ),
        graph(
            "Prompt tokens",
            "All, found, and computed: what prefill costs.",
            TOKENS,
            (prompts, "all"),
            (tiers, "found: {{tier}}"),
            (f"{prompts} - {node_rate('kvmesh_cached_tokens_total')}", "computed"),
            width=12,
        ),
        graph(
            "Requests that waited for another's prefix",
            "They came while it was being computed, and used it rather than compute it too.",
            "requests/s",
            (node_rate("kvmesh_prefix_waits_total"), "waited"),
            width=12,
        ),
    ]


def predictions() -> Panels:
    return [
        number(
            "Actual of predicted",
            "Cached tokens that nodes found, of those that the index said they would. Below 0.9 the"
            " index is behind; over 1 it does not know all.",
            PercentUnit,
            of_all(ACTUAL, PREDICTED),
            ((None, RED), (0.7, ORANGE), (0.9, GREEN)),
        ),
        graph(
            "Predicted and actual",
            "Cached tokens of dispatched requests: as the router's index said, and as the node then"
            " told.",
            TOKENS,
            (PREDICTED, "predicted"),
            (ACTUAL, "actual"),
            width=10,
        ),
        graph(
            "Actual by tier, as routers are told",
            "Remote: from another node.",
            TOKENS,
            (router_rate("kvmesh_router_cached_tokens_total", "tier"), "{{tier}}"),
            stacked=True,
            width=10,
        ),
    ]


def routes() -> Panels:
    return [
        graph(
            "Reasons",
            "Prefix: that node holds the longest part. Load: a node with less to do, though another"
            " holds more.",
            "requests/s",
            (router_rate("kvmesh_router_routed_total", "policy, reason"), "{{policy}}: {{reason}}"),
            stacked=True,
        ),
        graph(
            "What each node has to do",
            "Prompt tokens not computed yet. Far apart for long: prefixes count too much.",
            Short,
            (of_nodes("kvmesh_queued_prefill_tokens"), "{{node}}"),
        ),
        graph(
            "Blocks given away",
            "By routers, newest dispatches included.",
            Short,
            (
                largest(known_nodes("kvmesh_router_committed_blocks"), "node"),
                "{{node}}",
            ),
        ),
    ]


def index() -> Panels:
    return [
        graph(
            "Blocks in the index",
            "Of each node, as the routers know them.",
            Short,
            (largest(known_nodes("kvmesh_router_index_blocks"), "node"), "{{node}}"),
        ),
        graph(
            "Index behind its node",
            "Time since it held all that the node had told of. A node tells every 0.25 s, through"
            " Redis every 2 s: less than that is none.",
            Seconds,
            (largest(known_nodes("kvmesh_router_index_lag_seconds"), "node"), "{{node}}"),
            steps=((None, GREEN), (5, ORANGE), (30, RED)),
        ),
        graph(
            "Indexes that are not exact",
            "Stale after a gap or while the feed is cut, blind before the first word. Requests are"
            " served; fewer find their prefix. IndexStale in docs/runbook.md.",
            Short,
            (
                largest(known_nodes("kvmesh_router_index_mode", 'mode!="exact"'), "node, mode"),
                "{{node}} {{mode}}",
            ),
            steps=NONE_IS_GOOD,
        ),
    ]
