"""Traces: one for each request, from the client's header to the node's decode."""

import subprocess
import sys
import time

import grpc
import pytest

from kvmesh.traces_endpoint import start_tracing
from kvmesh.tracing import parent_in
from tests.router.asking import answer, request
from tests.router.collector import attributes, collector
from tests.router.fleet_fixture import config, eventually, running_fleet
from tests.router.process_fleet import RouterProcess, until
from tests.router.real_node import RealNode, save_model
from tests.router.stub_node import Script, StubNode

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
W3C = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "never in a span " * 4


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds


async def test_one_trace_from_the_clients_header_to_the_nodes_decode(tmp_path, monkeypatch):
    async with collector() as told:  # by OpenTelemetry's own variable
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", told.endpoint)
        node = RealNode(save_model(tmp_path), node_name="node-0", num_blocks=64)
        router = await RouterProcess("router", [node.address]).start()
        try:
            await until(lambda: router.up("node-0"))
            body = {"prompt": SECRET, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            for name in ("first", "second"):
                headers = {**W3C, "x-request-id": name}
                reply = await router.http.post("/v1/completions", json=body, headers=headers)
                assert reply.status_code == 200
            await eventually(lambda: len(told.named("decode")) == 2, 20)
            await eventually(lambda: len(told.named("request")) == 2, 20)
        finally:
            await router.stop()
            node.close()
    assert {span.trace_id.hex() for _, span in told.spans} == {TRACE}
    services = {"kvmesh-router", "kvmesh-node"}
    assert {service for service, _ in told.spans} == services
    _, root = told.named("request")
    assert root.parent_span_id.hex() == PARENT
    assert told.below(root) == ["tokenize", "admission", "route", "dispatch"]
    dispatch = told.named("dispatch")[-1]
    assert told.below(dispatch) == ["node request"]
    below = told.named("node request")[-1]
    assert told.below(below) == ["queue", "prefill", "decode"]
    spans = (root, dispatch, below, told.named("decode")[-1])
    begins = [span.start_time_unix_nano for span in spans]
    assert begins == sorted(begins)
    assert root.end_time_unix_nano >= below.end_time_unix_nano - 5_000_000
    seen = attributes(root)
    assert seen["gen_ai.operation.name"] == "text_completion"
    assert seen["gen_ai.request.max_tokens"] == seen["gen_ai.usage.output_tokens"] == 8
    assert seen["gen_ai.usage.input_tokens"] == len(SECRET)
    assert seen["kvmesh.cached_tokens"] == attributes(below)["kvmesh.cached_tokens"] > 0
    assert seen["gen_ai.usage.cache_read.input_tokens"] == seen["kvmesh.cached_tokens"]
    assert (seen["kvmesh.request_id"], seen["kvmesh.node"]) == ("second", "node-0")
    assert attributes(below)["gen_ai.response.finish_reasons"] == ["length"]
    assert SECRET[:20].encode() not in told.raw


async def test_each_attempt_is_a_span_and_what_failed_says_so():
    nodes = (StubNode("node-0"), StubNode("node-1"))
    async with (
        collector() as told,
        running_fleet(*nodes, policy="round-robin", otlp_traces_endpoint=told.endpoint) as fleet,
    ):
        nodes[0].script = Script(fail_after=3, code="UNAVAILABLE")
        for _ in range(2):  # one of them begins at node-0
            await answer(fleet, request("hello", 6), metadata=tuple(W3C.items()))
        await eventually(lambda: len(told.named("request")) == 2, 10)
        moved = next(r for r in told.named("request") if attributes(r)["kvmesh.resumes"])
        assert told.below(moved)[2:] == ["route", "dispatch"] * 2
        tries = [d for d in told.named("dispatch") if d.parent_span_id == moved.span_id]
        assert [attributes(each)["kvmesh.attempt"] for each in tries] == [1, 2]
        assert [each.status.code for each in tries] == [2, 0]  # error, unset
        sent = [each["traceparent"].split("-")[2] for node in nodes for each in node.metadata]
        assert {each.span_id.hex() for each in tries} <= set(sent)
        assert {span.trace_id.hex() for span in told.named("request")} == {TRACE}

        wrong = fleet.inference.Generate(request("hello", 6, priority=101))
        assert (await wrong.code()).name == "INVALID_ARGUMENT"
        await eventually(lambda: len(told.named("request")) == 3, 10)
        failed = told.named("request")[-1]
        assert failed.status.code == 2
        assert "priority" in failed.status.message
        assert failed.trace_id.hex() != TRACE  # a trace of its own: the client sent none


async def test_a_client_that_does_not_sample_is_followed_and_its_trace_goes_on():
    async with (
        collector() as told,
        running_fleet(StubNode(), otlp_traces_endpoint=told.endpoint) as fleet,
    ):
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        await answer(fleet, request("hello", 2), metadata=tuple(unsampled.items()))
        await answer(fleet, request("hello", 2), metadata=tuple(W3C.items()))
        await eventually(lambda: told.named("request"), 10)
        assert len(told.named("request")) == 1
        first, _ = (each["traceparent"] for each in fleet.nodes[0].metadata)
        assert first.startswith(f"00-{TRACE}-")
        assert first.endswith("-00")


@pytest.mark.parametrize(
    "variable", ["OTEL_SERVICE_NAME=ours", "OTEL_RESOURCE_ATTRIBUTES=service.name=ours"]
)
async def test_the_environment_may_name_the_service(monkeypatch, variable):
    monkeypatch.setenv(*variable.split("=", 1))
    async with (
        collector() as told,
        running_fleet(StubNode(), otlp_traces_endpoint=told.endpoint) as fleet,
    ):
        await answer(fleet, request("hello", 2))
        await eventually(lambda: told.named("request"), 10)
        assert {service for service, _ in told.spans} == {"ours"}


async def test_a_collector_that_is_away_costs_no_request_anything():
    endpoint = "http://127.0.0.1:1"
    async with running_fleet(StubNode(), otlp_traces_endpoint=endpoint) as fleet:
        start = time.monotonic()
        for _ in range(50):
            await answer(fleet, request("hello", 2))
        assert time.monotonic() - start < 5
        start = time.monotonic()
    assert time.monotonic() - start < 5  # nor does the end wait for it


async def test_a_line_that_cannot_be_written_leaves_no_span_open(monkeypatch):
    def broken(_entry):
        raise BrokenPipeError

    monkeypatch.setattr("router.request_log._write", broken)
    async with collector() as told:
        fleet = running_fleet(StubNode(), otlp_traces_endpoint=told.endpoint, log_requests=True)
        async with fleet as running:
            with pytest.raises(grpc.aio.AioRpcError):
                await answer(running, request("hello", 2))
            await eventually(lambda: told.named("request"), 10)


def test_without_an_endpoint_nothing_of_it_is_loaded():
    code = (
        "import asyncio, sys\n"
        "from router.app import RouterApp\nfrom router.config import RouterConfig\n"
        "import cache_node.service\n"
        "async def main():\n"
        "    app = RouterApp(RouterConfig(nodes=('127.0.0.1:1',), http_port=0, grpc_port=0))\n"
        "    await app.start()\n    await app.stop()\n"
        "asyncio.run(main())\n"
        "sys.exit('opentelemetry' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_wrong_endpoint_and_a_missing_library_are_named(monkeypatch):
    missing = ("127.0.0.1:4317", "grpc://a:1", "http://", "http://a:1/v1/traces")
    for wrong in (*missing, "http://a:99999", "http://a:b", "http://a:0"):
        with pytest.raises(ValueError, match=r"^otlp_traces_endpoint: must be "):
            config("a:1", otlp_traces_endpoint=wrong)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    monkeypatch.delitem(sys.modules, "kvmesh.tracing", raising=False)
    with pytest.raises(ValueError, match=r"otlp_traces_endpoint: needs .*kvmesh\[otel\]"):
        start_tracing("http://a:1", "kvmesh-router", "x")


@pytest.mark.parametrize("state", ["\x9b2J", "=,=", "A=B", "x=" + "y" * 2000])
def test_a_trace_state_that_is_wrong_is_ignored_without_a_word(caplog, state):
    assert parent_in([*W3C.items(), ("tracestate", state)]) is not None
    assert caplog.records == []
