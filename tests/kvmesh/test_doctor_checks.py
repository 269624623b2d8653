"""Each check of `kvmesh doctor`: silent on what a real fleet tells, fired by a change of that."""

import json
import re
import urllib.request
from dataclasses import replace

import pytest

from kvmesh.doctor.examine import examine
from kvmesh.doctor.finding import Level
from kvmesh.doctor.live import read_fleet
from kvmesh.doctor.readings import Readings
from kvmesh.doctor.snapshot import Snapshot, sorted_out
from tests.e2e.serving import Serving
from tests.router.real_node import save_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Snapshot:
    """What a router and its two nodes tell after some requests."""
    model = save_model(tmp_path_factory.mktemp("model"))
    with Serving("--model", str(model), "--dtype", "float32") as fleet:
        for number in range(10):
            body = {"prompt": f"{number} a keeper of a lighthouse", "max_tokens": 4}
            request = urllib.request.Request(
                f"{fleet.http_url}/v1/completions", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                answer.read()
        return read_fleet([fleet.http_url], [])


def changed(readings: Readings, changes: dict[str, object]) -> Readings:
    """`changes`: numbers by name{label=value,…}, all samples that fit; strings are for labels of
    info metrics, by name.label.
    """
    samples = {name: list(told) for name, told in readings.samples.items()}
    for key, value in changes.items():
        name, _, rest = key.replace(".", "{", 1).partition("{")
        if isinstance(value, str):
            samples[name] = [({**labels, rest: value}, 1.0) for labels, _ in samples[name]]
            continue
        wanted = dict(part.split("=") for part in rest.rstrip("}").split(",") if part)
        fits = [labels for labels, _ in samples.get(name, []) if wanted.items() <= labels.items()]
        others = [each for each in samples.get(name, []) if each[0] not in fits]
        samples[name] = [*others, *((labels, value) for labels in fits or [wanted])]
    return replace(readings, samples=samples)


def findings(fleet: Snapshot, *, node=None, router=None) -> dict[str, object]:
    """By check, once node-0 and the router have changed."""
    nodes = [each.read for each in fleet.nodes]
    nodes[0] = changed(nodes[0], node or {})
    routers = [changed(fleet.routers[0], router or {})]
    found = examine(sorted_out([*routers, *nodes]))
    return {each.check: each for each in found if each.where != "node-1"}


def test_a_fleet_that_is_well_gets_no_advice_and_evidence_for_all(recorded):
    found = examine(recorded)
    assert [each for each in found if each.level is not Level.FINE] == []
    assert len({each.check for each in found}) == 14  # so few requests say nothing of lengths
    assert len(found) == 7 + 2 * 7
    assert all(each.finding and each.evidence and not each.change for each in found)
    text = {each.check: each.finding for each in found}
    assert text["nodes"] == "2 up"
    assert re.fullmatch(r"attention runs on (c\+\+|torch) kernels", text["kernel"])
    assert text["prefix-cache"].startswith("on; ")


SHORT = {"kvmesh_kv_cache_usage_perc": 0.95}
ROOMLESS = {**SHORT, "kvmesh_kv_pool_bytes": 12 * GIB, "kvmesh_memory_limit_bytes": 13 * GIB}
LENGTHS = {
    "kvmesh_request_tokens_bucket": 40.0,
    "kvmesh_request_tokens_count": 40.0,
}
NODE = [
    ("preemptions", {"kvmesh_num_preemptions_total{kind=swap}": 11}, 1, "--kv-cache-bytes 214"),
    ("preemptions", {"kvmesh_num_preemptions_total{kind=swap}": 101}, 2, "policy strict"),
    (
        "preemptions",
        {
            "kvmesh_num_preemptions_total{kind=swap}": 60,
            "kvmesh_preemptions_for_priority_total": 55,
        },
        0,
        "",
    ),
    (
        "preemptions",
        {
            "kvmesh_num_preemptions_total{kind=swap}": 11,
            "kvmesh_node_info.pool_sized_by": "num_blocks",
        },
        1,
        "--num-blocks ",
    ),
    (
        "preemptions",
        {
            "kvmesh_num_preemptions_total{kind=swap}": 11,
            "kvmesh_node_info.pool_sized_by": "gpu_memory_utilization",
            "kvmesh_node_info.device": "cuda",
            "kvmesh_gpu_memory_total_bytes": 80 * GIB,
        },
        1,
        "--gpu-memory-utilization 0.95",
    ),
    (
        "preemptions",
        {
            "kvmesh_num_preemptions_total{kind=swap}": 11,
            "kvmesh_node_info.pool_sized_by": "gpu_memory_utilization",
            "kvmesh_node_info.device": "cuda",
            "kvmesh_gpu_memory_total_bytes": 80 * GIB,
            "kvmesh_memory_limit_bytes": 75 * GIB,
            "kvmesh_kv_pool_bytes": 74 * GIB,
        },
        1,
        "--kv-cache-dtype fp8",
    ),
    ("kv-memory", SHORT, 1, "--kv-cache-bytes 214"),
    ("kv-memory", ROOMLESS, 2, "--kv-cache-bytes "),
    ("prefix-cache", {"kvmesh_node_info.prefix_caching": "off"}, 1, "--enable-prefix-caching"),
    (
        "prefix-cache",
        {"kvmesh_prefix_cache_queries_total": 50_000, "kvmesh_kv_blocks{state=free}": 0},
        1,
        "--swap-space",
    ),
    ("prefix-cache", {"kvmesh_prefix_cache_queries_total": 50_000}, 0, ""),
    ("kv-dtype", SHORT, 1, "--kv-cache-dtype fp8"),
    ("kv-dtype", {**SHORT, "kvmesh_node_info.kv_cache_dtype": "int8"}, 0, ""),
    ("max-model-len", {**LENGTHS, **SHORT}, 1, "--max-model-len 32"),
    ("max-model-len", {**LENGTHS, "kvmesh_kv_blocks_committed": 1e9}, 1, "--max-model-len 32"),
    ("max-model-len", LENGTHS, 0, ""),
    ("weights", {"kvmesh_model_weights_bytes": 1 << 50}, 1, "--dtype bfloat16"),
    (
        "weights",
        {"kvmesh_model_weights_bytes": 1 << 50, "kvmesh_node_info.dtype": "bfloat16"},
        1,
        "a smaller model",
    ),
    ("kernel", {"kvmesh_node_info.attention": "torch"}, 1, "g++"),
    ("progress", {"kvmesh_steps_without_progress_total": 3}, 2, "restart"),
]
ROUTER = [
    ("nodes", {"kvmesh_router_nodes{health=down}": 1}, 2, "kvmesh nodes"),
    ("nodes", {"kvmesh_router_breaker{node=node-1,state=open}": 1}, 2, "kvmesh nodes"),
    ("nodes", {"kvmesh_router_nodes": 0}, 2, "kvmesh nodes"),
    ("queue", {"kvmesh_router_queue_oldest_seconds{priority=normal}": 20}, 1, "more nodes"),
    ("queue", {"kvmesh_router_refused_total{reason=queue_full}": 5}, 2, "more nodes"),
    (
        "queue",
        {
            "kvmesh_router_queue_oldest_seconds{priority=normal}": 20,
            "kvmesh_router_queue_depth{priority=normal,reason=seats}": 9,
        },
        1,
        "--max-num-seqs",
    ),
    (
        "watermark",
        {
            "kvmesh_router_queue_depth{priority=normal,reason=watermark}": 4,
            "kvmesh_router_above_watermark{node=node-0}": 1,
        },
        1,
        "--high-watermark 0.99",
    ),
    ("router", {"kvmesh_router_tokenize_seconds_sum": 2}, 1, "--tokenizer-threads"),
    ("router", {"kvmesh_router_route_seconds_sum": 2}, 1, "a core"),
    ("router", {"process_cpu_seconds_total": 1e9}, 1, "another kvmesh router"),
    ("index", {"kvmesh_router_index_lag_seconds{node=node-0}": 12}, 1, "--redis"),
    ("index", {"kvmesh_router_predicted_cached_tokens_total": 50_000}, 1, "--swap-space"),
    ("policy", {"kvmesh_router_routed_total.policy": "round-robin"}, 1, "--policy prefix-aware"),
]


def _name(value: object) -> str:
    return "" if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("check", "changes", "level", "change"), NODE, ids=_name)
