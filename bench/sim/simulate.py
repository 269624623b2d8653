"""One policy on one plan, from the first request to the last."""

import asyncio
import gc
from contextlib import suppress
from dataclasses import dataclass

from bench.load.config import LoadConfig
from bench.load.generator import Generator
from bench.load.outcome import Outcome
from bench.load.plan import Plan
from bench.sim.config import Failure
from bench.sim.node import NodeSpec, SimNode
from bench.sim.prompts import Prompts
from bench.sim.router import SimRouter
from bench.sim.sender import SimSender
from bench.sim.step_model import Profile
from bench.sim.virtual_loop import VirtualLoop
from bench.sim.watch import Watch
from router.config import RouterConfig

IN_FLIGHT = 64
"""Requests a node that a simulated router may have in flight, where the product's default is less:
a large fleet has several routers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFleet:
    """What is simulated beside the requests. `failures` in the order of time."""

    nodes: int
    spec: NodeSpec
    profile: Profile
    policy: str
    seed: int
    index_delay: float = 0.0
    failures: tuple[Failure, ...] = ()
    max_queue: int = 512
    queue_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of the requests. `computed`: prompt tokens by node, those of retries too."""

    policy: str
    outcomes: list[Outcome]
    seconds: float
    computed: list[int]
    preemptions: int


def simulate(plan: Plan, load: LoadConfig, fleet: SimFleet) -> Simulated:
    """The same for the same arguments, whatever the machine. Raises ValueError for a request that
    fits no node.
    """
    size = fleet.spec.block_size
    longest = max(-(-(turn.prompt_tokens + turn.output) // size) for turn in plan.turns)
    if longest > fleet.spec.num_blocks:
        raise ValueError(
            f"--blocks must be at least {longest}, which a request of the trace takes, "
            f"is {fleet.spec.num_blocks}"
        )
    loop = VirtualLoop()
    collects = gc.isenabled()
    gc.disable()  # millions of blocks to look through again and again; SimCall leaves no cycles
    try:
        return loop.run_until_complete(_simulate(plan, load, fleet))
    finally:
        loop.close()
        if collects:
            gc.enable()


async def _simulate(plan: Plan, load: LoadConfig, fleet: SimFleet) -> Simulated:
    config = RouterConfig(
        nodes=("simulated:1",),
        policy=fleet.policy,
        max_in_flight=max(
            RouterConfig(nodes=("simulated:1",)).max_in_flight, IN_FLIGHT * fleet.nodes
        ),
        max_queue=fleet.max_queue,
        queue_timeout=fleet.queue_timeout,
    )
    router = SimRouter(config, fleet.spec.block_size, fleet.seed, fleet.index_delay)
    nodes = [SimNode(f"node-{i}", fleet.spec, fleet.profile.model) for i in range(fleet.nodes)]
    watches = router.add_nodes(nodes)
    _plan_failures(fleet.failures, watches)
    loop = asyncio.get_running_loop()
    sender = SimSender(router, Prompts(fleet.spec.block_size), fleet.profile.path)
    generator = Generator(plan, sender, load, loop.time)
    beside = asyncio.create_task(router.run())
    await generator.run()
    seconds = generator.now()
    beside.cancel()
    with suppress(asyncio.CancelledError):
        await beside
    _check(router, nodes)
    return Simulated(
        fleet.policy,
        sorted(generator.outcomes, key=lambda each: each.turn.number),
        seconds,
        [node.computed_tokens for node in nodes],
        sum(node.preemptions + node.scheduler.counters.preemptions for node in nodes),
    )


def _plan_failures(failures: tuple[Failure, ...], watches: list[Watch]) -> None:
    by_name = {watch.node.name: watch for watch in watches}
    for each in failures:
        asyncio.get_running_loop().call_at(each.at, by_name[each.node].fail, each.seconds)


def _check(router: SimRouter, nodes: list[SimNode]) -> None:
    """Nothing is left of anybody."""
    router.ledger.check_integrity()
    assert router.ledger.idle
    for node in nodes:
        assert not node.scheduler.has_work
        assert not node.scheduler.memory.pool.num_held
