"""Router cases on real engines: two nodes with a model of a few kilobytes, a router and a Redis,
each a process of its own.
"""

import asyncio
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import grpc
import pytest
import pytest_asyncio

from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2, cache_node_pb2_grpc, fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.redis_fixture import RedisServer, require_redis
from tests.router.admission_fixture import metric
from tests.router.node_process import ROOT
from tests.router.process_fleet import checked, router_processes, until
from tests.router.real_node import RealNode, save_model
from tests.router.tiny_model import MODEL

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

NAMES = ("node-0", "node-1")
BLOCKS = 430  # of each node
NODE = {
    "num_blocks": BLOCKS,
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "scheduling_policy": "strict",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory):
    require_redis()
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    directory = tmp_path_factory.mktemp("models") / MODEL
    directory.mkdir()
    model = save_model(directory, max_position_embeddings=2048)

    def node(name):
        return RealNode(model, node_name=name, redis=redis.url, **NODE)

    nodes = await asyncio.gather(*(asyncio.to_thread(node, name) for name in NAMES))
    addresses = [node.address for node in nodes]
    flags = {"redis": redis.url, "slow_start": 0.1, "node_silence": 30.0, "stream_silence": 60.0}
    async with router_processes(1, addresses, **flags) as (router,):
        yield SimpleNamespace(nodes=nodes, router=router)
    for node in nodes:
        node.close()
    redis.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(world):
    await until(lambda: world.router.up(*NAMES))
    yield world
    for node in world.nodes:
        node.signal(signal.SIGCONT)
    await until(lambda: idle(world))


async def idle(fleet):
    """Nothing is held, on any side, and nobody has lost a block."""
    reports = [await checked(node.address) for node in fleet.nodes]
    assert not any(report.violations for report in reports)
    held = sum(report.requests + report.held_blocks for report in reports)
    return held == 0 == await fleet.router.in_flight()


def text(prompt, max_tokens, **sampling):
    params = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0, **sampling)
    return pb.GenerateRequest(text=prompt, sampling=params)


async def ask(fleet, *args, **sampling):
    call = fleet.router.inference.Generate(text(*args, **sampling), timeout=60)
    return [frame async for frame in call]


def completed(frames):
    return frames[-1].summary.usage.completion_tokens


async def queued(fleet, count):
    return await metric(fleet.router, "queue_depth") == count


async def running(fleet, count):
    nodes = (await fleet.router.nodes()).values()
    return sum(node.load.running + node.load.waiting for node in nodes) == count


async def test_a1_samples_that_no_pool_can_hold_are_refused_and_the_next_request_runs(fleet):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(fleet, "x" * 40, 1000, n=8)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert completed(await ask(fleet, "x" * 40, 10, n=8)) == 80


async def test_a7_the_whole_input_counts_before_it_is_sent(fleet):
    """Eight long prompts fill both nodes; the first chunk of a ninth would fit."""
    prompts = [f"a7 {number} " * 300 for number in range(9)]
    work = [asyncio.create_task(ask(fleet, each, 160)) for each in prompts[:8]]
    await until(lambda: running(fleet, 8))
    for node in fleet.nodes:  # so that none of them ends
        node.signal(signal.SIGSTOP)
    work.append(asyncio.create_task(ask(fleet, prompts[8], 160)))
    await until(lambda: queued(fleet, 1))
    loads = [node.load for node in (await fleet.router.nodes()).values()]
    assert [load.running + load.waiting for load in loads] == [4, 4]
    for node in fleet.nodes:
        node.signal(signal.SIGCONT)
    assert [completed(frames) for frames in await asyncio.gather(*work)] == [160] * 9
    assert not await metric(fleet.router, "retries_total")  # no node had to refuse one


async def test_a15_one_huge_request_at_the_head_is_passed_only_so_often(fleet):
    """Small ones of many lengths that come without end: no node is ever free enough for it."""
    ended = asyncio.Event()
    passed = 0

    async def small(number):
        nonlocal passed
        while not ended.is_set():
            await ask(fleet, f"small {number} " * 8, 12 + 7 * number)
            passed += 1

    others = [asyncio.create_task(small(number)) for number in range(8)]
    await until(lambda: running_any(fleet))
    call = fleet.router.inference.Generate(text("huge", 1700, n=4), timeout=60)
    passed = 0
    await call.read()
    ended.set()
    call.cancel()
    await asyncio.gather(*others)
    assert 1 <= passed <= 64 + 2 * len(others)


async def running_any(fleet):
    return not await running(fleet, 0)


async def direct(node, prompt, max_tokens=1):
    """Past the router."""
    sampling = pb.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    async with grpc.aio.insecure_channel(node.address) as channel:
        call = cache_node_pb2_grpc.CacheNodeStub(channel).Generate(
            cache_node_pb2.NodeGenerateRequest(
                request_id=uuid.uuid4().hex,
                attempt=1,
                token_ids=pack_tokens(list(prompt.encode())),
                sampling=sampling,
            )
        )
        async for _ in call:
            pass


