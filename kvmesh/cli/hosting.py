"""Running a fleet for as long as a command needs it, and leaving nothing behind."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from kvmesh.cli.child import Child, ChildDiedError
from kvmesh.cli.errors import fail
from kvmesh.cli.fleet import Fleet
from kvmesh.cli.ports import PortInUseError
from kvmesh.cli.screen import Screen
from kvmesh.cli.serve_config import ServeConfig


def host(config: ServeConfig, screen: Screen, body: Callable[[Fleet], Awaitable[None]]) -> None:
    """Prepares the model, starts the fleet, runs `body`, and stops the fleet, whatever happens.

    SIGINT and SIGTERM end `body` and stop the fleet in order; a second one kills it. Ends the
    command with exit code 1 when a port is taken or a process dies before all are up.
    """
    try:
        asyncio.run(_host(config, screen, body))
    except ChildDiedError as error:
        screen.last_words(error.child.name)
        fail(str(error))
    except (PortInUseError, TimeoutError) as error:
        fail(str(error))


async def _host(
    config: ServeConfig, screen: Screen, body: Callable[[Fleet], Awaitable[None]]
) -> None:
    fleet = Fleet(config, screen.line, screen.say)
    fleet.require_ports()
    work = asyncio.create_task(_run(config, screen, fleet, body))
    _on_signals(work, fleet, screen)
    try:
        await asyncio.wait((work,))
    finally:
        screen.still()
        await fleet.stop()
    if not work.cancelled():
        work.result()


async def _run(
    config: ServeConfig, screen: Screen, fleet: Fleet, body: Callable[[Fleet], Awaitable[None]]
) -> None:
    await _prepare_model(config, screen)
    await fleet.start()
    screen.still()
    await body(fleet)


async def _prepare_model(config: ServeConfig, screen: Screen) -> None:
    """In a process of its own: this one stays small, and two nodes do not convert at once."""
    arguments = ["model", "--model", config.model]
    if config.cache_dir is not None:
        arguments += ["--cache-dir", str(config.cache_dir)]
    child = Child("model", arguments, screen.line)
    await child.start()
    try:
        if await child.wait() != 0:
            raise ChildDiedError(child)
    finally:
        child.kill()
    screen.done("model")


def _on_signals(work: asyncio.Task[None], fleet: Fleet, screen: Screen) -> None:
    def interrupt() -> None:
        if work.cancelling():
            screen.say("Killing what is left.")
            fleet.kill()
        else:
            screen.say("Stopping; once more to kill.")
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