def test_a_check_of_a_node(recorded, check, changes, level, change):
    found = findings(recorded, node=changes)[check]
    assert found.level == level
    assert (change in found.change) if change else found.change == ""


@pytest.mark.parametrize(("check", "changes", "level", "change"), ROUTER, ids=_name)
def test_a_check_of_a_router(recorded, check, changes, level, change):
    found = findings(recorded, router=changes)[check]
    assert found.level == level
    assert change in found.change


def test_where_the_memory_is_full_less_is_needed_and_not_more(recorded):
    full = {
        "kvmesh_num_preemptions_total{kind=swap}": 50,
        "kvmesh_memory_limit_bytes": 2.15 * GIB,
    }
    assert "--kv-cache-dtype fp8" in findings(recorded, node=full)["preemptions"].change


def test_a_mark_that_lets_in_too_many_is_named_beside_the_node(recorded):
    found = findings(recorded, node={"kvmesh_num_preemptions_total{kind=swap}": 50})["watermark"]
    assert found.level is Level.ADVICE
    assert "node-0" in found.finding
    assert found.change == "--high-watermark 0.85 --low-watermark 0.80"


def test_a_stale_index_of_a_node_that_is_there_is_told(recorded):
    stale = {"kvmesh_router_index_mode{node=node-0}": 0}
    told = changed(recorded.routers[0], stale)
    told.samples["kvmesh_router_index_mode"].append(({"node": "node-0", "mode": "stale"}, 1.0))
    nodes = [each.read for each in recorded.nodes]
    [found] = [each for each in examine(sorted_out([told, *nodes])) if each.check == "index"]
    assert found.level is Level.ADVICE
    assert "node-0" in found.finding


def test_a_node_without_metrics_is_told(recorded):
    told = [recorded.routers[0], recorded.nodes[1].read]
    told[0] = changed(told[0], {"kvmesh_router_node_info.metrics": ""})
    [found] = [each for each in examine(sorted_out(told)) if each.check == "metrics"]
    assert found.finding.startswith("node-0 cannot be looked at")
    assert found.change == "--metrics-port 9400"


def test_the_worst_comes_first(recorded):
    changes = {"kvmesh_steps_without_progress_total": 1, "kvmesh_node_info.attention": "torch"}
    nodes = [changed(recorded.nodes[0].read, changes), recorded.nodes[1].read]
    levels = [each.level for each in examine(sorted_out([recorded.routers[0], *nodes]))]
    assert levels[:2] == [Level.SERIOUS, Level.ADVICE]
    assert levels == sorted(levels, reverse=True)
