"""What is wrong, too much, or not served: named by field, and nothing else is affected."""

import json

import pytest

from router.openai_chat import ChatBody
from router.openai_completions import CompletionBody
from router.openai_fields import MAX_PROMPTS
from tests.router.openai_fixture import CHAT, COMPLETION, fleet, running, seen_by

__all__ = ["fleet", "running"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    "one of several is empty": (completion(prompt=["a", ""]), "prompt[1]"),
    "one of several has a wrong id": (completion(prompt=[[1], [258]]), "prompt[1]"),
    "too many prompts": (completion(prompt=["a"] * (MAX_PROMPTS + 1)), "prompt"),
    "too many lists": (completion(prompt=[[1]] * (MAX_PROMPTS + 1)), "prompt"),
    "long prompt": (completion(prompt="x" * 5000), "prompt"),
    "id out of range": (completion(prompt=[1, 258]), "prompt"),
    "negative id": (completion(prompt=[-1]), "prompt[0]"),
    "unknown model": (completion(model="gpt-5"), "model"),
    "surrogate": (completion(prompt="a\ud800"), "prompt"),
    "stop": (completion(stop=["a"] * 17), "stop"),
    "n": (completion(n=129), "n"),
    "n 0": (completion(n=0), "n"),
    "best_of below n": (completion(n=3, best_of=2), "best_of"),
    "logprobs": (completion(logprobs=21), "logprobs"),
    "logprobs as a flag": (completion(logprobs=True), "logprobs"),
    "prompt_logprobs": (completion(prompt_logprobs=21), "prompt_logprobs"),
    "bias of no id": (completion(logit_bias={"a": 1}), "logit_bias"),
    "bias of a large id": (completion(logit_bias={"258": 1}), "logit_bias"),
    "bias out of range": (completion(logit_bias={"5": 101}), "logit_bias[5]"),
    "priority": (completion(priority=-101), "priority"),
    "response_format": (completion(response_format={"type": 1}), "response_format.type"),
    "no messages": (chat(messages=[]), "messages"),
    "missing messages": ({"model": "tiny"}, "messages"),
    "wrong messages": (chat(messages="hi"), "messages"),
    "too many messages": (chat(messages=CHAT["messages"] * 4097), "messages"),
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
    "top_logprobs alone": (chat(top_logprobs=2), "top_logprobs"),
    "top_logprobs": (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    "tool without function": (chat(tools=[{"type": "function"}]), "tools[0].function"),
    "tool without name": (chat(tools=[{"function": {}}]), "tools[0].function.name"),
    "template args": (chat(chat_template_kwargs={"tools": []}), "chat_template_kwargs"),
    "surrogate in chat": (
        chat(messages=[{"role": "user", "content": "\udfff"}]),
        "messages[0].content",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_is_400_with_the_field_and_costs_nothing(fleet, stream):
    for case, (body, field) in BAD.items():
        if stream and field == "prompt_logprobs":
            continue  # not served there at all
        path = "/v1/chat/completions" if "messages" in (*body, field) else "/v1/completions"
        raw = json.dumps({**body, "stream": stream})
        answer = await fleet.http.post(path, content=raw)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field), (case, error)
        assert error["message"].startswith(field), (case, error)
        assert error["type"] == "invalid_request_error"
    assert seen_by(fleet) == []
    assert fleet.idle


async def test_fields_that_go_only_with_or_without_a_stream(fleet):
    for field, body in {
        "stream_options": completion(stream_options={"include_usage": True}),
        "prompt_logprobs": completion(prompt_logprobs=1, stream=True),
    }.items():
        answer = await fleet.http.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


NOT_SERVED = {
    "/v1/completions": (
        COMPLETION,
        {
            "suffix": "end", "add_special_tokens": False, "use_beam_search": True,
            "response_format": {"type": "json_object"}, "cache_salt": "x", "bad_words": ["a"],
            "allowed_token_ids": [1], "truncate_prompt_tokens": 3, "length_penalty": 2.0,
            "include_stop_str_in_output": True, "structured_outputs": {"regex": "a"},
        },
    ),
    "/v1/chat/completions": (
        CHAT,
        {
            "tool_choice": "required", "continue_final_message": True, "chat_template": "x",
            "echo": True, "functions": [{"name": "f"}], "modalities": ["text", "audio"],
            "response_format": {"type": "json_schema", "json_schema": {}}, "guided_json": {},
            "tools": [{"type": "custom"}],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", NOT_SERVED)
async def test_what_is_not_served_is_501(fleet, path):
    body, refused = NOT_SERVED[path]
    for field, value in refused.items():
        answer = await fleet.http.post(path, json={**body, field: value})
        error = answer.json()["error"]
        assert answer.status_code == 501, (field, error)
        assert error["param"].startswith(field)
        assert error["type"] == "not_implemented_error"
    assert seen_by(fleet) == []


async def test_parallel_calls_cannot_be_forbidden(fleet):
    tool = {"type": "function", "function": {"name": "f"}}
    body = chat(tools=[tool], parallel_tool_calls=False)
    answer = await fleet.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (501, "parallel_tool_calls")


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


VALUES = (
    None, True, 0, 1, -1, 2**64, 0.5, 1e300, float("inf"), "x", "\ud800", [], [[]], [1, "x"], {},
    {"\ud800": {"a": [1]}}, [{"role": "user", "content": [{}]}],
    [{"type": "function", "function": {"name": "\udfff"}}],
)  # fmt: skip
KINDS = {
    "/v1/completions": (CompletionBody, COMPLETION),
    "/v1/chat/completions": (ChatBody, {**CHAT, "max_tokens": 2}),
}


@pytest.mark.parametrize("path", KINDS)
async def test_no_value_of_any_field_is_an_internal_error(fleet, path):
    kind, body = KINDS[path]
    for field in (*kind.model_fields, *kind.unserved):
        for value in VALUES:
            raw = json.dumps({**body, field: value})
            answer = await fleet.http.post(path, content=raw)
            assert answer.status_code in (200, 400, 501), (field, value, answer.text)
            if answer.status_code != 200 and field != "stream":
                assert answer.json()["error"]["param"], (field, value, answer.text)
