"""vLLM's /tokenize and /detokenize."""

import pytest

from kvmesh.packing import unpack_tokens
from tests.router.openai_fixture import CHAT, fleet, running, seen_by
from tests.router.tiny_model import END, MAX_MODEL_LEN, START

__all__ = ["fleet", "running"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_text_there_and_back(fleet):
    body = {"model": "tiny", "prompt": "h\u00e9 <|im_end|>"}
    answer = await fleet.http.post("/tokenize", json=body)
    assert answer.json() == {
        "count": 5,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [ord("h"), 0xC3, 0xA9, ord(" "), END],
        "token_strs": None,
    }
    back = await fleet.http.post("/detokenize", json={"tokens": answer.json()["tokens"]})
    assert back.json() == {"prompt": "h\u00e9 <|im_end|>"}


async def test_tokens_as_the_vocabulary_spells_them(fleet):
    body = {"prompt": "a b", "return_token_strs": True}
    answer = await fleet.http.post("/tokenize", json=body)
    assert answer.json()["token_strs"] == ["a", "\u0120", "b"]


async def test_r11_messages_become_the_tokens_that_the_model_would_see(fleet):
    body = {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    tokens = (await fleet.http.post("/tokenize", json=body)).json()["tokens"]
    assert tokens[0] == START
    await fleet.http.post("/v1/chat/completions", json={**body, "max_tokens": 1})
    (request,) = seen_by(fleet)
    assert unpack_tokens(request.token_ids) == tokens


async def test_a_long_text_is_no_error(fleet):
    answer = await fleet.http.post("/tokenize", json={"prompt": "x" * 100_000})
    assert answer.json()["count"] == 100_000


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "b"}, "model"),
        ("/tokenize", {**CHAT, "prompt": "a"}, "messages"),
        ("/tokenize", {"messages": [{"role": "alien", "content": ""}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
    ],
)
async def test_what_is_wrong_is_named(fleet, path, body, field):
    answer = await fleet.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
