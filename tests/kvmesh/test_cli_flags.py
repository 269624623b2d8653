"""Flags made from configurations: complete, and the same configuration there and back."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cache_node.config import NodeConfig
from kvmesh.cli.flags import Flag, as_arguments, as_command
from kvmesh.cli.node_flags import NODE_FLAGS
from kvmesh.cli.router_flags import ROUTER_FLAGS
from kvmesh.cli.serve_config import SERVE_FLAGS, ServeConfig
from router.config import RouterConfig

CONFIGS = {
    "node": (NodeConfig(), NODE_FLAGS),
    "other node": (
        NodeConfig(
            model="./some where/model.gguf",
            dtype="float32",
            num_blocks=77,
            max_model_len=512,
            enable_prefix_caching=False,
            cache_dir=Path("/tmp/models"),
            redis_url="redis://127.0.0.1:6379/0",
            log_requests=True,
        ),
        NODE_FLAGS,
    ),
    "router": (
        RouterConfig(nodes=("a:1", "b:2"), policy="random", cors_allow_origins=("*",)),
        ROUTER_FLAGS,
    ),
    "serve": (
        ServeConfig(
            nodes=3,
            node_port_base=4000,
            shutdown_grace=0.5,
            header_timeout=2.5,
            cors_allow_origins=("https://a.example", "http://b.example:8080"),
        ),
        SERVE_FLAGS,
    ),
}


def parse(config_type, flags, arguments, **environment):
    """The configuration that a command line gives."""
    given = []
    app = typer.Typer()
    app.command()(as_command(config_type, flags, given.append))
    result = CliRunner(env=environment).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return given[0]


@pytest.mark.parametrize(("config", "flags"), CONFIGS.values(), ids=CONFIGS)
def test_every_field_has_a_flag(config, flags):
    assert set(flags) == {field.name for field in fields(config)}


@pytest.mark.parametrize(("config", "flags"), CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_survives_the_command_line(config, flags):
    assert parse(type(config), flags, as_arguments(config, flags)) == config


def test_no_flag_gives_the_defaults():
    assert parse(NodeConfig, NODE_FLAGS, []) == NodeConfig()
    assert parse(ServeConfig, SERVE_FLAGS, []) == ServeConfig()


def test_the_environment_gives_what_the_command_line_does_not():
    environment = {"KVMESH_BLOCK_SIZE": "32", "KVMESH_REDIS": "redis://x:1/0"}
    config = parse(NodeConfig, NODE_FLAGS, ["--block-size", "8"], **environment)
    assert (config.block_size, config.redis_url) == (8, "redis://x:1/0")


def test_a_child_is_told_everything_whatever_its_environment_says():
    config = NodeConfig(block_size=16)
    arguments = as_arguments(config, NODE_FLAGS)
    assert parse(NodeConfig, NODE_FLAGS, arguments, KVMESH_BLOCK_SIZE="32") == config


def test_what_the_configuration_refuses_is_shown():
    @dataclass(frozen=True)
    class Picky:
        size: int = 1

        def __post_init__(self):
            if self.size % 2 == 0:
                raise ValueError("size: must be odd")

    app = typer.Typer()
    app.command()(as_command(Picky, {"size": Flag("Odd.", "Sizes")}, lambda _: None))
    result = CliRunner().invoke(app, ["--size", "4"])
    assert result.exit_code == 2
    assert "size: must be odd" in result.output


def test_nodes_and_router_of_a_fleet_share_what_serve_is_told():
    config = ServeConfig(block_size=32, redis_url="redis://x:1/0", host="0.0.0.0", threads=3)
    nodes = [config.node_config(i, 4000 + i, 5000 + i) for i in range(2)]
    assert [node.node_name for node in nodes] == ["node-0", "node-1"]
    assert replace(nodes[0], node_name="node-1", port=4001, metrics_port=5001) == nodes[1]
    assert (nodes[0].block_size, nodes[0].threads) == (32, 3)
    assert nodes[0].host == "127.0.0.1"
    router = config.router_config([4000, 4001])
    assert router.nodes == ("127.0.0.1:4000", "127.0.0.1:4001")
    assert (router.http_host, router.redis_url) == ("0.0.0.0", "redis://x:1/0")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--preset", "low-latency", "--high-watermark", "0.7"], "low_watermark"),
        (["--preset", "low-latency", "--max-num-seqs", "512"], "max_num_batched_tokens"),
        (["--cors-allow-origin", "example.org"], "cors_allow_origins"),
        (["--redis", "http://h"], "redis_url"),
        (["--otlp-traces-endpoint", "h:1"], "otlp_traces_endpoint"),
    ],
    ids=str,
)
def test_serve_says_at_once_what_its_router_or_nodes_would_refuse(arguments, named):
    app, started = typer.Typer(), []
    app.command()(as_command(ServeConfig, SERVE_FLAGS, started.append, presets=True))
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, started) == (2, [])
    assert named in result.output


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12, -1.0])
def test_times_that_no_clock_can_count_are_refused_by_name(seconds):
    for field in ("request_timeout", "connect_timeout", "lease_time", "slow_start"):
        with pytest.raises(ValueError, match=f"{field}: must be .* seconds and at most 1e"):
            RouterConfig(nodes=("a:1",), **{field: seconds})
    for config in (RouterConfig, NodeConfig):
        with pytest.raises(ValueError, match="shutdown_grace: must be at least 0 seconds"):
            config(**{"nodes": ("a:1",)} if config is RouterConfig else {}, shutdown_grace=seconds)
