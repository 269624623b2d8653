"""What is wrong with a request is said by field, and costs nothing."""

import grpc
import pytest

from kvmesh.errors import Code, from_rpc_error
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb
from tests.router.asking import answer, error, fleet, request, text_of

__all__ = ["fleet"]


def params(**fields):
    return pb.GenerateRequest(text="hi", sampling=pb.SamplingParams(**fields))


def chat(*messages, **fields):
    return pb.GenerateRequest(chat=pb.Chat(messages=messages, **fields))


BAD = {
    "empty prompt": (pb.GenerateRequest(text=""), "prompt"),
    "no prompt": (pb.GenerateRequest(), "prompt"),
    "empty ids": (pb.GenerateRequest(token_ids=b""), "prompt"),
    "prompt over the limit": (request("x" * 4096), "prompt"),
    "prompt and output over the limit": (request("x" * 4000, 97), "max_tokens"),
    "unknown model": (request(model="gpt-5"), "model"),
    "NaN temperature": (params(temperature=float("nan")), "temperature"),
    "infinite top_p": (params(top_p=float("inf")), "top_p"),
    "negative temperature": (params(temperature=-1), "temperature"),
    "id out of range": (pb.GenerateRequest(token_ids=pack_tokens([1, 258])), "token_ids"),
    "ids cut": (pb.GenerateRequest(token_ids=b"\1\0\0"), "token_ids"),
    "stop id out of range": (params(stop_token_ids=[999]), "stop_token_ids"),
    "empty stop": (params(stop=[""]), "stop"),
    "too many samples": (params(n=129), "n"),
    "fewer made than wanted": (params(n=3, best_of=2), "best_of"),
    "too many log-probabilities": (params(logprobs=21), "logprobs"),
    "bias of no token": (params(logit_bias={258: 1.0}), "logit_bias"),
    "bad request id": (request(request_id="a b"), "request_id"),
    "priority": (request(priority=101), "priority"),
    "no messages": (chat(), "messages"),
    "no role": (chat(pb.ChatMessage(content="x")), "messages[0].role"),
    "refused by the template": (chat(pb.ChatMessage(role="x", content="x")), "messages"),
    "tools": (chat(pb.ChatMessage(role="user"), tools_json="{"), "tools_json"),
    "template args": (
        chat(pb.ChatMessage(role="user"), template_args_json="[]"),
        "template_args_json",
    ),
    "template args of the request": (
        chat(pb.ChatMessage(role="user"), template_args_json='{"messages": []}'),
        "template_args_json",
    ),
    "template args of Jinja": (
        chat(pb.ChatMessage(role="user"), template_args_json='{"self": 1}'),
        "template_args_json",
    ),
    "cache mode of a later version": (request(cache=3), "cache"),
    "extra keys": (
        chat(pb.ChatMessage(role="user", extra_json='{"content": 1')),
        "messages[0].extra_json",
    ),
}


@pytest.fixture(scope="module")
def bad_raw():
    """Bytes that no client library sends."""
    invalid_utf8 = pb.GenerateRequest(text="abc").SerializeToString().replace(b"b", b"\xff")
    messages = [pb.ChatMessage(role="user", content="abc")] * 2
    nested = pb.GenerateRequest(chat=pb.Chat(messages=messages)).SerializeToString()
    at = nested.rindex(b"abc")
    negative = bytes((0x2A, 11, 0x08)) + b"\xff" * 9 + b"\x01"  # sampling.max_tokens = -1
    return {
        "text": invalid_utf8,
        "chat.messages[1].content": nested[:at] + b"\xed\xa0\x80" + nested[at + 3 :],
        "sampling": b"\x12\x02hi" + bytes((0x2A, 2, 0x0A, 9)),
        "request": b"\x12\x7fhi",
        "max_tokens": b"\x12\x02hi" + negative,
    }


async def raw_error(fleet, raw, method="Generate"):
    call = fleet.channel.unary_stream(f"/kvmesh.v1.Inference/{method}")(raw)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [frame async for frame in call]
    return from_rpc_error(caught.value)


async def test_bad_input_is_refused_by_the_name_of_the_field_and_costs_nothing(fleet, bad_raw):
    for case, (bad, field) in BAD.items():
        refused = await error(fleet, bad)
        assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, field), case
    for field, raw in bad_raw.items():
        refused = await raw_error(fleet, raw)
        assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, field)
    huge = request("x" * 10_000_000)
    refused = await error(fleet, huge)
    assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "text")
    assert str(4 << 20) in refused.message
    assert not any(node.requests for node in fleet.nodes)
    assert fleet.idle
    assert text_of(await answer(fleet, request())) == "hello"
