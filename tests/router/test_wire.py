"""Bytes that are no request are refused by the name of what is wrong in them."""

import random

import pytest

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.wire import parse

LIMIT = 1 << 20


def problem(raw, kind=pb.GenerateRequest, limit=LIMIT):
    with pytest.raises(RequestError) as caught:
        parse(raw, kind, limit)
    assert caught.value.code == Code.INVALID_ARGUMENT
    return caught.value


def spoiled(message, text):
    """`message` with `text` made invalid UTF-8 in place."""
    raw = message.SerializeToString()
    at = raw.index(text)
    return raw[:at] + b"\xff" * len(text) + raw[at + len(text) :]


def test_a_good_request_is_parsed():
    request = pb.GenerateRequest(text="hé", sampling=pb.SamplingParams(stop=["x"]))
    assert parse(request.SerializeToString(), pb.GenerateRequest, LIMIT) == request


def test_invalid_utf8_is_found_at_any_depth():
    request = pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="a", content="b"), pb.ChatMessage(role="qq")]),
        sampling=pb.SamplingParams(stop=["x", "yy", "zz"]),
    )
    assert problem(spoiled(request, b"qq")).field == "chat.messages[1].role"
    assert problem(spoiled(request, b"zz")).field == "sampling.stop[2]"
    explain = fleet_pb2.ExplainRequest(request=request)
    found = problem(spoiled(explain, b"yy"), fleet_pb2.ExplainRequest)
    assert found.field == "request.sampling.stop[1]"
    assert "valid UTF-8" in found.message


def test_a_cut_message_names_the_message():
    raw = pb.GenerateRequest(text="hello").SerializeToString()
    assert problem(raw[:-1]).field == "request"


def test_too_large_names_the_largest_field_and_the_bound():
    request = pb.GenerateRequest(text="x" * 300, sampling=pb.SamplingParams(stop=["y"]))
    found = problem(request.SerializeToString(), limit=100)
    assert found.field == "text"
    assert "100 bytes" in found.message


def test_noise_is_refused_or_parsed_but_never_anything_else():
    rng = random.Random(11)
    for _ in range(3000):
        raw = rng.randbytes(rng.randint(1, 40))
        try:
            parse(raw, pb.GenerateRequest, LIMIT)
        except RequestError as error:
            assert error.field  # noqa: PT017
