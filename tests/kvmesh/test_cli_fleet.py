"""Commands that use a running fleet, as processes against a router on real sockets."""

import asyncio
import json
import signal
import sys

import pytest

from kvmesh.fleet_key import FleetKey
from kvmesh.lease import LeaseKey
from tests.certificates import Authority
from tests.kvmesh.terminal import PATIENCE, Terminal
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

HELLO = "hello, how are you today"


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as running:
        yield running
        await eventually(lambda: running.idle)


async def kvmesh(*arguments, **environment):
    """Exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvmesh.cli", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, out.decode(), err.decode()


async def test_nodes_shows_a_line_a_node_and_why_one_does_not_serve(fleet):
    fleet.nodes[1].draining = True
    await eventually(lambda: fleet.health(1) == "NODE_HEALTH_DRAINING")
    fleet.nodes[0].script = Script(per_token=0.05)
    call = fleet.inference.Generate(_request("x" * 32, 400))
    await call.read()
    await eventually(lambda: fleet.app.view.nodes()[0].load.running == 1)
    code, out, err = await kvmesh("nodes", "--router", fleet.target)
    assert code == 0, err
    titles, first, second = out.rstrip().splitlines()
    columns = "node address state blocks usage cached running waiting hit rate index"
    assert " ".join(titles.split()) == columns
    held = "27/512 5% 0 1 0 – exact 2"
    assert " ".join(first.split()) == f"node-0 {fleet.nodes[0].address} up {held}"
    assert " ".join(second.split()).startswith(f"node-1 {fleet.nodes[1].address} draining 0/512")
    call.cancel()


async def test_nodes_as_json_and_the_hit_rate(fleet):
    for node in fleet.nodes:
        node.counted = (100, 25)
        node.notify()
    await eventually(lambda: all(n.load.queried_tokens for n in fleet.app.view.nodes()))
    code, out, err = await kvmesh("nodes", "--router", fleet.target, "--json")
    assert code == 0, err
    first, second = json.loads(out)
    assert (first["node"], first["state"], first["blocks"]) == ("node-0", "up", 512)
    assert (first["hit_rate"], second["hit_rate"]) == (0.25, 0.25)
    assert first["epoch"] == fleet.nodes[0].info.epoch


async def test_health_is_an_exit_code(fleet):
    assert await kvmesh("health", fleet.target) == (0, "SERVING\n", "")
    for node in fleet.nodes:
        await node.stop()
    await eventually(lambda: not fleet.app.view.serving)
    code, out, err = await kvmesh("health", fleet.target)
    assert (code, out) == (1, "")
    assert f"{fleet.target}: NOT_SERVING" in err
    code, _, err = await kvmesh("health", "127.0.0.1:1", "--timeout", "5")
    assert code == 1
    assert "127.0.0.1:1: UNAVAILABLE" in err


async def test_explain_shows_each_nodes_cost_and_its_parts(fleet):
    from tests.router.asking import answer

    frames = await answer(fleet, _request("x" * 64, 1))
    holder = frames[0].route.node
    await eventually(lambda: sum(n.indexed_blocks for n in fleet.app.view.nodes()) == 4)
    code, out, err = await kvmesh("explain", "--raw", "--router", fleet.target, "x" * 65)
    assert code == 0, err
    head, _, titles, first, second = (line.split() for line in out.rstrip().splitlines())
    assert head[:3] == [f"{holder}:", "longest", "prefix:"]
    assert titles[:3] == ["node", "cost", "cached"]
    assert "queued prefill tokens" in " ".join(titles)
    assert (first[0], first[2]) == (holder, "64")
    assert (second[0], second[2]) == ("node-1" if holder == "node-0" else "node-0", "0")
    assert float(first[1]) < float(second[1])
    assert len(fleet.nodes[0].requests) + len(fleet.nodes[1].requests) == 1
    code, out, err = await kvmesh("explain", "--router", fleet.target, "--json", "hi")
    assert code == 0, err
    report = json.loads(out)
    assert {each["node"] for each in report["candidates"]} == {"node-0", "node-1"}


async def test_what_the_router_refuses_is_said_in_a_line(fleet):
    for command in (("explain", "--raw", ""), ("explain", "--raw", "--max-tokens", "9999", "x")):
        code, out, err = await kvmesh(*command, "--router", fleet.target)
        assert (code, out) == (1, "")
        assert "kvmesh: " in err
        assert "INVALID_ARGUMENT" in err
    code, _, err = await kvmesh("nodes", "--router", "127.0.0.1:1")
    assert code == 1
    assert "kvmesh serve" in err


async def test_over_mutual_tls_and_straight_from_a_node(tmp_path):
    authority, secret = Authority(tmp_path), b"0123456789abcdef" * 2
    (tmp_path / "fleet-key").write_bytes(secret)
    files, shown = authority.issue("router"), authority.issue("me")
    node = StubNode("node-0", lease_key=LeaseKey(FleetKey(secret)))
    from kvmesh.tls import ServerTls

    await node.start(tls=ServerTls(authority.issue("node")))
    fields = {
        "tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca,
        "node_tls_ca": files.ca, "node_tls_cert": files.cert, "node_tls_key": files.key,
        "fleet_key_file": tmp_path / "fleet-key",
    }  # fmt: skip
    options = ("--tls-ca", shown.ca, "--tls-cert", shown.cert, "--tls-key", shown.key)
    async with running_fleet(node, **fields) as fleet:
        to = ("--router", fleet.target, *map(str, options))
        code, out, err = await kvmesh(
            "generate", "--raw", "--max-tokens", "4", *to, "--direct", "abc"
        )
        assert (code, out) == (0, "abca\n"), err
        assert "kvmesh-lease-bin" in node.metadata[0]
        code, out, err = await kvmesh("nodes", *to)
        assert code == 0, err
        assert "node-0" in out
        code, _, err = await kvmesh("nodes", *to, "--tls-key", str(files.ca))
        assert code == 1
        assert "tls_key: " in err
        await eventually(lambda: fleet.idle)


def chat(fleet, *options):
    return Terminal("chat", "--router", fleet.target, "--max-tokens", "8", *options)


def said(node):
    """The last conversation that a node got, as the model sees it."""
    from kvmesh.packing import unpack_tokens

    ids = unpack_tokens(node.requests[-1].token_ids)
    marks = {256: "<", 257: ">"}
    return "".join(marks.get(token) or chr(token) for token in ids)


async def test_chat_answers_remembers_and_tells_of_the_cache():
    node = StubNode("node-0")
    async with running_fleet(node) as fleet, chat(fleet, "--temperature", "0") as terminal:
        await terminal.until("› ")
        terminal.type(f"{HELLO}\n")
        shown = await terminal.until("node-0")
        assert "?user\nhe\n" in shown.replace("\r", "")  # what the model answered
        assert "cached 0 of 43" in shown
        assert "first token " in shown
        assert "8 tokens" in shown
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks >= 2)
        terminal.type("and now\n")
        shown = await terminal.until("node-0")
        assert "cached 32 of " in shown
        prompt = said(node)
        assert prompt.startswith(f"<user\n{HELLO}>\n<assistant\n")
        assert prompt.endswith(">\n<user\nand now>\n<assistant\n")
        terminal.type("/reset\n")
        await terminal.until("forgotten")
        terminal.type("/system Be brief.\n")
        await terminal.until("begun again")
        terminal.type("third\n")
        await terminal.until("node-0")
        assert said(node) == "<system\nBe brief.>\n<user\nthird>\n<assistant\n"
        terminal.type("/what\n")
        await terminal.until("no command /what")
        terminal.type("/quit\n")
        assert await terminal.end() == 0


async def test_ctrl_c_stops_an_answer_and_not_the_chat():
    node = StubNode("node-0", script=Script(per_token=0.05))
    async with running_fleet(node) as fleet, chat(fleet, "--max-tokens", "3000") as terminal:
        await terminal.until("› ")
        terminal.type(f"{HELLO}\n")
        await terminal.until("user")
        terminal.type("\x03")
        await terminal.until("stopped")
        await eventually(lambda: node.cancelled == 1 and fleet.idle)
        node.script = Script()
        await terminal.press("\x03", "/quit or Ctrl-D leaves")
        terminal.type("again\n")
        await eventually(lambda: len(node.requests) == 2, PATIENCE)
        assert said(node).startswith(f"<user\n{HELLO}>\n<assistant\n")
        assert said(node).count("<assistant\n") == 2
        await terminal.until("node-0")
        await terminal.until("› ")
        terminal.type("\x04")
        assert await terminal.end() == 0
    assert "Traceback" not in terminal.shown


async def test_an_answer_that_fails_leaves_the_chat_as_it_was():
    node = StubNode("node-0", script=Script(fail_before="INTERNAL"))
    async with running_fleet(node) as fleet, chat(fleet) as terminal:
        await terminal.until("› ")
        terminal.type("lost\n")
        await terminal.until("scripted before the first token")
        node.script = Script()
        terminal.type("kept\n")
        await terminal.until("node-0")
        assert said(node) == "<user\nkept>\n<assistant\n"
        terminal.process.send_signal(signal.SIGTERM)
        assert await terminal.end() in (-signal.SIGTERM, 143)


def _request(*args):
    from tests.router.asking import request

    return request(*args)
