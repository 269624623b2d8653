"""OpenAI's HTTP interface, with the official client and with raw requests."""

import asyncio
import json
import math

import httpx
import openai
import pytest

from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode
from tests.router.test_generate_grpc import no_more

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 7}


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as running:
        yield running
        await eventually(lambda: running.idle)


@pytest.fixture
async def client(fleet):
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.http_url}/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx.AsyncClient(trust_env=False),
    ) as each:
        yield each


async def test_completion(client):
    answer = await client.completions.create(**COMPLETION, seed=7, temperature=0)
    assert answer.choices[0].text == "hellohe"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 7)
    assert answer.usage.total_tokens == 12
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.id.startswith("cmpl-")
    assert answer.kvmesh["node"].startswith("node-")
    assert answer.kvmesh["seed"] == 7


async def test_chat_completion(client):
    answer = await client.chat.completions.create(**CHAT, max_completion_tokens=3)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", "?us")  # the template's first tokens
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


async def test_completion_stream(client):
    stream = await client.completions.create(
        **COMPLETION, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "hellohe"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 7 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 7
    assert chunks[-1].kvmesh["request_id"] in chunks[0].id
    assert len({c.id for c in chunks}) == 1


async def test_chat_stream_begins_with_the_role_and_ends_with_the_reason(client):
    stream = await client.chat.completions.create(**CHAT, max_tokens=2, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "?u"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage is None
    assert chunks[-1].kvmesh["node"].startswith("node-")


async def test_a_stream_is_events_up_to_done(fleet):
    async with fleet.http.stream(
        "POST", "/v1/completions", json={**COMPLETION, "stream": True}
    ) as r:
        assert r.headers["content-type"].startswith("text/event-stream")
        assert r.headers["x-kvmesh-node"].startswith("node-")
        lines = [line async for line in r.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


async def test_the_second_answer_tells_of_the_cache(fleet, client):
    prompt = "y" * 100
    first = await client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    place = int(first.kvmesh["node"][-1])
    await eventually(lambda: fleet.quiet and fleet.app.view.nodes()[place].indexed_blocks == 6)
    again = await client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens == 96
    assert again.kvmesh["cached_tokens"] == {"gpu": 96, "cpu": 0, "remote": 0}
    assert again.kvmesh["reason"] == "longest prefix: 96 of 100 tokens"
    assert again.kvmesh["node"] == first.kvmesh["node"]


async def test_prompts_may_be_ids_or_a_list_of_one(client):
    for prompt in ([104, 105], ["hi"], [[104, 105]]):
        answer = await client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
        assert answer.choices[0].text == "hi"


async def test_vllms_extras_and_unknown_fields_are_taken(fleet, client):
    extra = {
        "top_k": -1, "min_p": 0.1, "ignore_eos": True, "min_tokens": 1, "stop_token_ids": [3],
        "priority": 2, "something_new": {"a": 1}, "repetition_penalty": None,
    }  # fmt: skip
    await client.completions.create(**COMPLETION, stop="x", seed=-1, extra_body=extra)
    seen = next(each for node in fleet.nodes for each in node.requests)
    params = seen.sampling
    assert (params.top_k, params.ignore_eos, params.min_tokens, seen.priority) == (0, True, 1, 2)
    assert (list(params.stop), list(params.stop_token_ids)) == (["x"], [3])
    assert params.seed == 2**64 - 1
    assert math.isclose(params.min_p, 0.1, rel_tol=1e-6)


async def test_content_parts_and_tools_reach_the_template(fleet):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {
        **CHAT, "messages": [{"role": "user", "content": parts}], "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }  # fmt: skip
    assert (await fleet.http.post("/v1/chat/completions", json=body)).status_code == 200
    seen = next(each for node in fleet.nodes for each in node.requests)
    assert b"a\nb" in bytes(seen.token_ids[::4])
    assert b'"name": "f"' in bytes(seen.token_ids[::4])


async def test_models_health_version_and_unknown_paths(fleet, client):
    models = [each async for each in client.models.list()]
    assert [each.id for each in models] == ["tiny"]
    assert (await client.models.retrieve("tiny")).max_model_len == 4096
    assert (await fleet.http.get("/v1/models/other")).status_code == 404
    health = await fleet.http.get("/health")
    assert health.status_code == 200
    assert [node["health"] for node in health.json()["nodes"]] == ["up", "up"]
    assert "version" in (await fleet.http.get("/version")).json()
    unknown = await fleet.http.get("/v1/nothing")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"]
    assert (await fleet.http.get("/v1/completions")).status_code == 405


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


def completion(**changes):
    return {**COMPLETION, **changes}


def chat(**changes):
    return {**CHAT, **changes}


BAD = {
    "max_tokens -1": (completion(max_tokens=-1), "max_tokens"),
    "max_tokens as text": (completion(max_tokens="5"), "max_tokens"),
    "max_tokens over the context": (completion(max_tokens=5000), "max_tokens"),
    "NaN": (completion(temperature=float("nan")), "temperature"),
    "infinity": (completion(top_p=float("inf")), "top_p"),
    "range": (completion(temperature=-0.5), "temperature"),
    "empty prompt": (completion(prompt=""), "prompt"),
    "empty list": (completion(prompt=[]), "prompt"),
    "no prompt": ({"model": "tiny"}, "prompt"),
    "several prompts": (completion(prompt=["a", "b"]), "prompt"),
    "long prompt": (completion(prompt="x" * 5000), "prompt"),
    "id out of range": (completion(prompt=[1, 258]), "prompt"),
    "negative id": (completion(prompt=[-1]), "prompt[0]"),
    "unknown model": (completion(model="gpt-5"), "model"),
    "surrogate": (completion(prompt="a\ud800"), "prompt"),
    "stop": (completion(stop=["a"] * 17), "stop"),
    "no messages": (chat(messages=[]), "messages"),
    "missing messages": ({"model": "tiny"}, "messages"),
    "wrong messages": (chat(messages="hi"), "messages"),
    "image": (
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "messages[0].content[0].type",
    ),
    "no role": (chat(messages=[{"content": "x"}]), "messages[0].role"),
    "role": (chat(messages=[{"role": "alien", "content": "x"}]), "messages"),
    "max_completion_tokens over the context": (
        chat(max_completion_tokens=5000, max_tokens=1),
        "max_completion_tokens",
    ),
    "max_tokens of a chat": (chat(messages=CHAT["messages"], max_tokens=5000), "max_tokens"),
    "template args": (chat(chat_template_kwargs={"tools": []}), "chat_template_kwargs"),
    "surrogate in chat": (
        chat(messages=[{"role": "user", "content": "\udfff"}]),
        "messages[0].content",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_is_400_with_the_field_and_costs_nothing(fleet, stream):
    for case, (body, field) in BAD.items():
        path = "/v1/chat/completions" if "messages" in (*body, field) else "/v1/completions"
        raw = json.dumps({**body, "stream": stream})
        answer = await fleet.http.post(path, content=raw)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field), (case, error)
        assert error["type"] == "invalid_request_error"
    assert not any(node.requests for node in fleet.nodes)
    assert fleet.idle


async def test_bytes_that_are_no_json_or_no_utf8(fleet):
    bodies = {
        b"{": "body",
        b"[]": "body",
        b"": "body",
        b"[" * 100_000: "body",
        b'{"model": "tiny", "max_tokens": ' + b"9" * 5000 + b"}": "body",
        b'{"model": "tiny", "prompt": "a\xff"}': "prompt",
        b'{"model": "\xed\xa0\x80", "prompt": "a"}': "model",
    }
    for body, field in bodies.items():
        answer = await fleet.http.post("/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), body[:40]


@pytest.mark.parametrize(
    "value", [b"\xff\xfe", "h\u00e9".encode(), b"a\tb", b"", b"x" * 20_000], ids=repr
)
async def test_a_trace_that_cannot_travel_is_left_behind(fleet, value):
    headers = [(b"traceparent", value), (b"tracestate", b"a=1")]
    answer = await fleet.http.post("/v1/completions", json=COMPLETION, headers=headers)
    assert answer.status_code == 200
    (seen,) = [each for node in fleet.nodes for each in node.metadata]
    assert seen["tracestate"] == "a=1"
    assert not seen.get("traceparent")


async def test_a_10_mb_body_is_refused_and_never_held(fleet):
    body = json.dumps(completion(prompt="x" * 10_000_000)).encode()
    answer = await fleet.http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"
    assert str(4 << 20) in answer.json()["error"]["message"]

    async def chunks():
        for at in range(0, len(body), 65536):
            yield body[at : at + 65536]

    answer = await fleet.http.post("/v1/completions", content=chunks())  # no content-length
    assert answer.status_code == 400
    expecting = await fleet.http.post(
        "/v1/completions", content=body, headers={"expect": "100-continue"}
    )
    assert expecting.status_code == 400
    assert (await fleet.http.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_what_is_not_served_is_501(fleet):
    refused = {
        "n": 2, "best_of": 2, "echo": True, "logprobs": 0, "prompt_logprobs": 1, "max_tokens": 0,
        "logit_bias": {"5": 1.0},
    }  # fmt: skip
    for field, value in refused.items():
        answer = await fleet.http.post("/v1/completions", json=completion(**{field: value}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (501, field)
    chat = {**CHAT, "logprobs": True}
    assert (await fleet.http.post("/v1/chat/completions", json=chat)).status_code == 501


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


async def test_a_clients_request_id_is_kept(fleet):
    answer = await fleet.http.post(
        "/v1/completions", json=COMPLETION, headers={"x-request-id": "abc-1", "traceparent": "00-1"}
    )
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.json()["kvmesh"]["request_id"] == "abc-1"
    seen = next(each for node in fleet.nodes for each in node.metadata)
    assert seen["traceparent"] == "00-1"
    bad = await fleet.http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "a b"})
    assert bad.json()["error"]["param"] == "request_id"
    bad = await fleet.http.post(
        "/v1/completions", json=completion(prompt=""), headers={"x-request-id": "abc-2"}
    )
    assert bad.headers["x-request-id"] == "abc-2"


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
