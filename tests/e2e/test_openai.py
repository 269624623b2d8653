"""OpenAI's client and a real model: what the numbers in its answers mean."""

import math

import httpx
import openai
import pytest

pytestmark = pytest.mark.timeout(300)

MODEL = "smollm2-135m-instruct"
CAPITAL = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0}
NEAR = 0.15  # of log-probabilities in bfloat16, from another batch


@pytest.fixture
def client(fleet):
    with openai.OpenAI(base_url=f"{fleet.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client, **changes):
    return client.completions.create(**{**CAPITAL, "max_tokens": 6, **changes})


def near(one, other):
    return all(math.isclose(a, b, abs_tol=NEAR) for a, b in zip(one, other, strict=True))


def test_log_probabilities_are_of_the_tokens_in_the_text(client):
    (choice,) = complete(client, logprobs=3).choices
    said = choice.logprobs
    assert "Paris" in choice.text
    assert "".join(said.tokens) == choice.text
    for token, at in zip(said.tokens, said.text_offset, strict=True):
        assert choice.text.startswith(token, at)
    for token, logprob, top in zip(
        said.tokens, said.token_logprobs, said.top_logprobs, strict=True
    ):
        assert max(top, key=top.get) == token  # greedy
        assert top[token] == logprob
        assert sum(map(math.exp, top.values())) <= 1


def test_a_stream_has_the_log_probabilities_of_the_whole(client):
    whole = complete(client, logprobs=1).choices[0]
    chunks = [c.choices[0] for c in complete(client, logprobs=1, stream=True) if c.choices]
    pieces = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for piece in pieces for token in piece.tokens] == whole.logprobs.tokens
    assert [at for piece in pieces for at in piece.text_offset] == whole.logprobs.text_offset
    streamed = [logprob for piece in pieces for logprob in piece.token_logprobs]
    assert near(streamed, whole.logprobs.token_logprobs)


def test_an_echo_scores_what_was_generated_as_the_generation_did(client):
    generated = complete(client, logprobs=0).choices[0]
    text = CAPITAL["prompt"] + generated.text
    scored = complete(client, prompt=text, max_tokens=0, echo=True, logprobs=0).choices[0]
    assert (scored.text, scored.finish_reason) == (text, "length")
    assert scored.logprobs.token_logprobs[0] is None
    of_output = scored.logprobs.token_logprobs[-len(generated.logprobs.tokens) :]
    assert near(of_output, generated.logprobs.token_logprobs)
    assert [text[at:].startswith(token) for token, at in zip(
        scored.logprobs.tokens, scored.logprobs.text_offset, strict=True
    )] == [True] * len(scored.logprobs.tokens)  # fmt: skip


def test_several_prompts_are_answered_as_each_alone(client):
    prompts = [CAPITAL["prompt"], "One, two, three,", "The opposite of hot is"]
    together = complete(client, prompt=prompts)
    alone = [complete(client, prompt=prompt) for prompt in prompts]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [c.text.split()[0] for c in together.choices] == [
        each.choices[0].text.split()[0] for each in alone
    ]
    assert together.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone)


def test_samples_differ_and_a_seed_brings_them_back(client):
    # One token is always computed: in bfloat16 a cached prefix may change a sample.
    asked = {"prompt": "Once", "n": 4, "temperature": 1.0, "seed": 11, "max_tokens": 12}
    first, again = (complete(client, **asked) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) > 1
    assert [choice.text for choice in again.choices] == texts
    best = complete(client, **{**asked, "n": 2, "best_of": 4})
    assert len(best.choices) == 2
    assert {choice.text for choice in best.choices} <= set(texts)


def test_a_bias_forces_a_token_and_forbids_another(client):
    tokens = httpx.post(
        str(client.base_url).replace("/v1/", "/tokenize"),
        json={"prompt": " Paris", "add_special_tokens": False},
    ).json()["tokens"]
    paris = str(tokens[0])
    assert complete(client, logit_bias={paris: 100}, max_tokens=2).choices[0].text == " Paris Paris"
    assert "Paris" not in complete(client, logit_bias={paris: -100}, max_tokens=1).choices[0].text


def test_a_stop_string_ends_the_text_before_it_and_is_named(client):
    (choice,) = complete(client, stop=["Paris", "unseen"], max_tokens=20, logprobs=0).choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Paris")
    assert "Paris" not in choice.text


def test_a_chats_log_probabilities_are_of_bytes_in_the_text(client):
    messages = [{"role": "user", "content": "Say the word caf\u00e9 \u2615."}]
    (choice,) = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    ).choices
    said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    text = said.decode(errors="replace").replace("<|im_end|>", "")
    assert text == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_a_stream_tells_of_the_cache_in_its_usage(client):
    prompt = "The keeper lights the lamp at sunset and writes the weather into the log. " * 6
    for _ in range(2):
        stream = complete(
            client, prompt=prompt, stream=True, stream_options={"include_usage": True}
        )
        *_, last = stream
    assert last.usage.prompt_tokens_details.cached_tokens > last.usage.prompt_tokens / 2


def test_text_and_tokens_there_and_back(fleet):
    text = "na\u00efve caf\u00e9 \u2615 <|im_start|>"
    tokens = httpx.post(f"{fleet.http_url}/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    back = httpx.post(f"{fleet.http_url}/detokenize", json={"tokens": tokens["tokens"]})
    assert back.json() == {"prompt": text}
