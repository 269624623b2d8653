"""`kvmesh router` and `kvmesh node`: one process of a fleet, in the foreground."""

import typer

from cache_node.config import NodeConfig
from kvmesh import log
from kvmesh.cli.errors import fail
from kvmesh.cli.ports import PortInUseError, require_free
from router.config import RouterConfig

ROUTER_HELP = """
Run a router over cache nodes that run elsewhere.

Examples:

    kvmesh router --node 10.0.0.5:50061 --node 10.0.0.6:50061
    kvmesh router --node 10.0.0.5:50061 --http-host 0.0.0.0 --redis redis://10.0.0.2:6379/0

A node that is away is waited for, and tried again for as long as the router runs. Every flag can
be set by its environment variable too.
"""

NODE_HELP = """
Run one cache node: a model, its KV pool and the gRPC service of both.

Examples:

    kvmesh node
    kvmesh node --host 0.0.0.0 --node-name gpu-7 --model ./my-model --kv-cache-bytes 8589934592
    kvmesh node --model ./model.gguf --dtype float32

The first start of a model may download and convert it; `kvmesh model` does that ahead of time.
"""


def router(config: RouterConfig) -> None:
    """Serves until SIGTERM or SIGINT."""
    log.configure("router")
    _require_free(config.http_host, config.http_port, "--http-port")
    _require_free(config.grpc_host, config.grpc_port, "--grpc-port")
    from router.main import run

    try:
        run(config)
    except ValueError as error:
        fail(str(error))


def node(config: NodeConfig) -> None:
    """Serves until SIGTERM or SIGINT, and exits with the node's exit code."""
    log.configure("node", config.node_name)
    _require_free(config.host, config.port, "--port")
    if config.metrics_port is not None:
        _require_free(config.host, config.metrics_port, "--metrics-port")
    try:
        from cache_node.main import run
    except ModuleNotFoundError as error:
        fail(f"this installation has no {error.name}: a node needs `pip install 'kvmesh[node]'`")
    raise typer.Exit(run(config))


def _require_free(host: str, port: int, option: str) -> None:
    try:
        require_free(host, port, option)
    except PortInUseError as error:
        fail(str(error))
