"""Child processes, ports, and what is shown of a start."""

import io
import os
import signal
import socket

import pytest
from rich.console import Console

from kvmesh.cli.child import Child, ChildDiedError, LogLine, describe_exit
from kvmesh.cli.fleet import Fleet
from kvmesh.cli.ports import PortInUseError, free_ports, require_free
from kvmesh.cli.screen import Screen
from kvmesh.cli.serve_config import ServeConfig
from kvmesh.cli.stages import Stages


def ignore(_child, _line):
    pass


@pytest.fixture
async def router():
    """A child that serves."""
    options = ["--node", "127.0.0.1:1", "--http-port", "0", "--grpc-port", "0"]
    child = Child("router", ["router", *options], ignore)
    await child.start()
    try:
        await child.until_ready()
        yield child
    finally:
        child.kill()
        await child.wait()


async def test_a_child_that_ends_before_it_serves_is_reported():
    lines = []
    child = Child("node-7", ["fly"], lambda _, line: lines.append(line.text))
    await child.start()
    with pytest.raises(ChildDiedError, match="node-7 ended with exit code 2"):
        await child.until_ready()
    assert any("No such command" in line for line in lines)


async def test_a_child_can_be_stopped_at_any_time():
    child = Child("router", ["router", "--node", "127.0.0.1:1", "--http-port", "0"], ignore)
    await child.start()
    await child.stop(10)
    assert not child.running
    await child.stop(10)
    child.kill()


async def test_a_child_that_will_not_stop_is_killed(router):
    os.kill(router.pid, signal.SIGSTOP)
    await router.stop(0.2)
    assert router.exit_code == -signal.SIGKILL


async def test_a_router_says_when_it_is_ready_and_ends_in_order(router):
    assert router.ready["event"] == "ready"
    await router.stop(20)
    assert router.exit_code == 0


@pytest.mark.parametrize(
    ("code", "words"), [(3, "ended with exit code 3"), (-9, "was killed by SIGKILL")]
)
def test_an_exit_in_words(code, words):
    assert describe_exit(code) == words


def test_free_ports_are_different_and_free():
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5
    for port in ports:
        require_free("127.0.0.1", port, "--port")


def test_a_port_that_another_shares_is_not_free():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC servers do
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} .* --grpc-port"):
            require_free("127.0.0.1", port, "--grpc-port")


def test_an_address_that_is_not_ours_is_explained():
    with pytest.raises(PortInUseError, match=r"cannot listen on 192\.0\.2\.1:80"):
        require_free("192.0.2.1", 80, "--http-port")


def test_stages_last_until_the_next_one():
    now = iter([0.0, 2.0, 2.0, 7.0, 3.0, 4.0])
    stages = Stages(clock=lambda: next(now))
    assert stages.enter("node-0", "load")
    assert not stages.enter("node-0", "load")
    assert stages.enter("node-0", "warm up")
    stages.end("node-0")
    assert (stages.longest("load"), stages.longest("warm up")) == (2.0, 5.0)
    assert stages.longest("download") is None
    assert stages.end("node-0") is None


@pytest.fixture
def shown():
    """A screen that is no terminal, and what is on it."""
    out = io.StringIO()
    return Screen(Console(file=out, highlight=False), quiet=True), out


def test_each_stage_is_one_line_where_there_is_no_terminal(shown, capsys):
    screen, out = shown
    child = Child("node-0", [], screen.line)
    for done in (0.0, 1.0):
        screen.line(child, LogLine("", "progress", {"stage": "convert", "done": done}))
    screen.line(child, LogLine("", "ready", {"event": "ready"}))
    assert out.getvalue().split() == ["node-0", "convert", "node-0", "ready"]
    assert capsys.readouterr().err == ""


def test_two_apis_on_one_port_are_refused_before_anything_starts():
    fleet = Fleet(ServeConfig(http_port=8000, grpc_port=8000), ignore, print)
    with pytest.raises(PortInUseError, match="--http-port and --grpc-port are both 8000"):
        fleet.require_ports()


def test_a_quiet_screen_shows_warnings_at_once_and_the_rest_of_a_dead_child(shown, capsys):
    screen, _ = shown
    child = Child("node-0", [], screen.line)
    screen.line(child, LogLine("a [red] traceback"))
    assert capsys.readouterr().err == ""
    screen.line(child, LogLine("", "oh", {"event": "oh", "level": "warning"}))
    assert "oh" in capsys.readouterr().err
    screen.last_words("node-0")
    assert "a [red] traceback" in capsys.readouterr().err
