"""Fleet overview: is it healthy?"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.units import BytesIEC, PercentUnit, Seconds, Short

from .board import Panels, board
from .panels import GREEN, MEMORY, NONE_IS_GOOD, ORANGE, RED, graph, labels_table, number
from .queries import known_nodes, largest, node_rate, of_nodes, of_routers, router_rate, total

REQUESTS = "requests/s"
TOKENS = "tokens/s"


def fleet() -> dashboard.Dashboard:
    rows = {"Is it healthy?": healthy(), "What does it do?": work(), "Who is there?": members()}
    return board("kvmesh-fleet", "kvmesh: fleet", __doc__, rows)


def healthy() -> Panels:
    return [
        number(
            "Nodes up",
            "Nodes that take requests, as the routers see them.",
            Short,
            largest(of_routers("kvmesh_router_nodes", 'health="up"')),
            ((None, RED), (1, GREEN)),
        ),
        number(
            "Nodes down",
            "Known to a router and not to be used. `kvmesh nodes` says why.",
            Short,
            largest(of_routers("kvmesh_router_nodes", 'health="down"')),
            NONE_IS_GOOD,
        ),
        number(
            "Fullest node",
            "Share of its KV blocks that requests hold. Over 0.95 samples may lose theirs.",
            PercentUnit,
            largest(of_nodes("kvmesh_kv_cache_usage_perc")),
            MEMORY,
            more="kvmesh-memory",
        ),
        number(
            "Prompt tokens from the cache",
            "Share of all prompt tokens of the last five minutes that were not computed again.",
            PercentUnit,
            "kvmesh:prefix_hit:ratio_rate5m",
            more="kvmesh-cache",
        ),
        number(
            "First token, p99",
            "Of the last five minutes, from arrival at a router.",
            Seconds,
            "kvmesh:time_to_first_token_seconds:p99_5m",
            ((None, GREEN), (2, ORANGE), (10, RED)),
            more="kvmesh-latency",
        ),
        number(
            "Requests that fail",
            "Share of the last five minutes that ended in a fault of the fleet; 0.1 % is allowed.",
            PercentUnit,
            "kvmesh:faults:ratio_rate5m",
            ((None, GREEN), (0.001, ORANGE), (0.0144, RED)),
            more="kvmesh-latency",
        ),
        graph(
            "Alerts",
            "Those that fire. docs/runbook.md has a section for each.",
            Short,
            ('sum by (alertname, severity) (ALERTS{alertstate="firing"})', "{{alertname}}"),
            stacked=True,
        ),
        graph(
            "Nodes by health",
            "As the routers see them: the largest count of each.",
            Short,
            (largest(of_routers("kvmesh_router_nodes"), "health"), "{{health}}"),
        ),
        graph(
            "Processes that do not answer Prometheus",
            "Requests do not depend on it; what is shown here does.",
            Short,
            ('sum by (job) (up{job=~"router|cache-node"} == bool 0)', "{{job}}"),
            steps=NONE_IS_GOOD,
        ),
    ]


def work() -> Panels:
    return [
        graph(
            "Requests by how they ended",
            "RESOURCE_EXHAUSTED is a full fleet, INVALID_ARGUMENT and NOT_FOUND are clients'"
            " mistakes; UNAVAILABLE, INTERNAL and DEADLINE_EXCEEDED are ours.",
            REQUESTS,
            (router_rate("kvmesh_router_requests_total", "code"), "{{code}}"),
            stacked=True,
        ),
        graph(
            "Requests at once",
            "Between arrival and end, at each router; running and waiting on nodes.",
            Short,
            (of_routers("kvmesh_router_requests_in_flight"), "at router {{instance}}"),
            (total(of_nodes("kvmesh_num_requests_running")), "running on nodes"),
            (total(of_nodes("kvmesh_num_requests_waiting")), "waiting on nodes"),
        ),
        graph(
            "Tokens",
            "Prompt tokens, those of them that a cache had, and generated ones.",
            TOKENS,
            (node_rate("kvmesh_prompt_tokens_total"), "prompt"),
            (node_rate("kvmesh_cached_tokens_total"), "cached"),
            (node_rate("kvmesh_generation_tokens_total"), "generated"),
        ),
        graph(
            "Lost nodes and what became of their requests",
            "Retries went to another node before the first token; resumed answers went on at"
            " another in mid-stream.",
            REQUESTS,
            (router_rate("kvmesh_router_retries_total", "code"), "retried: {{code}}"),
            (router_rate("kvmesh_router_resumes_total", "outcome"), "resumed: {{outcome}}"),
        ),
        graph(
            "Retries left",
            "What each router may still retry: near none, faults are passed on instead.",
            Short,
            (of_routers("kvmesh_router_retry_budget"), "{{instance}}"),
        ),
        graph(
            "Nodes that a breaker keeps away",
            "Open: nothing is sent; half-open: one request tries it.",
            Short,
            (
                largest(known_nodes("kvmesh_router_breaker", 'state!="closed"'), "node, state"),
                "{{node}} {{state}}",
            ),
            steps=NONE_IS_GOOD,
        ),
    ]


def members() -> Panels:
    columns = ("node", "instance", "version", "model", "device", "dtype", "kv_cache_dtype")
    return [
        labels_table(
            "Nodes",
            "What each is. A fleet's nodes have one model, dtype and block size.",
            'kvmesh_node_info{node=~"$node"}',
            (*columns, "attention", "scheduling_policy", "max_model_len", "threads"),
        ),
        graph(
            "Memory of routers",
            "Resident. It follows the index: some 100 bytes a block, and requests in flight.",
            BytesIEC,
            (of_routers("process_resident_memory_bytes", 'job="router"'), "{{instance}}"),
            width=12,
        ),
        graph(
            "CPU of routers",
            "Cores in use. A router uses one: near 1 it is time for another router.",
            Short,
            (router_rate("process_cpu_seconds_total", "instance", 'job="router"'), "{{instance}}"),
            steps=((None, GREEN), (0.8, ORANGE)),
            width=12,
        ),
    ]
