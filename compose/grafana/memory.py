"""KV memory: is it short, and what becomes of requests where it is?"""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.units import BytesIEC, BytesPerSecondIEC, PercentUnit, Short

from .board import Panels, board
from .panels import GREEN, MEMORY, NONE_IS_GOOD, ORANGE, RED, graph, number
from .queries import known_nodes, largest, node_percentile, node_rate, of_nodes, total


def memory() -> dashboard.Dashboard:
    rows = {
        "Is it short?": short(),
        "Where are the blocks?": blocks(),
        "What does it cost?": cost(),
        "Where are the bytes?": held_bytes(),
    }
    return board("kvmesh-memory", "kvmesh: KV memory", __doc__, rows)


def short() -> Panels:
    given = largest(known_nodes("kvmesh_router_committed_blocks"), "node")
    pools = total(of_nodes("kvmesh_kv_blocks"), "node")
    return [
        number(
            "Fullest node",
            "Share of its blocks that requests hold. From 0.70 on a burst will queue, from 0.90 on"
            " new requests wait, from 0.95 on samples lose their blocks.",
            PercentUnit,
            largest(of_nodes("kvmesh_kv_cache_usage_perc")),
            MEMORY,
            width=6,
        ),
        number(
            "Nodes that get no requests",
            "Above a router's high watermark, and not yet below the low one.",
            Short,
            total(largest(known_nodes("kvmesh_router_above_watermark"), "node")),
            NONE_IS_GOOD,
            width=6,
        ),
        number(
            "Preemptions in ten minutes",
            "Samples that lost their blocks. Over 10: see Preempting in docs/runbook.md.",
            Short,
            total(of_nodes("increase(kvmesh_num_preemptions_total[10m])")),
            ((None, GREEN), (10, ORANGE), (100, RED)),
            width=6,
        ),
        number(
            "Steps without progress in ten minutes",
            "Steps that computed nothing although requests waited: a fault, see NoProgress in"
            " docs/runbook.md.",
            Short,
            total(of_nodes("increase(kvmesh_steps_without_progress_total[10m])")),
            NONE_IS_GOOD,
            width=6,
        ),
        graph(
            "Use of each node",
            "Share of its blocks that requests hold. Blocks that are only cached do not count: they"
            " are given up when needed.",
            PercentUnit,
            (of_nodes("kvmesh_kv_cache_usage_perc"), "{{node}}"),
            steps=MEMORY,
            width=12,
        ),
        graph(
            "What is promised",
            "Share of its blocks that a node's requests hold, are expected to grow by, or wait for;"
            " and what routers have given away of it. Over 1 some will wait or lose theirs.",
            PercentUnit,
            (
                of_nodes(
                    "kvmesh_kv_blocks_committed"
                    " / on (instance) sum by (instance) (kvmesh_kv_blocks)"
                ),
                "{{node}}",
            ),
            (
                f"{given} / on (node) {pools}",
                "{{node}}, says its router",
            ),
            steps=((None, GREEN), (1, RED)),
            width=12,
        ),
    ]


def blocks() -> Panels:
    return [
        graph(
            "KV pools",
            "Blocks of all nodes. Held: by requests. Cached: of nobody now, and found again by"
            " their keys. Free: of nobody, with nothing in them.",
            Short,
            (total(of_nodes("kvmesh_kv_blocks"), "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "CPU pools",
            "The tier below (--swap-space): what was preempted or given up, and can come back.",
            Short,
            (total(of_nodes("kvmesh_cpu_blocks"), "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "Requests on nodes",
            "In the batch, and waiting for blocks.",
            Short,
            (of_nodes("kvmesh_num_requests_running"), "{{node}} running"),
            (of_nodes("kvmesh_num_requests_waiting"), "{{node}} waiting"),
        ),
    ]


def cost() -> Panels:
    return [
        graph(
            "Preemptions",
            "Samples a second that lost their blocks: copied out (swap), or to be computed again.",
            "preemptions/s",
            (node_rate("kvmesh_num_preemptions_total", "node, kind"), "{{node}} {{kind}}"),
        ),
        graph(
            "Copies to and from CPU pools",
            "Out when blocks are given up or samples preempted, in when they are needed again.",
            BytesPerSecondIEC,
            (node_rate("kvmesh_swap_bytes_total", "direction"), "{{direction}}"),
        ),
        graph(
            "What else memory makes of requests",
            "Admissions past a request that did not fit, samples that gave way to a more important"
            " one, loads from the CPU pool that failed (never should).",
            "events/s",
            (node_rate("kvmesh_overtakes_total"), "overtakes"),
            (node_rate("kvmesh_preemptions_for_priority_total"), "preempted for priority"),
            (node_rate("kvmesh_failed_loads_total"), "failed loads"),
        ),
    ]


def held_bytes() -> Panels:
    return [
        graph(
            "Planned",
            "Weights and KV pool of each node, against what all may take together.",
            BytesIEC,
            (of_nodes("kvmesh_model_weights_bytes"), "{{node}} weights"),
            (of_nodes("kvmesh_kv_pool_bytes"), "{{node}} KV pool"),
            (of_nodes("kvmesh_memory_limit_bytes"), "{{node}} limit"),
        ),
        graph(
            "Memory of GPUs",
            "As their driver says, by all who use them. Empty without a GPU.",
            BytesIEC,
            (of_nodes("kvmesh_gpu_memory_used_bytes"), "{{node}} used"),
            (of_nodes("kvmesh_gpu_memory_total_bytes"), "{{node}} all"),
        ),
        graph(
            "Tokens of a sample at its end",
            "Prompt and output: what a request needs blocks for.",
            Short,
            *(
                (node_percentile(share, "kvmesh_request_tokens"), f"p{share * 100:.0f}")
                for share in (0.5, 0.9, 0.99)
            ),
        ),
    ]
