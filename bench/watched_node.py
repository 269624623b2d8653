"""A live node in a process of its own that says, when asked, what it holds on to."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

PAGE = os.sysconf("SC_PAGE_SIZE")
START = 120.0  # seconds at most


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process has open, and its memory."""

    tasks: int  # of asyncio
    threads: int
    descriptors: int  # open files and sockets
    resident: int  # bytes


class WatchedNode:
    """The other process, seen from here."""

    def __init__(self, pipe: Connection, port: int) -> None:
        self.port = port
        self._pipe = pipe

    async def holdings(self) -> Holdings:
        """Of now, once garbage is collected."""
        self._pipe.send("holdings")
        return cast(Holdings, await asyncio.to_thread(self._pipe.recv))


@asynccontextmanager
async def watched_node(directory: Path, **config: object) -> AsyncIterator[WatchedNode]:
    """Runs a node with the model in `directory` and fields of NodeConfig; ends it with the context.

    Raises RuntimeError when it does not start.
    """
    context = get_context("spawn")  # threads of gRPC and torch do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, directory, config), daemon=True)
    process.start()
    theirs.close()
    try:
        if not await asyncio.to_thread(ours.poll, START):
            raise RuntimeError(f"the node did not start within {START:g} s")
        yield WatchedNode(ours, ours.recv())
        ours.send("stop")
    except EOFError as error:
        raise RuntimeError("the node ended") from error
    finally:
        await asyncio.to_thread(process.join, 10)
        process.kill()
        ours.close()


def _main(pipe: Connection, directory: Path, config: dict[str, object]) -> None:
    """The node's process."""
    from kvmesh.log import configure

    configure("node")
    asyncio.run(_serve(pipe, directory, config))


async def _serve(pipe: Connection, directory: Path, fields: dict[str, object]) -> None:
    from cache_node.config import NodeConfig
    from cache_node.load_executor import load_executor
    from cache_node.node import Node

    config = NodeConfig(model=str(directory), port=0, **fields)  # type: ignore[arg-type]
    executor = load_executor(config, directory, lambda _stage, _fraction: None)
    node = Node(config, executor, directory)
    async with node.serve() as port:
        pipe.send(port)
        while await asyncio.to_thread(pipe.recv) != "stop":
            pipe.send(_holdings())


def _holdings() -> Holdings:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Holdings(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208  one call
        resident=pages * PAGE,
    )
