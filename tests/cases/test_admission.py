"""What the router lets in, and when: see the ids in the names."""

import asyncio
from collections import Counter
from itertools import cycle

import grpc
import pytest
from prometheus_client import CollectorRegistry

from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2_grpc
from kvmesh.v1.cache_node_pb2 import NodeLoad
from router.admission_metrics import AdmissionMetrics
from router.fair_queue import FairQueue, PriorityClass, Waiter
from router.request_size import RequestSize
from router.start_gate import StartGate
from tests.redis_fixture import redis_server  # noqa: F401
from tests.router.admission_fixture import tenants_file, waiting, who
from tests.router.asking import answer, error, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.process_fleet import router_processes, until
from tests.router.real_node import RealNode, save_model
from tests.router.stub_node import Script, StubNode
from tests.router.test_admission import FULL, eventually_waiting, start
from tests.router.test_watermark import Fleet

Code = grpc.StatusCode


class Nodes(Fleet):
    """The nodes of a registry, without any word of what changes."""

    @property
    def up(self):
        return self.nodes


async def test_r7_admission_opens_again_by_time_alone():
    nodes = Nodes("a")
    queue, metrics = FairQueue(10), AdmissionMetrics(CollectorRegistry())
    gate = StartGate(nodes, nodes.watermark, queue, metrics, asyncio.get_running_loop().time)
    size = RequestSize(16, 16, 1, 16)
    nodes.report(0, 95)
    work = asyncio.create_task(
        gate.start(Waiter("", 1.0, PriorityClass.NORMAL, 32, size, 0.0, float("inf")))
    )
    looking = asyncio.create_task(gate.run())
    await eventually(lambda: len(queue) == 1)
    # Below the high mark, not yet at the low one.
    nodes.nodes[0].load = NodeLoad(committed_blocks=85)
    for _ in range(3):
        gate.look()
        assert len(queue) == 1
    nodes.nodes[0].load = NodeLoad(committed_blocks=80)
    await asyncio.wait_for(work, 10)
    looking.cancel()


async def test_r7_overload_passes_and_all_that_waited_are_served():
    node = StubNode(num_blocks=16, script=Script(per_token=0.002))
    async with running_fleet(node) as fleet:
        frames = await asyncio.gather(*(answer(fleet, request("x" * 32, 32)) for _ in range(20)))
        assert all(each[-1].summary.usage.completion_tokens == 32 for each in frames)
        await eventually(lambda: fleet.idle)


@pytest.mark.parametrize("how", ["cancel", "connection lost", "http"])
async def test_r10_a_client_that_leaves_while_queued_frees_its_place(how):
    node = StubNode(num_blocks=8, script=FULL)
    async with running_fleet(node) as fleet:
        first = start(fleet, request("x" * 96, 16, request_id="first"))
        await eventually(lambda: node.running)
        if how == "http":
            body = {"prompt": "x" * 96, "max_tokens": 16}
            work = asyncio.create_task(fleet.http.post("/v1/completions", json=body))
        else:
            channel = grpc.aio.insecure_channel(fleet.target)
            stub = inference_pb2_grpc.InferenceStub(channel)
            work = asyncio.create_task(stub.Generate(request("x" * 96, 16)).read())
        await eventually_waiting(fleet, 1)
        if how == "connection lost":
            await channel.close()
        work.cancel()
        await eventually(lambda: fleet.app.admission.in_flight == 1, 1)
        assert await waiting(fleet) == 0
        assert len(node.requests) == 1
        first.cancel()
        await eventually(lambda: fleet.idle, 1)


async def test_a7_the_whole_input_counts_before_it_is_sent():
    """Four long prompts fill the node; the first step's share of a fifth would fit."""
    node = StubNode(num_blocks=64, script=FULL)
    async with running_fleet(node) as fleet:
        work = {name: start(fleet, request("x" * 224, 16, request_id=name)) for name in "abcde"}
        await eventually(lambda: len(node.requests) == 4)
        await eventually_waiting(fleet, 1)
        assert len(node.requests) == 4
        work[node.requests[0].request_id].cancel()
        await eventually(lambda: len(node.requests) == 5)
        for each in work.values():
            each.cancel()


