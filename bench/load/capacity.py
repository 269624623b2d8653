"""What the load generator can take: its CPU time for a message and for a request."""

import asyncio
import time
from dataclasses import dataclass

from bench.figures import Spread
from bench.load.config import LoadConfig
from bench.load.plan import make_plan
from bench.load.run import run_load
from bench.load.stub_server import stub_server

STREAMS = 64  # at once
REQUESTS, SHORT, LONG = 256, 8, 72  # messages a request
PROMPT = 1024  # tokens


@dataclass(frozen=True, slots=True)
class Capacity:
    """Seconds of CPU time of the whole process, report apart."""

    transport: str
    message: Spread
    request: Spread  # beside its messages

    @property
    def messages(self) -> float:
        """A second that one core can take."""
        return 1 / self.message.least

    def as_json(self) -> dict[str, object]:
        return {
            "transport": self.transport,
            "message_seconds": self.message.as_json(),
            "request_seconds": self.request.as_json(),
        }


def measure_capacity(rounds: int) -> list[Capacity]:
    """Both transports against a server in a process of its own."""
    import uvloop

    with (
        stub_server() as (grpc_target, url),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return [
            runner.run(_measure(name, target, rounds))
            for name, target in (("gRPC", grpc_target), ("HTTP", url))
        ]


async def _measure(transport: str, target: str, rounds: int) -> Capacity:
    await _cpu(target, SHORT)
    messages, requests = [], []
    for _ in range(rounds):
        short, long = await _cpu(target, SHORT), await _cpu(target, LONG)
        message = (long - short) / (REQUESTS * (LONG - SHORT))
        messages.append(message)
        requests.append(short / REQUESTS - SHORT * message)
    return Capacity(transport, Spread.of(messages), Spread.of(requests))


async def _cpu(target: str, output: int) -> float:
    """CPU seconds of this process for a load of answers with `output` messages."""
    config = LoadConfig(
        target=target,
        workload="random",
        arrivals="closed",
        concurrency=STREAMS,
        requests=REQUESTS,
        prefix_tokens=PROMPT - 32,
        output_tokens=output,
        model="stub",
    )
    plan = make_plan(config)
    before = time.process_time()
    run = await run_load(config, plan, target, None, lambda _generator, _vitals: None)
    cpu = time.process_time() - before
    assert all(each.ok for each in run.generator.outcomes)
    return cpu
