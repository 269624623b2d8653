"""POST /v1/completions, with the official client and with raw requests."""

import math

import pytest

from kvmesh.packing import unpack_tokens
from tests.router.fleet_fixture import eventually
from tests.router.openai_fixture import COMPLETION, client, fleet, running, seen_by, strict
from tests.router.tiny_model import MAX_MODEL_LEN

__all__ = ["client", "fleet", "running", "strict"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def choices_of(stream):
    """Text, finish reason and log-probabilities of each choice of a stream of completions."""
    texts, finishes, logprobs = {}, {}, {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                assert choice.index not in finishes
                finishes[choice.index] = choice.finish_reason
            if choice.logprobs:
                logprobs.setdefault(choice.index, []).append(choice.logprobs)
    return texts, finishes, logprobs


async def test_completion(strict):
    answer = await strict.completions.create(**COMPLETION, seed=7, temperature=0)
    assert answer.choices[0].text == "hellohe"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 7)
    assert answer.usage.total_tokens == 12
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.id.startswith("cmpl-")
    assert answer.kvmesh["node"].startswith("node-")
    assert answer.kvmesh["seed"] == 7


async def test_completion_stream(client):
    stream = await client.completions.create(
        **COMPLETION, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "hellohe"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 7 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 7
    assert [c.usage for c in chunks[:-1]] == [None] * 8
    assert all("usage" in c.model_fields_set for c in chunks)
    assert chunks[-1].kvmesh["request_id"] in chunks[0].id
    assert len({c.id for c in chunks}) == 1


async def test_vllms_usage_in_every_chunk(client):
    stream = await client.completions.create(
        **COMPLETION,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    chunks = [chunk async for chunk in stream]
    spent = [c.usage.completion_tokens for c in chunks if c.choices and c.choices[0].text]
    assert spent == [1, 2, 3, 4, 5, 6, 7]


async def test_a_stream_is_events_up_to_done(fleet):
    async with fleet.http.stream(
        "POST", "/v1/completions", json={**COMPLETION, "stream": True}
    ) as r:
        assert r.headers["content-type"].startswith("text/event-stream")
        assert r.headers["x-kvmesh-node"].startswith("node-")
        lines = [line async for line in r.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


async def test_the_second_answer_tells_of_the_cache(fleet, client):
    prompt = "y" * 100
    first = await client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    place = int(first.kvmesh["node"][-1])
    await eventually(lambda: fleet.quiet and fleet.app.view.nodes()[place].indexed_blocks >= 6)
    again = await client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens == 96
    assert again.kvmesh["cached_tokens"] == {"gpu": 96, "cpu": 0, "remote": 0}
    assert again.kvmesh["reason"] == "longest prefix: 96 of 100 tokens"
    assert again.kvmesh["node"] == first.kvmesh["node"]


async def test_a_prompt_may_be_ids_or_a_list_of_one(strict):
    for prompt in ([104, 105], ["hi"], [[104, 105]]):
        answer = await strict.completions.create(model="tiny", prompt=prompt, max_tokens=2)
        assert answer.choices[0].text == "hi"


@pytest.mark.parametrize("prompt", [["ab", "cd", "e"], [[97, 98], [99, 100], [101]]], ids=str)
async def test_several_prompts_are_numbered_prompt_by_prompt(fleet, strict, client, prompt):
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "n": 2, "seed": 3}
    answer = await strict.completions.create(**asked)
    expected = ["ab", "ba", "cd", "dc", "ee", "ee"]  # the stub's second sample starts one later
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 12)
    assert [each["seed"] for each in answer.kvmesh["prompts"]] == [3, 3, 3]
    texts, finishes, _ = await choices_of(await client.completions.create(**asked, stream=True))
    assert texts == dict(enumerate(expected))
    assert finishes == dict.fromkeys(range(6), "length")
    assert len(seen_by(fleet)) == 6


async def test_the_ids_of_several_prompts_belong_together(fleet):
    headers = {"x-request-id": "batch"}
    body = {"prompt": ["a", "b"], "max_tokens": 1}
    answer = await fleet.http.post("/v1/completions", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "batch"
    assert answer.json()["id"] == "cmpl-batch"
    assert [request.request_id for request in seen_by(fleet)] == ["batch-0", "batch-1"]


@pytest.mark.parametrize("stream", [False, True])
async def test_of_several_prompts_none_starts_when_one_is_wrong(fleet, stream):
    prompts = ["good", "good", "good", "good", "good", "x" * 500_000]  # known late to be too long
    body = {"prompt": prompts, "max_tokens": 1, "stream": stream}
    answer = await fleet.http.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prompt[5]")
    assert error["message"].startswith("prompt[5]:")
    assert seen_by(fleet) == []


async def test_a_failure_of_one_prompt_ends_the_others(fleet):
    for node in fleet.nodes:
        node.script.per_token = 0.01
    fleet.nodes[0].script.fail_after = 2
    prompts = [letter * 40 for letter in "abcdefgh"]
    body = {"prompt": prompts, "max_tokens": 500}
    answer = await fleet.http.post("/v1/completions", json=body)
    assert answer.status_code == 500
    await eventually(lambda: fleet.idle)


async def test_n_samples_stream_and_come_whole(strict, client):
    asked = {**COMPLETION, "max_tokens": 4, "n": 3}
    answer = await strict.completions.create(**asked)
    assert [choice.text for choice in answer.choices] == ["hell", "ello", "lloh"]
    assert answer.usage.completion_tokens == 12
    texts, finishes, _ = await choices_of(await client.completions.create(**asked, stream=True))
    assert texts == {0: "hell", 1: "ello", 2: "lloh"}
    assert finishes == dict.fromkeys(range(3), "length")


async def test_log_probabilities(strict, client):
    asked = {**COMPLETION, "max_tokens": 3, "logprobs": 2}
    (choice,) = (await strict.completions.create(**asked)).choices
    assert choice.logprobs.tokens == ["h", "e", "l"]
    assert choice.logprobs.token_logprobs == [-ord(c) / 256 for c in "hel"]
    assert choice.logprobs.text_offset == [0, 1, 2]
    assert choice.logprobs.top_logprobs[1] == {"e": -101 / 256, "f": -102 / 256}
    _, _, pieces = await choices_of(await client.completions.create(**asked, stream=True))
    assert [piece.tokens for piece in pieces[0]] == [["h"], ["e"], ["l"]]
    assert [piece.text_offset for piece in pieces[0]] == [[0], [1], [2]]
    assert pieces[0][1].top_logprobs == [choice.logprobs.top_logprobs[1]]


async def test_tokens_inside_a_character_stay_apart(strict):
    asked = {"model": "tiny", "prompt": [0xC3, 0xA9, 0x21], "max_tokens": 3, "logprobs": 0}
    (choice,) = (await strict.completions.create(**asked)).choices
    assert choice.logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert choice.logprobs.text_offset == [0, 0, 1]


async def test_tokens_as_ids(strict):
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    answer = await strict.completions.create(**COMPLETION, logprobs=1, extra_body=extra)
    assert answer.choices[0].logprobs.tokens[0] == "token_id:104"
    assert answer.choices[0].token_ids == [104, 101, 108, 108, 111, 104, 101]
    assert answer.choices[0].prompt_token_ids == [104, 101, 108, 108, 111]


@pytest.mark.parametrize("prompt", ["hello", [104, 101, 108, 108, 111]], ids=str)
async def test_echo(strict, client, prompt):
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "echo": True, "n": 2}
    answer = await strict.completions.create(**asked)
    assert [choice.text for choice in answer.choices] == ["hellohe", "helloel"]
    texts, _, _ = await choices_of(await client.completions.create(**asked, stream=True))
    assert texts == {0: "hellohe", 1: "helloel"}


async def test_echo_with_log_probabilities_has_the_prompts_too(client):
    asked = {**COMPLETION, "max_tokens": 1, "echo": True, "logprobs": 1}
    (choice,) = (await client.completions.create(**asked)).choices
    assert choice.logprobs.tokens == list("helloh")
    assert choice.logprobs.token_logprobs == [None, *(-ord(c) / 256 for c in "elloh")]
    assert choice.logprobs.top_logprobs[:2] == [None, {"e": -101 / 256}]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    texts, finishes, pieces = await choices_of(
        await client.completions.create(**asked, stream=True)
    )
    assert (texts, finishes) == ({0: "helloh"}, {0: "length"})
    assert [token for piece in pieces[0] for token in piece.tokens] == list("helloh")
    assert [at for piece in pieces[0] for at in piece.text_offset] == [0, 1, 2, 3, 4, 5]


async def test_an_echo_of_no_tokens_scores_the_prompt(strict, client):
    asked = {**COMPLETION, "max_tokens": 0, "echo": True}
    answer = await strict.completions.create(**asked, n=2)
    assert [(c.text, c.finish_reason) for c in answer.choices] == [("hello", "length")] * 2
    scored = await client.completions.create(**asked, logprobs=0)
    assert scored.choices[0].logprobs.token_logprobs[1:] == [-ord(c) / 256 for c in "ello"]
    assert scored.usage.completion_tokens == 0


async def test_prompt_log_probabilities_as_vllm_has_them(strict):
    answer = await strict.completions.create(**COMPLETION, extra_body={"prompt_logprobs": 1})
    first, second, *_ = answer.choices[0].prompt_logprobs
    assert first is None
    assert second == {"101": {"logprob": -101 / 256, "rank": 1, "decoded_token": "e"}}
    assert len(answer.choices[0].prompt_logprobs) == 5


async def test_vllms_extras_and_unknown_fields_are_taken(fleet, client):
    extra = {
        "top_k": -1, "min_p": 0.1, "ignore_eos": True, "min_tokens": 1, "stop_token_ids": [3],
        "priority": -2, "something_new": {"a": 1}, "repetition_penalty": None, "best_of": 2,
        "use_beam_search": False, "add_special_tokens": True, "suffix": "",
        "response_format": {"type": "text"},
    }  # fmt: skip
    asked = {"stop": "x", "seed": -1, "logit_bias": {"5": -1.5}, "presence_penalty": 0.5}
    await client.completions.create(**COMPLETION, **asked, extra_body=extra)
    (seen,) = seen_by(fleet)
    params = seen.sampling
    assert (params.top_k, params.ignore_eos, params.min_tokens) == (0, True, 1)
    assert seen.priority == 2  # vLLM runs the lower first, our nodes the larger
    assert (list(params.stop), list(params.stop_token_ids)) == (["x"], [3])
    assert params.seed == 2**64 - 1
    assert math.isclose(params.min_p, 0.1, rel_tol=1e-6)
    assert (dict(params.logit_bias), params.best_of) == ({5: -1.5}, 2)
    assert unpack_tokens(seen.token_ids) == list(b"hello")


async def test_the_default_length_gives_way_to_the_context(strict):
    for prompt, tokens in (("hello", 16), ("x" * (MAX_MODEL_LEN - 3), 3)):
        answer = await strict.completions.create(model="tiny", prompt=prompt)
        assert answer.usage.completion_tokens == tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_large_to_hold_is_refused(fleet, stream):
    prompt = "x" * 3000  # whose log-probabilities each choice would repeat
    body = {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 20, "stream": stream}
    answer = await fleet.http.post("/v1/completions", json={**body, "n": 40})
    assert '"param":"max_tokens"' in answer.text
    assert "log-probabilities" in answer.text
    assert (await fleet.http.post("/v1/completions", json={**body, "n": 1})).status_code == 200


async def test_a_long_answer_is_refused_whole_and_streamed(fleet):
    for node in fleet.nodes:
        node.script.padding = 1 << 20
    body = {"prompt": "x", "max_tokens": 17}
    answer = await fleet.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    streamed = await fleet.http.post("/v1/completions", json={**body, "stream": True})
    assert streamed.text.endswith("[DONE]\n\n")
