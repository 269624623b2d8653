"""`kvmesh top`: the whole fleet, live, on a terminal of its own."""

import fcntl
import struct
import termios

import pytest
from rich.console import Console
from rich.text import Text

from kvmesh.cli.nodes import table
from kvmesh.cli.top_view import view
from kvmesh.v1 import fleet_pb2
from tests.kvmesh.terminal import Terminal
from tests.kvmesh.test_cli_fleet import kvmesh
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

UP, DOWN = fleet_pb2.NODE_HEALTH_UP, fleet_pb2.NODE_HEALTH_DOWN


def top(fleet, **environment):
    return Terminal("top", "--interval", "0.1", "--router", fleet.target, **environment)


async def test_it_follows_nodes_and_requests_until_q():
    node = StubNode("node-0")
    async with running_fleet(node) as fleet, top(fleet) as terminal:
        await terminal.until("tokens/s")
        await terminal.until("nodes up 1 of 1")
        asked = request("p" * 65, 2)
        asked.request_id = "first-of-all"
        await answer(fleet, asked)
        await terminal.until("first-of-all")
        node.script = Script(per_token=0.05)
        call = fleet.inference.Generate(request("x" * 32, 400))
        await call.read()
        await terminal.until("held 27")
        call.cancel()
        node.draining = True
        node.notify()
        await terminal.until("draining")
        await node.stop()
        await terminal.until("down")
        terminal.type("xq")
        assert await terminal.end() == 0
    assert "Traceback" not in terminal.shown


async def test_a_router_that_goes_is_told_of_and_followed_again_when_it_is_back():
    node = StubNode("node-0")
    async with running_fleet(node) as fleet:
        port = fleet.app.grpc_port
        async with top(fleet) as terminal:
            await terminal.until("● live")
            await fleet.app.stop()
            await terminal.until("no answer, last seen")
            await terminal.until("last seen")  # and again: the age goes on
            async with running_fleet(addresses=(node.address,), grpc_port=port, up=1):
                await terminal.until("● live")
                terminal.type("\x03")
                assert await terminal.end() == 0
    assert "Traceback" not in terminal.shown


async def test_it_fits_the_terminal_whatever_size_that_comes_to():
    def resize(terminal, columns, lines):
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(terminal._master, termios.TIOCSWINSZ, size)

    async with running_fleet(StubNode("node-0")) as fleet:
        await answer(fleet, request("p" * 65, 2))
        async with top(fleet, COLUMNS="", LINES="") as terminal:
            resize(terminal, 150, 40)
            await terminal.until("predicted")
            resize(terminal, 60, 6)
            await eventually(lambda: "predicted" not in terminal.shown[-400:], 20)
            resize(terminal, 150, 40)
            await terminal.until("predicted")
            terminal.type("q")
            assert await terminal.end() == 0


async def test_without_a_terminal_it_is_printed_once(tmp_path):
    keys = tmp_path / "admins"
    keys.write_text("secret-one\n")
    async with running_fleet(StubNode("node-0"), admin_key_file=keys) as fleet:
        await answer(fleet, request("p" * 65, 2))
        arguments = ("top", "--router", fleet.target)
        code, out, err = await kvmesh(*arguments, "--api-key", "secret-one")
        assert (code, err) == (0, "")
        assert "node-0" in out
        assert "OK" in out
        code, out, err = await kvmesh(*arguments)
        assert (code, out) == (1, "")
        assert "Overview needs an admin key" in err


async def test_without_a_router_it_says_how_to_start_one():
    code, _, err = await kvmesh("top", "--router", "127.0.0.1:1")
    assert code == 1
    assert "kvmesh serve" in err


@pytest.mark.parametrize(("width", "height"), [(200, 60), (80, 24), (50, 12), (40, 10)])
def test_two_hundred_nodes_and_fifty_requests_fit_every_terminal(width, height):
    nodes = [
        fleet_pb2.NodeStatus(name=f"node-{i}", health=UP, breaker="closed") for i in range(200)
    ]
    nodes[150].health = DOWN
    nodes[150].detail = "UNAVAILABLE: " + "x" * 500
    ended = fleet_pb2.EndedRequest(request_id="r" * 128, code="OK", error="e" * 500)
    ended.route.node, ended.route.reason = "n" * 100, "w" * 300
    overview = fleet_pb2.OverviewResponse(nodes=nodes, requests=[ended] * 50)
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(view(overview, Text("● live"), width, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("node-150") for line in lines)
    assert any(line.startswith("… and ") for line in lines)


def test_words_of_nodes_and_routers_steer_no_terminal():
    hostile = "\x1b[2J\x1b]0;title\x07\r\n[/bold]\u202e"
    node = fleet_pb2.NodeStatus(name=hostile, health=DOWN, detail=hostile)
    ended = fleet_pb2.EndedRequest(request_id=hostile, code=hostile, error=hostile)
    ended.route.node, ended.route.reason, ended.summary.node = hostile, hostile, hostile
    overview = fleet_pb2.OverviewResponse(model=hostile, nodes=[node], requests=[ended])
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(view(overview, Text("● live"), 200, None), table([node]))
    shown = captured.get()
    assert shown.count(r"\x1b[2J\x1b]0") >= 5
    assert shown.replace("\n", "").isprintable()


def test_a_node_that_is_down_has_no_load_that_it_once_told():
    node = fleet_pb2.NodeStatus(name="node-0", health=DOWN, num_blocks=64)
    node.load.running = 7
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(table([node]))
    last = captured.get().splitlines()[-1]
    assert last.split() == ["node-0", "down", *"–" * 7]