async def test_r14_limits_hold_over_two_routers_and_the_node_is_not_overrun(redis_server, tmp_path):  # noqa: F811
    node = StubNode(num_blocks=16, script=FULL)
    both = {
        "tenants": tenants_file(tmp_path, acme={"concurrency": 3}, zeta={}),
        "redis_url": redis_server.url,
    }
    async with (
        running_fleet(node, **both) as one,
        running_fleet(addresses=(node.address,), up=0, **both) as two,
    ):
        await eventually(lambda: two.app.view.serving, 5)
        held = [start(each, request("hi", 16), metadata=who("acme")) for each in (one, two, one)]
        await eventually(lambda: len(node.running) == 3)
        for each in (one, two):
            refused = await error(each, request("hi", 16), metadata=who("acme"))
            assert refused.code == Code.RESOURCE_EXHAUSTED
            assert refused.message.startswith("concurrency: tenant acme is at its limit of 3")
        # The pool is one: what the first router has sent leaves no room for the second's.
        large = request("x" * 100, 28)
        first = start(one, large, metadata=who("zeta"))
        await eventually(lambda: two.app.view.nodes()[0].load.committed_blocks == 14)
        second = start(two, large, metadata=who("zeta"))
        await eventually_waiting(two, 1)
        first.cancel()
        await eventually(lambda: len(node.requests) == 5)
        for each in (*held, second):
            each.cancel()
        await eventually(lambda: one.idle and two.idle)


CAPACITY = 4  # requests that the node runs at once
REQUEST = {"max_tokens": 64, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def strict_node(tmp_path_factory):
    node = RealNode(
        save_model(tmp_path_factory.mktemp("model")),
        node_name="node-0",
        scheduling_policy="strict",
        num_blocks=CAPACITY * 6 + 2,
        max_num_seqs=16,
        max_model_len=256,
    )
    yield node
    node.close()


class Load:
    """Clients that send three requests for each one that is served, whatever their tenant."""

    def __init__(self, fleet, total):
        self.fleet = fleet
        self.left = total
        self.tenants = cycle(["greedy"] * 6 + ["modest"] + ["greedy"] * 7 + ["modest"])
        self.sent, self.outcomes = Counter(), Counter()
        self.served = 0
        self.waits = {"greedy": [], "modest": []}  # for how many others
        self.tasks = set()

    def arrive(self, count):
        for _ in range(min(count, self.left)):
            self.left -= 1
            task = asyncio.create_task(self.ask(next(self.tenants)))
            self.tasks.add(task)

    async def ask(self, tenant):
        number = sum(self.sent.values())
        self.sent[tenant] += 1
        prompt = pb.GenerateRequest(text=f"{number:04}" * 8, sampling=pb.SamplingParams(**REQUEST))
        before = self.served
        try:
            await answer(self.fleet, prompt, metadata=who(tenant))
        except grpc.aio.AioRpcError as refused:
            self.outcomes[tenant, refused.code().name] += 1
            return
        self.waits[tenant].append(self.served - before)
        self.served += 1
        self.outcomes[tenant, "OK"] += 1
        self.arrive(3)

    async def run(self):
        self.arrive(3 * CAPACITY)
        while running := {task for task in self.tasks if not task.done()}:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*self.tasks)


async def test_under_three_times_the_load_a_modest_tenant_keeps_its_goodput(strict_node, tmp_path):
    """Beside a greedy one that asks for seven times as much; what the node has let in is never
    preempted. Router and node are processes. Paced by what is served, not by a clock.
    """
    tenants = tenants_file(tmp_path, greedy={}, modest={})
    limits = {"tenants": tenants, "max_queue": 4 * CAPACITY}
    async with router_processes(1, [strict_node.address], **limits) as (router,):
        await until(lambda: router.up("node-0"))
        load = Load(router, 240)
        await load.run()
        node = (await router.nodes())["node-0"].load
        assert load.outcomes["modest", "OK"] >= 0.9 * load.sent["modest"]
        assert load.outcomes["greedy", "RESOURCE_EXHAUSTED"] > load.sent["greedy"] / 2
        assert load.outcomes["greedy", "OK"] > load.sent["greedy"] / 5  # the rest is its
        assert max(load.waits["modest"]) < sorted(load.waits["greedy"])[-10]
        assert {code for _, code in load.outcomes} == {"OK", "RESOURCE_EXHAUSTED"}
        assert node.growth_share == 1
        assert node.preemptions == 0
