"""What a request may contain: each bound, and what is said behind it."""

import math

import pytest

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.validation import check_sampling, resolve_max_tokens

VOCAB = 100


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1, "best_of": 1},
        {"n": 128},
        {"best_of": 128},
        {"n": 3, "best_of": 3},
        {"temperature": 0.0, "n": 4, "best_of": 8},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 10.0, "presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"logit_bias": {0: -100.0, VOCAB - 1: 100.0}},
        {"logprobs": 0, "prompt_logprobs": 20},
        {"logprobs": 20, "prompt_logprobs": 0},
        {"max_tokens": 0},
        {"max_tokens": 0, "prompt_logprobs": 5},
        {"max_tokens": 5, "min_tokens": 5},
        {"top_k": 2**32 - 1, "top_p": 1.0, "min_p": 1.0, "temperature": 100.0},
    ],
)
def test_what_is_served_passes(fields):
    check_sampling(pb.SamplingParams(**fields), VOCAB)


@pytest.mark.parametrize(
    ("fields", "field", "bound", "value"),
    [
        ({"temperature": -0.5}, "temperature", "[0, 100]", "-0.5"),
        ({"temperature": 100.0001}, "temperature", "[0, 100]", "100.000099"),
        ({"temperature": 1e9}, "temperature", "[0, 100]", "1e+09"),
        ({"top_p": 0.0}, "top_p", "(0, 1]", "0"),
        ({"min_p": 1.5}, "min_p", "[0, 1]", "1.5"),
        ({"n": 0}, "n", "[1, 128]", "0"),
        ({"n": 129}, "n", "[1, 128]", "129"),
        ({"best_of": 0}, "best_of", "[1, 128]", "0"),
        ({"n": 3, "best_of": 2}, "best_of", "[3, 128]", "2"),
        ({"n": 3, "best_of": 129}, "best_of", "[3, 128]", "129"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "(0, 10]", "0"),
        ({"repetition_penalty": 10.5}, "repetition_penalty", "(0, 10]", "10.5"),
        ({"repetition_penalty": math.nan}, "repetition_penalty", "finite", "nan"),
        ({"presence_penalty": 2.5}, "presence_penalty", "[-2, 2]", "2.5"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "[-2, 2]", "-2.5"),
        ({"frequency_penalty": math.inf}, "frequency_penalty", "finite", "inf"),
        ({"logit_bias": {5: 100.5}}, "logit_bias[5]", "[-100, 100]", "100.5"),
        ({"logit_bias": {5: math.nan}}, "logit_bias[5]", "finite", "nan"),
        ({"logit_bias": {5: -math.inf}}, "logit_bias[5]", "finite", "-inf"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias", "[0, 99]", "100"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias", "1024", "1025"),
        ({"logprobs": 21}, "logprobs", "[0, 20]", "21"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "[0, 20]", "21"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens", "0", "1"),
        ({"stop": ["x"] * 17}, "stop", "16", "17"),
        ({"stop": [""]}, "stop", "1 to 256", "0"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids", "[0, 99]", "100"),
    ],
)
def test_an_error_names_field_bound_and_value(fields, field, bound, value):
    with pytest.raises(RequestError) as caught:
        check_sampling(pb.SamplingParams(**fields), VOCAB)
    error = caught.value
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)
    assert error.message.startswith(f"{field}: ")
    assert bound in error.message
    assert error.message.endswith(f" {value}")


def test_max_tokens_is_what_was_asked_for_or_what_the_context_leaves():
    assert resolve_max_tokens(pb.SamplingParams(), 30, 100) == 70
    assert resolve_max_tokens(pb.SamplingParams(max_tokens=0), 30, 100) == 0
    assert resolve_max_tokens(pb.SamplingParams(max_tokens=70), 30, 100) == 70
    with pytest.raises(RequestError) as caught:
        resolve_max_tokens(pb.SamplingParams(max_tokens=71), 30, 100)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "max_tokens")
    assert "at most 70" in caught.value.message
    assert caught.value.message.endswith("is 71")
