"""Connections as hostile or careless clients open them: bounded in time and size, and answered in
OpenAI's words.
"""

import asyncio
import json
import time

import pytest
import pytest_asyncio

from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.openai_fixture import COMPLETION
from tests.router.stub_node import StubNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE = 0.3  # seconds
ORIGIN = "https://app.example.org"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet():
    settings = {"header_timeout": PATIENCE, "body_timeout": PATIENCE, "max_header_bytes": 4096}
    async with running_fleet(StubNode(), cors_allow_origins=(ORIGIN,), **settings) as running:
        yield running


class Raw:
    """A client that sends what it likes, when it likes."""

    def __init__(self, fleet):
        self._port = fleet.app.http_port

    async def __aenter__(self):
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_):
        self._writer.close()

    def send(self, data):
        self._writer.write(data)

    async def answer(self):
        """Status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(body)

    async def closed(self):
        """All that still comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 5)


async def dribble(client, data):
    """A byte at a time, far inside every pause that a timeout for each read would allow."""
    for byte in data:
        client.send(bytes([byte]))
        await asyncio.sleep(PATIENCE / 10)


async def test_headers_that_never_end_are_answered_and_the_connection_closed(fleet):
    async with Raw(fleet) as client:
        started = time.monotonic()
        client.send(HEAD)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert "headers" in body["error"]["message"]
        assert await client.closed() == b""
        assert PATIENCE * 0.9 < time.monotonic() - started < 5


async def test_headers_that_trickle_are_given_no_more_time(fleet):
    async with Raw(fleet) as client:
        trickle = asyncio.create_task(dribble(client, HEAD * 100))
        assert (await client.answer())[0] == 408
        trickle.cancel()


async def test_a_connection_that_says_nothing_is_closed(fleet):
    async with Raw(fleet) as client:
        assert await client.closed() == b""


async def test_the_second_request_of_a_connection_has_no_more_time(fleet):
    async with Raw(fleet) as client:
        client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer())[0] == 200
        client.send(HEAD)
        assert (await client.answer())[0] == 408


async def test_a_connection_may_be_idle_longer_than_headers_may_take(fleet):
    async with Raw(fleet) as client:
        for _ in range(2):
            client.send(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.answer())[0] == 200
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.read(1), 1.5 * PATIENCE)


async def test_a_body_that_never_ends_is_answered_and_holds_nothing(fleet):
    async with Raw(fleet) as client:
        client.send(HEAD + b"Content-Length: 1000\r\n\r\n{")
        await eventually(lambda: fleet.app.admission.in_flight == 1)
        status, _, body = await client.answer()
        assert (status, body["error"]["type"]) == (408, "timeout_error")
        assert fleet.app.admission.in_flight == 0
        assert await client.closed() == b""


async def test_a_body_that_trickles_after_its_answer_does_not_keep_the_connection(fleet):
    async with Raw(fleet) as client:
        client.send(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        trickle = asyncio.create_task(dribble(client, b"x" * 10_000))
        assert (await client.answer())[0] == 404
        assert await client.closed() == b""
        trickle.cancel()


async def test_a_slow_answer_is_no_slow_request(fleet):
    fleet.nodes[0].script.prefill = 2 * PATIENCE
    answer = await fleet.http.post("/v1/completions", json=COMPLETION)
    fleet.nodes[0].script.prefill = 0
    assert answer.status_code == 200


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["whole", "unfinished"])
async def test_large_headers_are_431_with_the_bound(fleet, end):
    async with Raw(fleet) as client:
        client.send(HEAD + b"X-Large: " + b"x" * 8000 + end)
        status, _headers, body = await client.answer()
    assert status == 431
    assert body["error"]["param"] == "headers"
    assert "4096 bytes" in body["error"]["message"]


async def test_what_is_no_http_is_400_in_openais_words(fleet):
    async with Raw(fleet) as client:
        client.send(b"HELO there\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, headers["content-type"]) == (400, "application/json")
        assert body["error"]["type"] == "invalid_request_error"
        assert await client.closed() == b""


async def test_request_ids_come_back_and_are_made(fleet):
    post = fleet.http.post
    given = await post("/v1/completions", json=COMPLETION, headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    assert given.json()["kvmesh"]["request_id"] == "abc-1"
    made = await post("/v1/completions", json=COMPLETION)
    assert made.headers["x-request-id"] == made.json()["kvmesh"]["request_id"]
    body = await post("/v1/completions", json={**COMPLETION, "request_id": "mine"})
    assert (body.headers["x-request-id"], body.json()["id"]) == ("mine", "cmpl-mine")
    for answer in (
        await post("/v1/completions", json={"prompt": ""}, headers={"x-request-id": "abc-2"}),
        await post("/nowhere", headers={"x-request-id": "abc-2"}),
        await fleet.http.get("/v1/models", headers={"x-request-id": "abc-2"}),
    ):
        assert answer.headers["x-request-id"] == "abc-2"


@pytest.mark.parametrize("wrong", ["a b", "x" * 129, "a\u00e9"], ids=["space", "long", "letter"])
async def test_a_wrong_request_id_is_named_and_not_sent_back(fleet, wrong):
    headers = {b"x-request-id": wrong.encode("latin-1")}
    answer = await fleet.http.post("/v1/completions", json=COMPLETION, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")
    assert answer.headers["x-request-id"].isalnum()
    own = {**COMPLETION, "request_id": "a\r\nb: c"}
    answer = await fleet.http.post("/v1/completions", json=own)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")


async def test_pages_of_allowed_origins_may_call(fleet):
    asks = {"origin": ORIGIN, "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization, content-type"
    allowed = await fleet.http.options("/v1/completions", headers=asks)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    for body in (COMPLETION, {"prompt": ""}):
        answer = await fleet.http.post("/v1/completions", json=body, headers={"origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    other = {**asks, "origin": "https://elsewhere.example"}
    refused = await fleet.http.options("/v1/completions", headers=other)
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    "value",
    [b"\xff\xfe", "h\u00e9".encode(), b"a\tb", b"", b"x" * 3000],
    ids=["bytes", "letters", "tab", "nothing", "long"],
)
async def test_a_trace_that_cannot_travel_is_left_behind(fleet, value):
    fleet.nodes[0].metadata.clear()
    headers = [(b"traceparent", value), (b"tracestate", b"a=1")]
    answer = await fleet.http.post("/v1/completions", json=COMPLETION, headers=headers)
    assert answer.status_code == 200
    (seen,) = fleet.nodes[0].metadata
    assert seen["tracestate"] == "a=1"
    assert not seen.get("traceparent")
