"""A server that answers at once, over gRPC and HTTP: what is slow beside it is the load generator.

    python -m bench.load.stub_server

prints its two ports and serves until its input ends. Messages of a stream come 10 ms apart, so that
each is one of its own for who reads them.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import grpc

from kvmesh.v1 import generate_pb2 as pb

PAUSE = 0.01  # seconds between two messages
HOST = "127.0.0.1"
FRAME = pb.GenerateResponse(
    deltas=[pb.SampleDelta(token_ids=b"\x05\x00\x00\x00", text=" word")]
).SerializeToString()
LAST_FRAME = pb.GenerateResponse(
    summary=pb.Summary(node="stub", usage=pb.Usage(prompt_tokens=1, completion_tokens=1))
).SerializeToString()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = {
    "id": "cmpl-7f3c5a",
    "object": "text_completion",
    "created": 1,
    "model": "stub",
    "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
}


@contextlib.contextmanager
def stub_server() -> Iterator[tuple[str, str]]:
    """The gRPC target and the URL of one that ends with the context."""
    command = [sys.executable, "-m", "bench.load.stub_server"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        grpc_port, http_port = process.stdout.readline().split()
        yield f"{HOST}:{grpc_port}", f"http://{HOST}:{http_port}"
        process.communicate()  # closes its input


async def _generate(
    body: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    for _ in range(pb.GenerateRequest.FromString(body).sampling.max_tokens):
        yield FRAME
        await asyncio.sleep(PAUSE)
    yield LAST_FRAME


async def _complete(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None
    count = json.loads(await reader.readexactly(int(length.group(1))))["max_tokens"]
    writer.write(HEAD)
    for _ in range(count):
        writer.write(_chunk(EVENT))
        await asyncio.sleep(PAUSE)
    writer.write(_chunk({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}}))
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


def _chunk(event: object) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve() -> None:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(_generate)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("kvmesh.v1.Inference", {"Generate": handler}),)
    )
    grpc_port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    http = await asyncio.start_server(_complete, HOST, 0, backlog=1024)
    print(grpc_port, http.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
