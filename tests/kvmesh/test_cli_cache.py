"""`kvmesh cache`, as processes against a router on real sockets."""

import pytest

from tests.kvmesh.test_cli_fleet import kvmesh
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode


@pytest.fixture
async def fleet(tmp_path):
    admins = tmp_path / "admins"
    admins.write_text("sesame\n")
    nodes = StubNode("node-0"), StubNode("node-1")
    async with running_fleet(*nodes, admin_key_file=admins) as running:
        yield running


async def cache(fleet, *arguments, key="sesame"):
    return await kvmesh("cache", *arguments, "--router", fleet.target, "--api-key", key)


async def test_a_prefix_is_pinned_let_go_and_cleared(fleet):
    wanted = ("pin", "You are brief and kind.", "--nodes", "2", "--ttl", "60", "--priority", "3")
    code, out, err = await cache(fleet, *wanted)
    assert code == 0, err
    pin = out.strip()
    assert err.endswith("blocks on node-0, node-1\n")
    for node in fleet.nodes:
        asked, keys = node.pins[pin]
        assert (asked.ttl.seconds, asked.priority, len(keys)) == (60, 3, 2)
    code, out, err = await cache(fleet, "clear")
    assert (code, out) == (0, "0 blocks forgotten on node-0, node-1\n"), err
    code, out, err = await cache(fleet, "unpin", pin)
    assert (code, out) == (0, "let go on node-0, node-1\n"), err
    code, out, err = await cache(fleet, "clear", "--node", "node-0", "--pins")
    assert (code, out) == (0, "2 blocks forgotten on node-0\n"), err


async def test_what_a_node_did_not_do_is_told_and_the_exit_code_is_1(fleet):
    await fleet.nodes[1].stop()
    await eventually(lambda: fleet.health(1) == "NODE_HEALTH_DOWN", 5)
    code, out, err = await cache(fleet, "clear")
    assert (code, out) == (1, "0 blocks forgotten on node-0\n")
    assert err.startswith("kvmesh: node-1: is not there")


async def test_others_than_admins_are_refused(fleet):
    code, out, err = await cache(fleet, "clear", key="guess")
    assert (code, out) == (1, "")
    assert "ClearCache needs an admin key" in err
