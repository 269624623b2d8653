"""What is sent over both transports, and what is made of what comes back."""

import asyncio
import json

import grpc
import pytest

from bench.load.config import LoadConfig
from bench.load.http_stream import HttpError, LineStream
from bench.load.outcome import Outcome, RequestFailedError
from bench.load.plan import make_plan
from bench.load.run import run_load, sender_of
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from tests.bench.load_servers import chunk, event, grpc_server, http_server, response

SIZES = {"prefix_tokens": 40, "prompt_tokens": 10, "output_tokens": 4, "rate": 200.0, "think": 0.0}


def nothing(*_):
    pass


async def sent(server, **fields):
    """The bodies that a server gets, in an order that does not depend on the network."""
    async with server() as (target, bodies):
        config = LoadConfig(target=target, **{**SIZES, **fields})
        run = await run_load(config, make_plan(config), target, None, nothing)
        assert all(each.ok for each in run.generator.outcomes), run.generator.outcomes
        port = target.rpartition(":")[2].encode()  # it is another each time, and in the head
        return sorted(body.replace(port, b"PORT") for body in bodies)


@pytest.mark.parametrize("server", [grpc_server, http_server])
@pytest.mark.parametrize("prompts", ["tokens", "text", "chat"])
@pytest.mark.parametrize("workload", ["shared-prefix", "agents"])
async def test_one_seed_sends_identical_bytes(server, prompts, workload):
    fields = {"workload": workload, "requests": 12, "prompts": prompts}
    first = await sent(server, seed=5, **fields)
    assert len(first) == 12
    assert await sent(server, seed=5, **fields) == first
    assert await sent(server, seed=6, **fields) != first


async def test_both_transports_ask_the_same():
    fields = {"requests": 5, "arrivals": "constant"}
    over_grpc = [pb.GenerateRequest.FromString(body) for body in await sent(grpc_server, **fields)]
    heads = await sent(http_server, **fields)
    over_http = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in heads]

    def key(tokens):
        return tuple(tokens[-10:])

    asked = {key(unpack_tokens(each.token_ids)): each for each in over_grpc}
    assert len(asked) == 5
    for each in over_http:
        same = asked[key(each["prompt"])]
        assert unpack_tokens(same.token_ids) == each["prompt"]
        assert same.sampling.seed == each["seed"]
        assert same.sampling.max_tokens == each["max_tokens"] == 4
        assert same.sampling.ignore_eos
        assert each["ignore_eos"] is True


async def ask(target, **fields):
    config = LoadConfig(target=target, **{**SIZES, "requests": 1, **fields})
    sender, (turn,) = sender_of(config, target), make_plan(config).turns
    await sender.open()
    outcome = Outcome(turn, 0.0)
    loop = asyncio.get_running_loop()
    try:
        await sender.send(sender.prepare(turn), outcome, loop.time)
    finally:
        await sender.close()
    return outcome


@pytest.mark.parametrize("server", [grpc_server, http_server])
async def test_an_answer_tells_tokens_cache_and_node(server):
    async with server(per_token=0.02) as (target, _):
        outcome = await ask(target, output_tokens=6)
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.cached_tokens) == (6, 70, 32)
    assert outcome.node == "node-7"
    assert len(outcome.gaps) == 5
    assert min(outcome.gaps) >= 0
    assert outcome.last - outcome.first == pytest.approx(sum(outcome.gaps))


async def test_a_grpc_status_is_told():
    async with grpc_server(fail=grpc.StatusCode.RESOURCE_EXHAUSTED) as (target, _):
        with pytest.raises(RequestFailedError, match="as told") as caught:
            await ask(target)
    assert caught.value.status == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (response(b"slow down", b"429 Too Many Requests"), "HTTP 429"),
        (response(event({"error": {"message": "no"}})), "error in the stream"),
        (response(b""), "INCOMPLETE"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "broken answer"),
        (response(event({"usage": {"completion_tokens": None}})), "broken answer"),
        (response(event({"usage": {"completion_tokens": "4"}})), "broken answer"),
        (
            response(event({"usage": {"completion_tokens": 4, "prompt_tokens": float("nan")}})),
            "broken answer",
        ),
        (b"nonsense\r\n\r\n", "broken answer"),
        (b"", "broken answer"),
    ],
)
async def test_what_is_wrong_with_an_http_answer_is_told(answer, status):
    async with http_server(answer=answer) as (target, _):
        with pytest.raises(RequestFailedError) as caught:
            await ask(target)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("server", "status"), [(grpc_server, "DEADLINE_EXCEEDED"), (http_server, "timeout")]
)
async def test_a_request_ends_at_its_timeout(server, status):
    async with server(per_token=5.0) as (target, _):
        with pytest.raises(RequestFailedError) as caught:
            await ask(target, timeout=0.2)
    assert caught.value.status == status


@pytest.mark.parametrize("target", ["127.0.0.1:1", "http://127.0.0.1:1"])
async def test_nobody_there_is_said_before_the_load(target, monkeypatch):
    monkeypatch.setattr("bench.load.grpc_sender.CONNECT", 0.3)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
        await ask(target)


@pytest.mark.parametrize("models", [b"[]", b"5", b'{"data": null}', b'{"data": [1]}', b"<html>"])
async def test_what_is_no_list_of_models_is_said_before_the_load(models):
    async def answer(_reader, writer):
        writer.write(response(models))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match=f"no OpenAI-compatible server .*{port}"):
            await ask(f"http://127.0.0.1:{port}")


LINES = [b"data: one", b"data: two", b"rest"]
BODY = b"data: one\n\ndata: two\nrest"
ANSWERS = {
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunk(BODY[:4]) + chunk(BODY[4:15]) + chunk(BODY[15:]) + chunk(b""),
    "counted": response(BODY),
    "until close": b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
}  # fmt: skip


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_reads_the_same_however_it_is_cut(kind):
    answer = ANSWERS[kind]
    for size in range(1, len(answer) + 1):
        lines = []
        stream = LineStream(b"", lines.append)
        for start in range(0, len(answer), size):
            stream.data_received(answer[start : start + size])
        stream.connection_lost(None)
        await stream.done
        assert lines == LINES, size


async def test_what_reads_the_lines_may_fail():
    stream = LineStream(b"", json.loads)
    stream.data_received(response(b"no json\n"))
    with pytest.raises(HttpError, match="JSONDecodeError"):
        await stream.done
