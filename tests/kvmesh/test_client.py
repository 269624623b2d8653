"""The public client against a router on real sockets."""

import asyncio

import pytest

from kvmesh.client import Client, RequestError, make_request
from kvmesh.errors import Code
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0")) as running:
        yield running


async def use(fleet, work):
    """Runs blocking `work(client)` off the router's event loop."""

    def run():
        with Client(fleet.target, timeout=20) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_events_as_they_come(fleet):
    events = await use(fleet, lambda client: list(client.generate("abc", max_tokens=4)))
    assert "".join(event.text for event in events) == "abca"
    assert [event.token_ids for event in events] == [[97], [98], [99], [97]]
    assert [event.finish_reason for event in events] == [None, None, None, "length"]


async def test_the_whole_answer(fleet):
    def work(client):
        generation = client.generate("abc", max_tokens=4, seed=9, explain=True)
        assert next(iter(generation)).text == "a"
        return generation.result()

    done = await use(fleet, work)
    assert (done.text, done.token_ids) == ("abca", [97, 98, 99, 97])
    assert done.finish_reason == "length"
    assert (done.route.node, done.route.seed) == ("node-0", 9)
    assert len(done.route.candidates) == 1
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 4)
    assert 0 < done.ttft < 5


async def test_chat_and_ids(fleet):
    messages = [{"role": "user", "content": "hi", "name": "x"}]
    done = await use(fleet, lambda c: c.generate(messages=messages, max_tokens=1).result())
    assert done.usage.prompt_tokens == 21
    done = await use(fleet, lambda c: c.generate(token_ids=[104, 105], max_tokens=2).result())
    assert done.text == "hi"


async def test_tokens_there_and_back(fleet):
    ids = await use(fleet, lambda client: client.tokenize("hé"))
    assert ids == list("hé".encode())
    assert await use(fleet, lambda client: client.detokenize(ids)) == "hé"
    chat = [{"role": "user", "content": "hi"}]
    assert (await use(fleet, lambda client: client.tokenize(messages=chat)))[0] == 256


async def test_nodes_and_explain(fleet):
    nodes = await use(fleet, lambda client: client.list_nodes())
    assert [node.name for node in nodes] == ["node-0"]
    report = await use(fleet, lambda client: client.explain("abc", max_tokens=3))
    assert (report.node, len(report.candidates)) == ("node-0", 1)
    assert not fleet.nodes[0].requests


async def test_errors_have_code_and_field(fleet):
    with pytest.raises(RequestError) as caught:
        await use(fleet, lambda client: client.generate("a", temperature=-1).result())
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "temperature")
    with pytest.raises(RequestError) as caught:
        await use(fleet, lambda client: client.explain("a", model="other"))
    assert caught.value.field == "model"
    fleet.nodes[0].script = Script(full=True)
    with pytest.raises(RequestError) as caught:
        await use(fleet, lambda client: client.generate("a").result())
    assert (caught.value.code, caught.value.retry_after) == (Code.RESOURCE_EXHAUSTED, 0.25)


async def test_leaving_early_ends_the_work(fleet):
    fleet.nodes[0].script = Script(per_token=0.02)

    def work(client):
        with client.generate("abc", max_tokens=1000) as generation:
            next(iter(generation))

    await use(fleet, work)
    await eventually(lambda: fleet.idle, 1)


def test_a_request_is_checked_before_it_is_sent():
    with pytest.raises(RequestError, match="exactly one"):
        make_request("a", token_ids=[1])
    with pytest.raises(RequestError, match="exactly one"):
        make_request()
    with pytest.raises(TypeError, match="max_token"):
        make_request("a", max_token=5)
    with pytest.raises(RequestError, match="sampling"):
        make_request("a", max_tokens=-1)
    for wrong in ({"prompt": "\udcff"}, {"messages": [{"role": "user", "content": "\udcff"}]}):
        with pytest.raises(RequestError, match="prompt: must be text"):
            make_request(**wrong)
    assert list(make_request("a", stop="x").sampling.stop) == ["x"]


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 1e300])
def test_what_is_no_time_is_no_deadline(timeout):
    client = Client("127.0.0.1:1", direct=True)
    with client, pytest.raises(RequestError, match="timeout: must be at most"):
        client.generate("abc", timeout=timeout)
    with pytest.raises(RequestError, match="timeout: must be at most"):
        Client("127.0.0.1:1", timeout=timeout)


@pytest.mark.parametrize("ttl", [float("nan"), float("inf"), 1e30, -1.0])
async def test_a_pin_for_no_time_is_refused(fleet, ttl):
    prefix = make_request("a" * 64)
    with pytest.raises(RequestError) as caught:
        await use(fleet, lambda client: client.pin_prefix(prefix, ttl=ttl))
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "ttl")


@pytest.mark.parametrize("key", ["sécret", "two\nlines", "\udc80"])
def test_a_key_that_cannot_be_sent_is_refused(key):
    with pytest.raises(ValueError, match="api_key: must have"):
        Client("127.0.0.1:1", api_key=key)
