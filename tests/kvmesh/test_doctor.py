"""`kvmesh doctor` beside a real fleet that lacks memory, and over a real Prometheus."""

import json
import re
import threading
import urllib.request

import pytest
from typer.testing import CliRunner

from bench.prometheus import PrometheusServer
from cache_node.metrics_server import MetricsServer, registry_of
from cache_node.node_facts import LABELS, FactGauges, NodeFacts
from kvmesh.cli.main import app
from tests.certificates import Authority
from tests.e2e.serving import Serving, poll
from tests.kvmesh.terminal import Terminal
from tests.prometheus_fixture import require_prometheus
from tests.router.real_node import save_model

UNREAD = 3
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """One node with a pool that holds one request of the greatest length, and little more."""
    model = save_model(tmp_path_factory.mktemp("model"))
    sizes = ("--num-blocks", "41", "--max-model-len", "512")
    with Serving("--model", str(model), "--dtype", "float32", *sizes, nodes=1) as serving:
        yield serving


def doctor(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def complete(fleet, number):
    body = {"prompt": f"{number} hello", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"{fleet.http_url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def metrics_of_the_node(fleet):
    with urllib.request.urlopen(f"{fleet.http_url}/metrics", timeout=10) as answer:
        return re.search(r'metrics="(http://[^"]+)"', answer.read().decode())[1]


def provoke_preemptions(fleet):
    """More requests at once than the pool holds at their end, until some have lost their memory."""

    def preempted():
        threads = [threading.Thread(target=complete, args=(fleet, n)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with urllib.request.urlopen(metrics_of_the_node(fleet), timeout=10) as answer:
            counts = re.findall(r"kvmesh_num_preemptions_total{.*} (\S+)", answer.read().decode())
        return sum(map(float, counts)) > 10

    poll(preempted, 60)


def test_a_fleet_at_rest_is_fine(fleet):
    result = doctor("--router", fleet.http_url)
    assert result.exit_code == 0, result.output
    assert "fine: node-0: preemptions: 0" in result.output
    assert "advice" not in result.output


def test_what_cannot_be_read_is_named(fleet):
    result = doctor("--router", NOBODY)
    assert result.exit_code == UNREAD
    assert f"cannot read {NOBODY}/metrics: [Errno 111] Connection refused" in result.output
    partly = doctor("--router", fleet.http_url, "--node", NOBODY, "--json")
    assert partly.exit_code == UNREAD
    told = json.loads(partly.stdout)
    assert NOBODY in told["unread"][0]
    assert {"node-0"} < {each["where"] for each in told["findings"]}


def test_what_is_no_metrics_is_named(fleet):
    result = doctor("--node", f"{fleet.http_url}/v1/models")
    assert result.exit_code == UNREAD
    assert "/v1/models" in result.output
    result = doctor("--prometheus", fleet.http_url)
    assert result.exit_code == UNREAD
    assert "it answers 404" in result.output


def test_metrics_over_tls_are_read_with_a_certificate(tmp_path):
    files = Authority(tmp_path).issue("node")
    labels = dict.fromkeys(LABELS, "1") | {"node": "node-7"}
    facts = NodeFacts(labels, block_bytes=1, pool_bytes=1, weight_bytes=1, memory_limit=1 << 30)
    server = MetricsServer(0, "127.0.0.1", registry_of(FactGauges(facts)), files)
    try:
        url = f"https://127.0.0.1:{server.port}"
        strange = doctor("--node", url)
        assert strange.exit_code == UNREAD
        assert re.search(rf"cannot read {url}/metrics: .*certificate", strange.output)
        shown = ("--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key)
        assert "node-7: kv-memory: " in doctor("--node", url, *map(str, shown)).output
    finally:
        server.close()
    missing = doctor("--tls-ca", str(tmp_path / "none.pem"))
    assert missing.exit_code == UNREAD
    assert "--tls-ca" in missing.output


def test_preemptions_are_found_with_the_flag_to_change(fleet):
    provoke_preemptions(fleet)
    result = doctor("--router", fleet.http_url, "--json")
    told = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
    found = told["preemptions"]
    assert result.exit_code == max(
        {"fine": 0, "advice": 1, "serious": 2}[e["level"]] for e in told.values()
    )
    assert result.exit_code >= 1
    assert found["where"] == "node-0"
    assert found["level"] in ("advice", "serious")
    assert "kvmesh_num_preemptions_total" in found["evidence"]
    assert found["change"].startswith("--num-blocks 81")
    assert told["kv-dtype"]["change"] == "--kv-cache-dtype fp8"
    assert told["kernel"]["level"] == "fine"


def test_a_node_is_looked_at_without_its_router(fleet):
    result = doctor("--node", metrics_of_the_node(fleet))
    assert "node-0: preemptions" in result.output
    assert "router" not in result.output


async def test_on_a_terminal_it_is_a_table(fleet):
    async with Terminal("doctor", "--router", fleet.http_url) as terminal:
        shown = await terminal.until("--num-blocks 81")
    assert "finding, evidence" in shown
    assert "fine: " not in shown


def test_a_prometheus_tells_the_same_of_a_window(fleet, tmp_path):
    node = metrics_of_the_node(fleet).removeprefix("http://").removesuffix("/metrics")
    router = fleet.http_url.removeprefix("http://")
    require_prometheus()
    server = PrometheusServer(tmp_path, {"router": [router], "cache-node": [node]})
    server.start()
    try:
        poll(server.scrapes, 30)
        result = doctor("--prometheus", server.url, "--window", "60", "--json")
        told = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
        assert told["preemptions"]["level"] in ("advice", "serious")
        assert "in 60 s" in told["preemptions"]["finding"]
        assert told["nodes"]["finding"] == "1 up"
        # What happened before the window does not count.
        quiet = poll(lambda: _fine(server.url, "preemptions"), 30)
        assert quiet["finding"].startswith("0 for want of memory in 2 s")
    finally:
        server.stop()


def _fine(url, check):
    result = doctor("--prometheus", url, "--window", "2", "--json")
    told = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
    return told[check] if told[check]["level"] == "fine" else None
