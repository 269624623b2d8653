"""What the HTTP front tells operators, and how it ends when it has to."""

import asyncio
import json
import re
import socket

import grpc
import pytest

from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc
from tests.router.asking import no_more
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.openai_fixture import CHAT, COMPLETION, openai_client
from tests.router.stub_node import Script, StubNode


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as running:
        yield running
        await eventually(lambda: running.idle)


async def test_models_health_version_and_unknown_paths(fleet):
    async with openai_client(fleet, _strict_response_validation=True) as client:
        models = [each async for each in client.models.list()]
        assert (await client.models.retrieve("tiny")).max_model_len == 4096
    assert [each.id for each in models] == ["tiny"]
    assert (await fleet.http.get("/v1/models/other")).status_code == 404
    health = await fleet.http.get("/health")
    assert health.status_code == 200
    assert [node["health"] for node in health.json()["nodes"]] == ["up", "up"]
    assert "version" in (await fleet.http.get("/version")).json()
    unknown = await fleet.http.get("/v1/nothing")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"]
    assert (await fleet.http.get("/v1/completions")).status_code == 405


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_both_fronts_listen_on_ipv6():
    async with running_fleet(StubNode(), http_host="::", grpc_host="::1") as fleet:
        for host in ("[::1]", "127.0.0.1"):
            health = await fleet.http.get(f"http://{host}:{fleet.app.http_port}/health")
            assert health.status_code == 200
        async with grpc.aio.insecure_channel(f"[::1]:{fleet.app.grpc_port}") as channel:
            nodes = fleet_pb2_grpc.FleetStub(channel).ListNodes
            assert len((await nodes(fleet_pb2.ListNodesRequest())).nodes) == 1


async def test_metrics(fleet):
    await fleet.http.post("/v1/completions", json=COMPLETION)
    await fleet.http.post("/v1/completions", json={**COMPLETION, "max_tokens": -1})
    text = (await fleet.http.get("/metrics")).text
    assert 'kvmesh_router_requests_total{code="OK",endpoint="completions"} 1.0' in text
    assert (
        'kvmesh_router_requests_total{code="INVALID_ARGUMENT",endpoint="completions"} 1.0' in text
    )
    assert 'kvmesh_router_routed_total{policy="prefix-aware",reason="no-prefix"} 1.0' in text
    assert 'kvmesh_router_nodes{health="up"} 2.0' in text
    assert "kvmesh_router_requests_in_flight 0.0" in text
    assert "kvmesh_router_completion_tokens_total 7.0" in text
    assert "kvmesh_router_request_seconds_count 1.0" in text
    assert int(re.search(r"kvmesh_router_inter_token_seconds_count (\d+)", text)[1]) >= 6
    lags = re.findall(r'kvmesh_router_index_lag_seconds{node="node-\d"} (\S+)', text)
    assert len(lags) == 2
    assert all(0 <= float(lag) < 2 for lag in lags)


async def test_full_is_429_and_gone_is_503(fleet):
    for node in fleet.nodes:
        node.script = Script(full=True)
    answer = await fleet.http.post("/v1/completions", json=COMPLETION)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    for node in fleet.nodes:
        node.script = Script(fail_before="UNAVAILABLE")
    assert (await fleet.http.post("/v1/completions", json=COMPLETION)).status_code == 503
    for node in fleet.nodes:
        await node.stop()
    await eventually(lambda: not fleet.app.view.serving)
    assert (await fleet.http.post("/v1/completions", json=COMPLETION)).status_code == 503
    health = await fleet.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "no node is up")


async def test_an_error_in_mid_stream_is_an_event_and_no_done(fleet):
    for node in fleet.nodes:
        node.script = Script(fail_after=2)
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        answer = await fleet.http.post(path, json={**body, "stream": True})
        events = [line[6:] for line in answer.text.splitlines() if line]
        assert answer.status_code == 200
        assert json.loads(events[-1])["error"]["code"] == "internal"
        assert "[DONE]" not in events
        assert all('"finish_reason":null' in each for each in events[:-1])
        whole = await fleet.http.post(path, json=body)
        assert whole.status_code == 500


async def test_a_stalled_reader_holds_its_own_stream_and_little_memory(fleet):
    for node in fleet.nodes:
        node.script = Script(padding=16384)  # 3000 frames of 16 KiB: 48 MiB
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.app.http_port, limit=1024)
    body = json.dumps({**COMPLETION, "max_tokens": 3000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readline()
    sent = await no_more(lambda: sum(node.frames for node in fleet.nodes))
    assert any(node.running for node in fleet.nodes)
    assert sent * 16384 < 16 << 20  # the kernel's socket buffers are most of it
    answer = await fleet.http.post("/v1/completions", json={**COMPLETION, "max_tokens": 1})
    assert answer.status_code == 200
    writer.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_no_choice_looks_complete_when_the_node_fails_with_its_last_tokens(fleet, path):
    for node in fleet.nodes:
        node.script = Script(fail_after=7)
    body = {**(CHAT if "chat" in path else COMPLETION), "max_tokens": 7, "n": 2, "stream": True}
    answer = await fleet.http.post(path, json=body)
    assert answer.text.count('"index":1') >= 7
    assert '"finish_reason":"length"' not in answer.text
    assert "scripted at the end" in answer.text


async def test_a_batch_counts_against_the_requests_in_flight():
    async with running_fleet(StubNode(), max_in_flight=4) as fleet:

        async def post(prompts):
            body = {"prompt": ["a"] * prompts, "max_tokens": 2}
            return await fleet.http.post("/v1/completions", json=body)

        assert (await post(4)).status_code == 200
        fleet.nodes[0].script = Script(per_token=0.05)
        first = asyncio.create_task(post(3))
        await eventually(lambda: len(fleet.nodes[0].running) == 3)
        assert (await post(2)).status_code == 429
        assert (await first).status_code == 200
        assert (await post(6)).json()["error"]["param"] == "prompt"
        assert fleet.app.admission.in_flight == 0


@pytest.mark.parametrize("prompt", ["hi", ["a", "b"]], ids=["one", "two"])
async def test_what_the_grace_cuts_off_ends_with_the_reason(prompt):
    async with running_fleet(StubNode(script=Script(per_token=0.02)), shutdown_grace=0.2) as fleet:
        body = {"prompt": prompt, "max_tokens": 3000, "stream": True}
        whole = asyncio.create_task(
            fleet.http.post("/v1/completions", json={**body, "stream": False})
        )
        async with fleet.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await eventually(lambda: fleet.app.admission.in_flight >= 2)
            stopping = asyncio.create_task(fleet.app.stop())
            events = [line[6:] async for line in lines if line]
        assert json.loads(events[-1])["error"]["message"] == "the router is shutting down"
        assert json.loads(events[-1])["error"]["type"] == "service_unavailable_error"
        assert (await whole).status_code == 503
        await stopping


async def test_a_client_that_reads_nothing_does_not_keep_the_router(fleet):
    for node in fleet.nodes:
        node.script = Script(padding=16384)
    body = json.dumps({**COMPLETION, "max_tokens": 3000, "stream": True}).encode()
    _reader, writer = await asyncio.open_connection("127.0.0.1", fleet.app.http_port, limit=1024)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await no_more(lambda: sum(node.frames for node in fleet.nodes))
    await asyncio.wait_for(fleet.app.stop(), 6)
    assert fleet.app.admission.in_flight == 0
    assert sum(node.frames for node in fleet.nodes) < 3000
    writer.close()
