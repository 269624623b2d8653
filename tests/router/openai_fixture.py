"""One router over two stub nodes for a module's tests of the HTTP API, and OpenAI's own client."""

import httpx
import openai
import pytest_asyncio

from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 7}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running():
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def fleet(running):
    """As new, its cache apart; idle again afterwards."""
    for node in running.nodes:
        node.script = Script()
        for seen in (node.requests, node.metadata, node.time_remaining):
            seen.clear()
    yield running
    await eventually(lambda: running.idle)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running):
    """OpenAI's, as users have it: takes a null, as streamed completions and echoed prompts have it
    for OpenAI too.
    """
    async with openai_client(running) as each:
        yield each


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(running):
    """Refuses every answer that is not exactly as OpenAI says."""
    async with openai_client(running, _strict_response_validation=True) as each:
        yield each


def openai_client(fleet, **options):
    return openai.AsyncOpenAI(
        base_url=f"{fleet.http_url}/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx.AsyncClient(trust_env=False),
        **options,
    )


def seen_by(fleet):
    """The requests that reached nodes, in the order of their ids."""
    found = [request for node in fleet.nodes for request in node.requests]
    return sorted(found, key=lambda request: request.request_id)
