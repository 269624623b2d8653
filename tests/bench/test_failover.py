"""What the soak of failing nodes would find; it runs by itself as `make soak`."""

import asyncio

import pytest

from bench.cut_proxy import CutProxy
from bench.failover import Soak
from bench.known_answers import Reply
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb

LENGTH = pb.FINISH_REASON_LENGTH
WHOLE = [([5, 6], "ab", 0), ([7], "c", 0), ([8], "d", LENGTH)]


def reply(frames, usage=4):
    answer = Reply()
    for tokens, text, end in frames:
        delta = pb.SampleDelta(token_ids=pack_tokens(tokens), text=text, finish_reason=end)
        answer.take(pb.GenerateResponse(deltas=[delta]))
    answer.take(pb.GenerateResponse(summary=pb.Summary(usage=pb.Usage(completion_tokens=usage))))
    return answer


@pytest.mark.parametrize(
    ("frames", "usage", "problem"),
    [
        (WHOLE, 4, None),
        ([([5], "a", 0), ([6, 7], "bc", 0), WHOLE[2]], 4, None),  # in other pieces
        ([WHOLE[0], WHOLE[2]], 4, "another one at 2"),  # one is missing
        ([*WHOLE[:2], WHOLE[1], WHOLE[2]], 4, "another one at 3"),  # one came twice
        (WHOLE[:2], 4, "3 tokens instead of 4"),
        ([*WHOLE, ([], "", LENGTH)], 4, "another text or end"),
        ([WHOLE[0], ([7], "", 0), WHOLE[2]], 4, "another text or end"),
        (WHOLE, 3, "usage is 3, was 4"),
    ],
)
def test_an_answer_that_differs_is_found(frames, usage, problem):
    found = reply(frames, usage).problem(reply(WHOLE))
    assert found is None if problem is None else problem in found


def test_only_clear_ends_are_no_fault():
    result = Soak(1.0)
    result.ends.update({"answered": 9, "left": 2, "UNAVAILABLE": 1})
    assert (result.unclear, result.failed) == (0, pytest.approx(1 / 12))
    result.ends["INTERNAL"] += 1
    assert result.unclear == 1


async def test_a_cut_ends_both_sides_and_lets_new_ones_in():
    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = CutProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
    await proxy.stop()
    server.close()