async def cached(fleet, prompt):
    """By node, as the router believes."""
    explained = fleet_pb2.ExplainRequest(request=text(prompt, 1))
    route = (await fleet.router.fleet.Explain(explained)).route
    return {each.node: each.cached.gpu for each in route.candidates}


async def test_r5_what_one_node_evicts_another_keeps(fleet):
    prompt = "r5 shared prefix " * 60 + "!"
    whole = (len(prompt) - 1) // 16 * 16
    await asyncio.gather(*(direct(node, prompt) for node in fleet.nodes))

    async def holders():
        return [name for name, tokens in (await cached(fleet, prompt)).items() if tokens == whole]

    async def held_by_all():
        return len(await holders()) == 2

    await until(held_by_all)
    flood = [f"r5 flood {number} " * 160 for number in range(4)]
    await asyncio.gather(*(direct(fleet.nodes[1], each[:2000]) for each in flood))

    async def held_by_one():
        return await holders() == ["node-0"]

    await until(held_by_one)
    again = await ask(fleet, prompt, 1)
    assert again[-1].summary.node == "node-0"
    assert again[-1].summary.usage.cached.gpu == whole


async def test_a_pinned_prefix_outlives_a_flood_and_a_cleared_cache_is_empty(fleet):
    """The operator's side of R5."""
    prompt = "pinned " * 64
    blocks = len(prompt) // 16
    pinned = await fleet.router.fleet.PinPrefix(
        fleet_pb2.PinPrefixRequest(prefix=text(prompt, 1), nodes=2)
    )
    assert (sorted(pinned.nodes), pinned.blocks) == (list(NAMES), 2 * blocks)
    flood = [f"flood {number} " * 200 for number in range(4)]
    for node in fleet.nodes:
        await asyncio.gather(*(direct(node, each[:2000]) for each in flood))
        assert (await checked(node.address)).held_blocks == blocks
    usage = (await ask(fleet, prompt, 1))[-1].summary.usage
    assert usage.cached.gpu == len(prompt) - 1
    await fleet.router.fleet.UnpinPrefix(fleet_pb2.UnpinPrefixRequest(pin_id=pinned.pin_id))
    cleared = await fleet.router.fleet.ClearCache(fleet_pb2.ClearCacheRequest())
    assert cleared.cleared_blocks > BLOCKS
    assert (await ask(fleet, prompt, 1))[-1].summary.usage.cached.gpu == 0


async def test_r7_overload_passes_and_the_next_request_starts_at_once(fleet):
    prompts = [f"r7 {number}" for number in range(48)]
    work = [asyncio.create_task(ask(fleet, each, 120)) for each in prompts]
    await until(lambda: some_queued(fleet))
    assert {completed(frames) for frames in await asyncio.gather(*work)} == {120}
    assert await queued(fleet, 0)
    assert completed(await ask(fleet, "after", 3)) == 3


async def some_queued(fleet):
    return await metric(fleet.router, "queue_depth") > 5


CLIENT = """
import sys
import grpc
from kvmesh.v1 import generate_pb2 as pb, inference_pb2_grpc
sampling = pb.SamplingParams(max_tokens=1900, ignore_eos=True, n=2)
with grpc.insecure_channel(sys.argv[1]) as channel:
    for frame in inference_pb2_grpc.InferenceStub(channel).Generate(
        pb.GenerateRequest(text="leave", sampling=sampling)
    ):
        print("frame", flush=True)
"""


def client(target):
    """A process that asks."""
    command = [sys.executable, "-c", CLIENT, target]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


async def test_r10_a_client_killed_while_decoding_frees_every_block(fleet):
    with client(fleet.router.target) as process:
        await asyncio.to_thread(process.stdout.readline)
        assert await fleet.router.in_flight()
        process.kill()
        await until(lambda: idle(fleet), 1)


async def test_r11_chat_and_its_own_text_have_the_same_keys(fleet):
    body = {"messages": [{"role": "user", "content": "r11 " * 20}], "max_tokens": 1}
    answer = await fleet.router.http.post("/v1/chat/completions", json=body)
    node = answer.headers["x-kvmesh-node"]
    templated = f"<|im_start|>user\n{'r11 ' * 20}<|im_end|>\n<|im_start|>assistant\n"
    count = answer.json()["usage"]["prompt_tokens"]
    whole = (count - 1) // 16 * 16

    async def known():
        return (await cached(fleet, templated))[node] == whole

    await until(known)
    frames = await ask(fleet, templated, 1)
    usage = frames[-1].summary.usage
    assert (usage.prompt_tokens, usage.cached.gpu) == (count, whole)
