"""One load from its first request to its last, or until it is stopped."""

import asyncio
import resource
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.load.config import LoadConfig
from bench.load.fleet_watch import FleetWatch
from bench.load.generator import Generator
from bench.load.plan import Plan
from bench.load.sender import Sender
from bench.load.vitals import Vitals

Show = Callable[[Generator, Vitals], None]
SHOWS_A_SECOND = 4


@dataclass(slots=True, kw_only=True)
class Run:
    """What there is to report."""

    config: LoadConfig
    started: datetime
    generator: Generator
    vitals: Vitals
    fleet: FleetWatch
    seconds: float = 0.0
    cpu: float = 0.0  # share of a core, of this process
    interrupted: bool = False


def sender_of(config: LoadConfig, target: str) -> Sender:
    """Raises ValueError for a target or certificates that are wrong."""
    if config.over_http:
        from bench.load.http_sender import HttpSender

        return HttpSender(target, config)
    from bench.load.grpc_sender import GrpcSender

    return GrpcSender(target, config)


async def run_load(
    config: LoadConfig, plan: Plan, target: str, fleet: str | None, show: Show
) -> Run:
    """Runs `plan` against `target`; `fleet` is the gRPC API that tells of the nodes, if there is
    one. A cancelled run returns too, as interrupted. Raises ConnectionError when nothing answers.
    """
    _allow_many_sockets()
    sender = sender_of(config, target)
    await sender.open()
    generator, vitals = Generator(plan, sender, config), Vitals()
    watch = FleetWatch(fleet, config)
    run = Run(
        config=config,
        started=datetime.now(UTC),
        generator=generator,
        vitals=vitals,
        fleet=watch,
    )
    load = asyncio.create_task(generator.run())
    beside = [
        asyncio.create_task(each)
        for each in (vitals.watch(), watch.watch(generator.now), _show(show, generator, vitals))
    ]
    try:
        await asyncio.wait((load,))
    except asyncio.CancelledError:
        run.interrupted = True
        await _stop(load)
    run.seconds, run.cpu = generator.now(), vitals.cpu
    for task in beside:
        await _stop(task)
    show(generator, vitals)
    await sender.close()
    if not load.cancelled():
        load.result()
    return run


def run_until_interrupted(work: Coroutine[None, None, Run]) -> Run:
    """On an event loop of its own; the first SIGINT or SIGTERM cancels `work`, the second one ends
    the process.
    """
    import signal

    import uvloop

    async def main() -> Run:
        task, loop = asyncio.create_task(work), asyncio.get_running_loop()

        def interrupt() -> None:
            task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        return await task

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def _show(show: Show, generator: Generator, vitals: Vitals) -> None:
    while True:
        show(generator, vitals)
        await asyncio.sleep(1 / SHOWS_A_SECOND)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _allow_many_sockets() -> None:
    """As many as the system lets a process have: a request over HTTP needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
