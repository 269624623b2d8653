"""TLS and mutual TLS on every hop, on real sockets with certificates made here."""

import asyncio
import socket
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest

from kvmesh.certificates import CertificateFiles
from kvmesh.client import Client
from kvmesh.errors import Code, RequestError
from kvmesh.tls import ServerTls
from router.app import RouterApp
from tests.certificates import Authority
from tests.router.fleet_fixture import config, eventually, running_fleet
from tests.router.stub_node import StubNode

BODY = {"prompt": "abc", "max_tokens": 2}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def front(files, *, mutual=False):
    """The fields of a router's configuration."""
    return {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca if mutual else None}


async def ask(fleet, tls):
    def work():
        with Client(fleet.target, timeout=5, tls=tls) as client:
            return client.generate("abc", max_tokens=2).result().text

    return await asyncio.to_thread(work)


@asynccontextmanager
async def https(fleet, context):
    url = f"https://127.0.0.1:{fleet.app.http_port}"
    async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as client:
        yield client


def trust(authority, shown=None):
    context = ssl.create_default_context(cafile=authority.path)
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return context


async def test_both_fronts_speak_tls_and_nothing_else(authority):
    files = authority.issue("router")
    async with running_fleet(StubNode(), **front(files)) as fleet:
        assert await ask(fleet, CertificateFiles(ca=authority.path)) == "ab"
        async with https(fleet, trust(authority)) as http:
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        with pytest.raises(RequestError) as caught:
            await ask(fleet, None)
        assert caught.value.code == Code.UNAVAILABLE
        with pytest.raises(httpx.TransportError):
            await fleet.http.post("/v1/completions", json=BODY)


async def test_a_client_trusts_no_other_authority(authority, tmp_path):
    other = Authority(tmp_path, "other")
    async with running_fleet(StubNode(), **front(authority.issue("router"))) as fleet:
        with pytest.raises(RequestError) as caught:
            await ask(fleet, CertificateFiles(ca=other.path))
        assert caught.value.code == Code.UNAVAILABLE
        async with https(fleet, trust(other)) as http:
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                await http.get("/health")


async def test_mutual_tls_lets_in_who_shows_a_certificate(authority, tmp_path):
    stranger = Authority(tmp_path, "other").issue("stranger")
    stranger = CertificateFiles(stranger.cert, stranger.key, authority.path)
    friend = authority.issue("friend")
    async with running_fleet(StubNode(), **front(authority.issue("router"), mutual=True)) as fleet:
        assert await ask(fleet, friend) == "ab"
        async with https(fleet, trust(authority, friend)) as http:
            assert (await http.get("/health")).status_code == 200
        for shown in (CertificateFiles(ca=authority.path), stranger):
            with pytest.raises(RequestError):
                await ask(fleet, shown)
            context = trust(authority, shown if shown.cert else None)
            async with https(fleet, context) as http:
                with pytest.raises(httpx.TransportError):
                    await http.get("/health")


async def test_the_router_shows_itself_to_nodes_and_checks_them(authority, tmp_path):
    server = ServerTls(authority.issue("node"))
    node = await StubNode().start(tls=server)
    shown = authority.issue("router", prefix="node_tls_")
    right = {
        "node_tls_ca": shown.ca, "node_tls_cert": shown.cert, "node_tls_key": shown.key
    }  # fmt: skip
    async with running_fleet(addresses=(node.address,), up=1, **right) as fleet:
        assert (await fleet.http.post("/v1/completions", json=BODY)).status_code == 200
    wrong = {
        "no certificate": {"node_tls_ca": shown.ca},
        "other authority": right | {"node_tls_ca": Authority(tmp_path, "other").path},
        "plain text": {},
    }
    for reason, changes in wrong.items():
        async with running_fleet(addresses=(node.address,), up=0, **changes) as fleet:
            await eventually(lambda fleet=fleet: fleet.health(0) == "NODE_HEALTH_DOWN", 5)
            assert "UNAVAILABLE" in fleet.app.view.nodes()[0].detail, reason
    await node.stop()


async def test_a_renewed_certificate_is_shown_without_a_restart(authority):
    files = authority.issue("router")
    async with running_fleet(StubNode(), **front(files)) as fleet:
        ports = fleet.app.http_port, fleet.app.grpc_port
        first = [await shown_by(port, authority) for port in ports]
        authority.issue("router")
        second = [await shown_by(port, authority) for port in ports]
        assert all(old != new for old, new in zip(first, second, strict=True))
        files.key.write_text("not a key")
        assert [await shown_by(port, authority) for port in ports] == second


async def shown_by(port, authority):
    """The serial number of a server's certificate."""

    def look():
        context = trust(authority)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return connection.getpeercert()["serialNumber"]

    return await asyncio.to_thread(look)


def test_a_wrong_file_is_named_when_the_router_starts(authority):
    files = authority.issue("router", days=-1)
    with pytest.raises(ValueError, match=r"tls_cert: .* has expired"):
        RouterApp(config("a:1", **front(files)))
    with pytest.raises(ValueError, match="node_tls_ca: cannot read"):
        RouterApp(config("a:1", node_tls_ca=files.ca.with_name("gone")))
    with pytest.raises(ValueError, match="node_tls_ca: must be set"):
        config("a:1", node_tls_cert=files.cert, node_tls_key=files.key)


def test_the_command_names_a_wrong_file_and_ends(authority):
    files = authority.issue("router")
    files.key.unlink()
    command = [sys.executable, "-m", "kvmesh.cli", "router", "--node", "127.0.0.1:1"]
    ports = ["--http-port", "0", "--grpc-port", "0"]
    ended = subprocess.run(
        [*command, *ports, "--tls-cert", files.cert, "--tls-key", files.key],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "tls_key: cannot read" in ended.stderr
    assert "Traceback" not in ended.stderr
