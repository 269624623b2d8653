"""Clients that are not ours, against the real fleet with the real model."""

import asyncio
import subprocess
import sys
import time

import openai
import pytest

from kvmesh.client import Client
from kvmesh.v1.fleet_pb2 import INDEX_MODE_EXACT as EXACT
from tests.e2e.serving import Serving, poll
from tests.redis_fixture import redis_server
from tests.router.test_foreign_client import make_stubs

__all__ = ["redis_server"]

pytestmark = pytest.mark.timeout(300)

MODEL = "smollm2-135m-instruct"
RULES = "You are a lighthouse keeper. You write the weather into the blue log every evening. " * 8
FOREIGN = """
import sys
import grpc
from acme.llm.v1 import generate_pb2, inference_pb2_grpc

chat = generate_pb2.Chat(messages=[generate_pb2.ChatMessage(role="user", content="Say hello.")])
sampling = generate_pb2.SamplingParams(max_tokens=6, temperature=0, n=2, logprobs=2)
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = inference_pb2_grpc.InferenceStub(channel)
    frames = list(stub.Generate(generate_pb2.GenerateRequest(chat=chat, sampling=sampling)))
samples = {}
for frame in frames:
    for delta in frame.deltas:
        samples.setdefault(delta.index, []).extend(delta.logprobs)
print(sorted(samples), [len(entries) for entries in samples.values()])
print(frames[0].route.node != "", frames[-1].summary.usage.completion_tokens)
"""


@pytest.fixture
def client(fleet):
    with openai.OpenAI(base_url=f"{fleet.http_url}/v1", api_key="none") as client:
        yield client


def ask(client, question, **options):
    messages = [{"role": "system", "content": f"{time.time_ns()} {RULES}"}]
    messages.append({"role": "user", "content": question})
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def test_the_openai_client_chats_and_sees_the_cache_at_work(client):
    messages = [{"role": "system", "content": f"{time.time_ns()} {RULES}"}]
    answers = []
    for question in ("What is the weather?", "What colour is the log?"):
        turn = [*messages, {"role": "user", "content": question}]
        answers.append(
            client.chat.completions.create(model=MODEL, messages=turn, max_tokens=8, temperature=0)
        )
    cold, warm = (answer.usage.prompt_tokens_details.cached_tokens for answer in answers)
    assert cold < 16
    assert warm > answers[1].usage.prompt_tokens / 2
    assert answers[0].choices[0].finish_reason in ("stop", "length")
    assert answers[1].model_extra["kvmesh"]["node"] == answers[0].model_extra["kvmesh"]["node"]


def test_the_openai_client_streams(client):
    stream = ask(
        client, "Count.", max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert chunks[-1].usage.completion_tokens <= 12
    assert len([chunk for chunk in chunks if chunk.choices]) > 2


def test_the_openai_client_completes_and_lists_models(client):
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=6, temperature=0
    )
    assert "Paris" in answer.choices[0].text
    assert [model.id for model in client.models.list()] == [MODEL]


def test_the_openai_client_is_told_which_field_is_wrong(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "x", max_tokens=-1)
    assert caught.value.param == "max_tokens"


async def test_a_client_made_from_the_protos_alone(fleet, tmp_path):
    await asyncio.to_thread(make_stubs, tmp_path)
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FOREIGN, fleet.grpc_target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.splitlines() == ["[0, 1] [6, 6]", "True 12"], result.stderr


def test_a_fleet_with_its_index_in_redis_finds_the_prefix_too(redis_server):
    with Serving("--redis", redis_server.url) as fleet:
        with openai.OpenAI(base_url=f"{fleet.http_url}/v1", api_key="none") as client:
            prompt = f"{time.time_ns()} {RULES}"

            def cached() -> int:
                answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
                return answer.usage.prompt_tokens_details.cached_tokens

            assert cached() < 16
            assert poll(lambda: cached() > 64, 10)
        with Client(fleet.grpc_target) as ours:
            assert poll(lambda: {n.index_mode for n in ours.list_nodes()} == {EXACT}, 10)
