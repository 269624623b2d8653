"""A router and two nodes with engines as processes, whose JSON log lines are kept."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from kvmesh.cli.child import Child
from tests.router.process_fleet import START, RouterProcess, until
from tests.router.real_node import save_model

LONG = 2048  # tokens that a model of these nodes can take
NODE = {"device": "cpu", "dtype": "float32", "port": 0, "num_blocks": 300, "max_model_len": LONG}


class LoggedNode:
    def __init__(self, name: str, model: Path) -> None:
        flags = NODE | {"model": model, "node_name": name}
        words = [w for n, v in flags.items() for w in (f"--{n.replace('_', '-')}", str(v))]
        self.child = Child(name, ["node", "--log-requests", *words], self._keep)
        self.lines: list[dict] = []

    def _keep(self, _child: Child, line) -> None:
        self.lines.append(line.fields)

    def signal(self, number: int) -> None:
        self.child._signal(number)

    def told(self, request_id: str) -> list[dict]:
        """Its lines about a request."""
        return [line for line in self.lines if line.get("request_id") == request_id]


class LoggedFleet:
    def __init__(self, router: RouterProcess, nodes: list[LoggedNode]) -> None:
        self.router, self.nodes = router, nodes

    def told(self, request_id: str) -> list[dict]:
        """The router's lines about a request."""
        lines = [json.loads(text) for text in self.router.log if text.startswith("{")]
        return [line for line in lines if line.get("request_id") == request_id]

    async def told_of(self, request_id: str) -> dict:
        """The router's line about its end, as soon as it is there."""

        async def there():
            return [each for each in self.told(request_id) if each["event"] == "request"]

        await until(there)
        (line,) = await there()
        return line


@contextlib.asynccontextmanager
async def logged_fleet(directory: Path, **flags: object) -> AsyncIterator[LoggedFleet]:
    """`flags` are those of `kvmesh router`, whose requests go to the nodes in turn."""
    model = save_model(directory, max_position_embeddings=LONG)
    nodes = [LoggedNode(f"node-{place}", model) for place in range(2)]
    try:
        await asyncio.gather(*(node.child.start() for node in nodes))
        ready = (node.child.until_ready() for node in nodes)
        await asyncio.wait_for(asyncio.gather(*ready), START)
        addresses = [node.child.ready["address"] for node in nodes]
        router = RouterProcess("router", addresses, policy="round-robin", **flags)
        try:
            await router.start()
            await until(lambda: router.up("node-0", "node-1"))
            yield LoggedFleet(router, nodes)
        finally:
            await router.stop()
    finally:
        for node in nodes:
            node.signal(signal.SIGCONT)
            node.child.kill()
            await node.child.wait()
