"""The router process: `run(config)` serves until SIGTERM or SIGINT."""

import asyncio
import signal
from collections.abc import Callable

import structlog
import uvloop

from kvmesh.addresses import host_and_port
from kvmesh.process_memory import collect_rarely, settle
from router.app import RouterApp
from router.config import RouterConfig

log = structlog.get_logger("router")


async def serve(config: RouterConfig, on_ready: Callable[[RouterApp], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then lets running streams finish within the grace.

    `on_ready` is called once both ports are open; nodes may still be on their way. Raises OSError
    for a taken port, ValueError for a file of the configuration that is wrong.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    app = RouterApp(config)
    try:
        await app.start()
        settle()
        collect_rarely()
        log.info(
            "ready",
            http=f"{config.http_scheme}://{host_and_port(config.http_host, app.http_port)}",
            grpc=host_and_port(config.grpc_host, app.grpc_port),
            nodes=list(config.nodes),
        )
        if on_ready is not None:
            on_ready(app)
        await stopped.wait()
        log.info("stopping", in_flight=app.admission.in_flight, grace=config.shutdown_grace)
    finally:
        await app.stop()


def run(config: RouterConfig, on_ready: Callable[[RouterApp], None] | None = None) -> None:
    """`serve` on an event loop of its own. Returns after a clean shutdown."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, on_ready))
