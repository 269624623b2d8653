"""A router and its cache nodes as child processes: started together, watched, ended in order."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import chain

from kvmesh.cli import ports
from kvmesh.cli.child import Child, ChildDiedError, LogLine, describe_exit
from kvmesh.cli.flags import as_arguments
from kvmesh.cli.node_flags import NODE_FLAGS
from kvmesh.cli.router_flags import ROUTER_FLAGS
from kvmesh.cli.serve_config import NODE, ServeConfig
from kvmesh.cli.watch import UpWatch

FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0  # seconds before a restart
STEADY = 60.0  # seconds of life after which a death counts as the first one again


class Fleet:
    """Owns all its processes: `stop` or `kill` ends every one, whatever state the start is in.

    `on_line(child, line)` gets each log line; `say(text)` what the fleet itself has to tell.
    """

    def __init__(
        self,
        config: ServeConfig,
        on_line: Callable[[Child, LogLine], None],
        say: Callable[[str], None],
    ) -> None:
        node_ports, metrics_ports = _node_ports(config)
        nodes = [
            config.node_config(i, *pair)
            for i, pair in enumerate(zip(node_ports, metrics_ports, strict=True))
        ]
        self.metrics_urls = [f"http://{NODE.host}:{port}/metrics" for port in metrics_ports]
        self.nodes = [
            Child(node.node_name, ["node", *as_arguments(node, NODE_FLAGS)], on_line)
            for node in nodes
        ]
        router = as_arguments(config.router_config(node_ports), ROUTER_FLAGS)
        self._up = UpWatch()
        self.router = Child("router", ["router", *router], self._watched(on_line))
        self._config = config
        self._say = say
        self._watches: list[asyncio.Task[None]] = []

    @property
    def children(self) -> list[Child]:
        return [self.router, *self.nodes]

    @property
    def model(self) -> str:
        """Name that clients use for the model, once a node is ready."""
        return str(self.nodes[0].ready["model"])

    def require_ports(self) -> None:
        """Raises PortInUseError if the fleet could not listen where it should."""
        config = self._config
        if config.http_port == config.grpc_port:
            raise ports.PortInUseError(
                f"--http-port and --grpc-port are both {config.http_port}; give each its own"
            )
        ports.require_free(config.host, config.http_port, "--http-port")
        ports.require_free(config.host, config.grpc_port, "--grpc-port")
        if config.node_port_base is not None:
            for port in chain(*_node_ports(config)):
                ports.require_free(NODE.host, port, "--node-port-base")

    async def start(self) -> None:
        """Returns when the router reports every node up. Raises ChildDiedError if one dies.

        The nodes come first: a router that finds nobody would have to try again.
        """
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self._while_alive(self.nodes, self._until_ready(self.nodes))
        await self.router.start()
        await self._while_alive(self.children, self._until_up())

    def watch(self) -> None:
        """From now on a child that dies is started again, under the same name and port."""
        self._watches = [asyncio.create_task(self._keep_alive(child)) for child in self.children]

    async def stop(self) -> None:
        """The router first, so that it finishes what it has on the nodes; then the nodes."""
        self._end_watches()
        grace = self._config.shutdown_grace
        await self.router.stop(grace + 1)
        await asyncio.gather(*(node.stop(grace + 1) for node in self.nodes))

    def kill(self) -> None:
        """Ends everything at once."""
        self._end_watches()
        for child in self.children:
            child.kill()

    async def _until_up(self) -> None:
        await self.router.until_ready()
        await self._up.until(len(self.nodes))

    def _watched(
        self, on_line: Callable[[Child, LogLine], None]
    ) -> Callable[[Child, LogLine], None]:
        def both(child: Child, line: LogLine) -> None:
            self._up.take(line)
            on_line(child, line)

        return both

    @staticmethod
    async def _until_ready(children: Sequence[Child]) -> None:
        await asyncio.gather(*(child.until_ready() for child in children))

    @staticmethod
    async def _while_alive(children: Sequence[Child], work: Coroutine[None, None, None]) -> None:
        """Awaits `work`. Raises ChildDiedError when a child ends meanwhile."""
        doing = asyncio.ensure_future(work)
        ends = {asyncio.ensure_future(child.wait()): child for child in children}
        try:
            await asyncio.wait((doing, *ends), return_when=asyncio.FIRST_COMPLETED)
            for end, child in ends.items():
                if end.done():
                    raise ChildDiedError(child)
            await doing
        finally:
            for task in (doing, *ends):
                task.cancel()

    def _end_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()

    async def _keep_alive(self, child: Child) -> None:
        loop, backoff = asyncio.get_running_loop(), FIRST_BACKOFF
        while True:
            started = loop.time()
            code = await child.wait()
            if loop.time() - started > STEADY:
                backoff = FIRST_BACKOFF
            self._say(f"{child.name} {describe_exit(code)}; starting it again in {backoff:g} s")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF)
            await child.start()
            with suppress(ChildDiedError):
                await child.until_ready()
                self._say(f"{child.name} is back")


def _node_ports(config: ServeConfig) -> tuple[list[int], list[int]]:
    """One of each node for its gRPC service, and one for its metrics."""
    count, base = config.nodes, config.node_port_base
    found = list(range(base, base + 2 * count)) if base else ports.free_ports(NODE.host, 2 * count)
    return found[:count], found[count:]
