"""Servers that keep what they are sent: a gRPC one and an OpenAI-compatible one."""

import asyncio
import contextlib
import json
import re

import grpc

from kvmesh.v1 import generate_pb2 as pb

TOKEN = b"\x05\x00\x00\x00"


def frame(**fields):
    return pb.GenerateResponse(**fields).SerializeToString()


@contextlib.asynccontextmanager
async def grpc_server(per_token=0.0, fail=None):
    """Yields its address and the bodies it got. `fail`: a status code instead of an answer."""
    bodies = []

    async def generate(body, context):
        bodies.append(body)
        if fail is not None:
            await context.abort(fail, "as told")
        count = pb.GenerateRequest.FromString(body).sampling.max_tokens
        for _ in range(count):
            await context.write(frame(deltas=[pb.SampleDelta(token_ids=TOKEN, text="x")]))
            await asyncio.sleep(per_token)
        usage = pb.Usage(prompt_tokens=70, completion_tokens=count, cached=pb.CachedTokens(gpu=32))
        await context.write(frame(summary=pb.Summary(node="node-7", usage=usage)))

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler = grpc.unary_stream_rpc_method_handler(generate, None, None)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("kvmesh.v1.Inference", {"Generate": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", bodies
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def http_server(per_token=0.0, answer=None):
    """Yields its URL and the whole requests it got. `answer`: bytes instead of a stream."""
    requests = []

    handlers = set()

    async def serve(reader, writer):
        handlers.add(asyncio.current_task())
        try:
            await answer_one(reader, writer)
            await writer.drain()
        except ConnectionError:
            pass  # the client does not wait for the end
        finally:
            writer.close()

    async def answer_one(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        body = await reader.readexactly(int(length.group(1))) if length else b""
        if head.startswith(b"GET /v1/models "):
            writer.write(response(b'{"data": [{"id": "stub"}]}'))
            return
        requests.append(head + body)
        await _stream(writer, json.loads(body)["max_tokens"], per_token, answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=256)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()
        for handler in handlers:  # those that still sleep
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


async def _stream(writer, count, per_token, answer):
    if answer is not None:
        writer.write(answer)
        return
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nx-kvmesh-node: node-7\r\n\r\n")
    for _ in range(count):
        writer.write(chunk(event({"choices": [{"text": " word"}]})))
        await asyncio.sleep(per_token)
    usage = {
        "prompt_tokens": 70,
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    writer.write(chunk(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n") + chunk(b""))


def event(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def response(body, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
