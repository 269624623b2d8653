"""A dashboard made for vLLM shows a fleet: every series that vLLM's own asks a Prometheus for."""

import json
import re
import urllib.request

import pytest

from bench.prometheus import PrometheusServer
from tests.e2e.serving import Serving, poll
from tests.prometheus_fixture import require_prometheus
from tests.router.real_node import save_model

HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "iteration_tokens_total",
)
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
REQUESTS = 6


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    model = save_model(tmp_path_factory.mktemp("model"))
    flags = ("--served-model-name", "tiny", "--dtype", "float32", "--vllm-metrics")
    with Serving("--model", str(model), *flags, nodes=1) as serving:
        yield serving


@pytest.fixture(scope="module")
def prometheus(fleet, tmp_path_factory):
    """One that scrapes the node, and has seen it before and after some requests."""
    with urllib.request.urlopen(f"{fleet.http_url}/metrics", timeout=10) as answer:
        node = re.search(r'metrics="http://([^/]+)/metrics"', answer.read().decode())[1]
    require_prometheus()
    server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), {"vllm": [node]})
    server.start()
    try:
        poll(server.scrapes, 30)
        for number in range(REQUESTS):
            complete(fleet, number)
        seen = 'vllm:e2e_request_latency_seconds_count{model_name="tiny"}'
        poll(lambda: [s for s in server.query(seen) if float(s["value"][1]) == REQUESTS], 30)
        yield server
    finally:
        server.stop()


def complete(fleet, number):
    body = {"prompt": f"a keeper and {number}", "max_tokens": 5, "ignore_eos": True}
    request = urllib.request.Request(f"{fleet.http_url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def value(prometheus, expression):
    [series] = prometheus.query(expression)
    return float(series["value"][1])


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_panel_of_quantiles_and_means(prometheus, name):
    of_model = f'vllm:{name}_%s{{model_name="tiny",engine="0"}}'
    quantile = f"histogram_quantile(0.9, sum by (le) ({of_model % 'bucket'}))"
    assert value(prometheus, quantile) > 0
    mean = value(prometheus, f"{of_model % 'sum'} / {of_model % 'count'}")
    assert 0 <= mean < 60


@pytest.mark.parametrize("name", COUNTERS)
def test_a_panel_of_rates(prometheus, name):
    rate = value(prometheus, f'sum(rate(vllm:{name}{{model_name="tiny",engine="0"}}[1m]))')
    assert rate >= 0
    if name in ("prompt_tokens_total", "generation_tokens_total", "request_success_total"):
        assert rate > 0


@pytest.mark.parametrize("name", GAUGES)
def test_a_panel_of_the_state(prometheus, name):
    assert value(prometheus, f'vllm:{name}{{model_name="tiny",engine="0"}}') == 0


def test_what_the_cache_is_and_how_requests_ended(prometheus):
    [info] = prometheus.query("vllm:cache_config_info")
    assert info["metric"]["block_size"] == "16"
    assert info["metric"]["enable_prefix_caching"] == "True"
    ended = {
        series["metric"]["finished_reason"]: float(series["value"][1])
        for series in prometheus.query("sum by (finished_reason) (vllm:request_success_total)")
    }
    assert ended == {"stop": 0, "length": REQUESTS, "abort": 0}


def test_the_choice_of_models_knows_it(prometheus):
    assert prometheus.get("label/model_name/values") == ["tiny"]
