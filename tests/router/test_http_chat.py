"""POST /v1/chat/completions, with the official client and with raw requests."""

import json

import pytest

from kvmesh.packing import unpack_tokens
from tests.router.openai_fixture import CHAT, client, fleet, running, seen_by, strict

__all__ = ["client", "fleet", "running", "strict"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def rendered(fleet):
    """The text of the one prompt that reached a node, its special tokens left out."""
    (request,) = seen_by(fleet)
    return bytes(token for token in unpack_tokens(request.token_ids) if token < 256).decode()


async def test_chat_completion(strict):
    answer = await strict.chat.completions.create(**CHAT, max_completion_tokens=3)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", "?us")  # the template's first tokens
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason(strict):
    stream = await strict.chat.completions.create(**CHAT, max_tokens=2, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "?u"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage is None
    assert chunks[-1].kvmesh["node"].startswith("node-")


async def test_n_samples_stream_and_come_whole(strict):
    asked = {**CHAT, "max_tokens": 3, "n": 2, "stream_options": {"include_usage": True}}
    chunks = [c async for c in await strict.chat.completions.create(**asked, stream=True)]
    texts = {0: "", 1: ""}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert [c.choices[0].index for c in chunks[:2]] == [0, 1]
    assert {c.choices[0].delta.role for c in chunks[:2]} == {"assistant"}
    assert texts == {0: "?us", 1: "use"}
    assert chunks[-1].usage.completion_tokens == 6
    del asked["stream_options"]
    whole = await strict.chat.completions.create(**asked)
    assert [choice.message.content for choice in whole.choices] == ["?us", "use"]


async def test_log_probabilities(strict):
    asked = {**CHAT, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await strict.chat.completions.create(**asked)).choices
    marker, letter = choice.logprobs.content
    assert (marker.token, bytes(marker.bytes)) == ("<|im_start|>", b"<|im_start|>")
    assert (letter.token, letter.logprob, letter.bytes) == ("u", -117 / 256, [117])
    assert [(top.token, top.logprob) for top in letter.top_logprobs] == [
        ("u", -117 / 256),
        ("v", -118 / 256),
    ]
    stream = await strict.chat.completions.create(**asked, stream=True)
    pieces = [c.choices[0].logprobs async for c in stream]
    assert [entry.token for piece in pieces if piece for entry in piece.content] == [
        "<|im_start|>",
        "u",
    ]


async def test_log_probabilities_of_the_tokens_alone(strict):
    (choice,) = (await strict.chat.completions.create(**CHAT, max_tokens=1, logprobs=True)).choices
    assert choice.logprobs.content[0].top_logprobs == []


async def test_prompt_log_probabilities_are_of_the_rendered_prompt(strict):
    answer = await strict.chat.completions.create(
        **CHAT, max_tokens=1, extra_body={"prompt_logprobs": 0, "return_token_ids": True}
    )
    assert answer.prompt_logprobs[0] is None
    assert [list(each) for each in answer.prompt_logprobs[1:3]] == [["117"], ["115"]]
    assert answer.prompt_token_ids[:3] == [256, 117, 115]


async def test_content_parts_and_tools_reach_the_template(fleet, strict):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    await strict.chat.completions.create(
        model="tiny", messages=messages, max_tokens=1, tools=[TOOL], tool_choice="auto"
    )
    assert "a\nb" in rendered(fleet)
    assert json.dumps([TOOL]) in rendered(fleet)


async def test_no_tool_is_offered_when_none_may_be_called(fleet, strict):
    await strict.chat.completions.create(**CHAT, max_tokens=1, tools=[TOOL], tool_choice="none")
    assert "weather" not in rendered(fleet)


async def test_the_template_sees_the_arguments_of_a_call_as_an_object(fleet):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call, broken]},
        {"role": "tool", "tool_call_id": "1", "content": "22"},
    ]
    body = {**CHAT, "messages": messages, "max_tokens": 1}
    assert (await fleet.http.post("/v1/chat/completions", json=body)).status_code == 200
    assert "[{'x': 1}, '{']" in rendered(fleet)


async def test_variables_reach_the_template(fleet, strict):
    extra = {
        "add_generation_prompt": False, "chat_template_kwargs": {"mood": "calm"},
        "documents": [{"title": "d"}], "reasoning_effort": "low",
    }  # fmt: skip
    await strict.chat.completions.create(**CHAT, max_tokens=1, extra_body=extra)
    assert rendered(fleet) == "user\nhi\n[calm][d][low]"
