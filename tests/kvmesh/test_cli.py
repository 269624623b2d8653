"""The `kvmesh` command as a user meets it: help, mistakes, what it says and how it exits."""

import socket
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvmesh.cli.main import app
from kvmesh.cli.ports import free_ports

KVMESH = (sys.executable, "-m", "kvmesh.cli")


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(app, arguments, prog_name="kvmesh")


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


ALL = [" ".join(path) for path in commands(get_command(app))]


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_commands_are_these():
    assert sorted(ALL) == [
        "bench all",
        "bench baselines",
        "bench engine",
        "bench failover",
        "bench generator",
        "bench kernels",
        "bench memory",
        "bench outage",
        "bench paging",
        "bench prefix",
        "bench quant",
        "bench router",
        "bench routing",
        "bench scrape",
        "bench sim",
        "bench soak",
        "bench step",
        "bench ttft",
        "cache clear",
        "cache pin",
        "cache unpin",
        "chat",
        "demo",
        "doctor",
        "explain",
        "generate",
        "health",
        "key",
        "load",
        "model",
        "node",
        "nodes",
        "plan",
        "router",
        "serve",
        "sim",
        "top",
    ]


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0
    assert all(name.split()[0] in result.output for name in ALL)


@pytest.mark.parametrize("name", ALL)
def test_help_of_each_command_teaches_by_example(name):
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"  kvmesh {name}" in result.output


def test_help_shows_defaults():
    shown = run("node", "--help").output
    assert "smollm2-135m-instruct" in shown
    assert "50061" in shown


def test_no_command_shows_the_help():
    assert "Usage: kvmesh" in run().output


def test_version():
    assert run("--version").output.startswith("kvmesh 0.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--nodes", "0"), "--nodes"),
        (("serve", "--http-port", "70000"), "--http-port"),
        (("serve", "--policy", "lottery"), "--policy"),
        (("serve", "--wings", "2"), "--wings"),
        (("node", "--dtype", "float7"), "--dtype"),
        (("node", "--block-size", "x"), "--block-size"),
        (("router",), "--node"),
        (("router", "--node", "a:1", "--node", "a:1"), "nodes"),
        (("generate",), "prompt"),
        (("generate", "--max-tokens", "0", "hello"), "--max-tokens"),
        (("bench", "ttft", "--repetitions", "0"), "--repetitions"),
        (("fly",), "fly"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_wrong_flag_is_named(arguments, named):
    result = run(*arguments)
    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("serve",), "--http-port"),
        (("serve",), "--grpc-port"),
        (("router", "--node", "127.0.0.1:1"), "--http-port"),
        (("router", "--node", "127.0.0.1:1"), "--grpc-port"),
        (("node",), "--port"),
    ],
    ids=str,
)
def test_a_taken_port_is_named_before_anything_starts(taken_port, command, option):
    others = {"--http-port", "--grpc-port"} - {option} if command[0] != "node" else ()
    free = [argument for other in others for argument in (other, "0")]
    if command == ("serve",):
        port = str(*free_ports("127.0.0.1", 1))
        free = [argument if argument != "0" else port for argument in free]
    result = run(*command, option, str(taken_port), *free)
    assert result.exit_code == 1
    assert f"port {taken_port} on 127.0.0.1 is in use" in result.output
    assert option in result.output


def test_generate_without_a_router_says_how_to_start_one():
    result = run("generate", "--router", "127.0.0.1:1", "hello")
    assert result.exit_code == 1
    assert "kvmesh serve" in result.output


def test_an_unknown_model_is_explained(tmp_path):
    result = run("model", "--model", "no-such-model", "--cache-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "no-such-model" in result.output


def test_the_help_loads_neither_torch_nor_grpc():
    code = (
        "import sys; from kvmesh.cli.main import app\n"
        "heavy = {'torch', 'grpc', 'transformers', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or None)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_it_runs_as_a_module():
    assert b"Usage" in subprocess.run([*KVMESH, "--help"], capture_output=True, check=True).stdout
