"""Who may change the fleet: nobody by accident, and nobody by a key that is nearly right."""

import grpc
import pytest

from kvmesh.tls import channel_credentials, open_aio_channel
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc
from router.admin import AdminRole
from tests.certificates import Authority
from tests.router.fleet_fixture import config, running_fleet
from tests.router.stub_node import StubNode

Code = grpc.StatusCode
CALLS = {
    "Drain": fleet_pb2.FleetDrainRequest(node="no-such-node"),
    "PinPrefix": fleet_pb2.PinPrefixRequest(),
    "UnpinPrefix": fleet_pb2.UnpinPrefixRequest(),
    "ClearCache": fleet_pb2.ClearCacheRequest(),
}


@pytest.fixture
def key_file(tmp_path):
    hashed = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7"  # of hunter2
    path = tmp_path / "admins"
    path.write_text(f"# operators\nsecret-one\n\nsha256:{hashed}\n")
    return path


async def codes(stub, **metadata):
    """What each changing method answers."""
    answers = {}
    for method, message in CALLS.items():
        try:
            await getattr(stub, method)(message, metadata=tuple(metadata.items()))
            answers[method] = Code.OK
        except grpc.aio.AioRpcError as error:
            answers[method] = error.code()
    return answers


def refused(answers):
    return set(answers.values()) == {Code.PERMISSION_DENIED}


def let_in(answers):
    return Code.PERMISSION_DENIED not in answers.values()


async def test_changes_need_an_admin_key_and_reading_does_not(key_file):
    async with running_fleet(StubNode(), admin_key_file=key_file) as fleet:
        for wrong in ({}, {"authorization": "Bearer secret-on"}, {"x-api-key": "secret-one "},
                      {"authorization": "Basic secret-one"}, {"authorization": "Bearer "},
                      {"authorization": "Bearer # operators"}):  # fmt: skip
            assert refused(await codes(fleet.fleet, **wrong)), wrong
        for right in ({"authorization": "Bearer secret-one"}, {"authorization": "bearer hunter2"},
                      {"x-api-key": "hunter2"}):  # fmt: skip
            assert let_in(await codes(fleet.fleet, **right)), right
        assert (await fleet.fleet.ListNodes(fleet_pb2.ListNodesRequest())).nodes


async def test_the_name_in_a_certificate_makes_an_admin(tmp_path):
    authority = Authority(tmp_path)
    files = authority.issue("router")
    fields = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
    async with running_fleet(StubNode(), admin_names=("operator",), **fields) as fleet:
        for name, right in (("operator", True), ("user", False)):
            shown = channel_credentials(authority.issue(name))
            async with open_aio_channel(fleet.target, shown) as channel:
                answers = await codes(fleet_pb2_grpc.FleetStub(channel))
            assert (let_in if right else refused)(answers)


class Peer:
    """A caller without certificate or key."""

    def __init__(self, address):
        self._address = address

    def peer(self):
        return self._address

    def invocation_metadata(self):
        return ()

    def auth_context(self):
        return {}


def test_without_admins_only_the_routers_own_host_may():
    role = AdminRole(None, ())
    mapped = "ipv6:%5B::ffff:{}%5D:40000"
    own = ("ipv4:127.0.0.1:40000", "ipv6:%5B::1%5D:40000", mapped.format("127.0.0.1"), "unix:")
    for near in own:
        role.require("Drain", Peer(near))
    strangers = ("ipv4:10.0.0.7:40000", "ipv6:%5B2001:db8::1%5D:1", mapped.format("10.0.0.7"))
    for far in (*strangers, "ipv4:12.7.0.0:1", ""):
        with pytest.raises(Exception, match="Drain needs to be called on the router's host"):
            role.require("Drain", Peer(far))


async def test_without_admins_a_local_client_is_let_in():
    async with running_fleet(StubNode()) as fleet:
        assert let_in(await codes(fleet.fleet))


def test_every_key_is_compared_and_in_constant_time(key_file, monkeypatch):
    compared = []
    real = AdminRole.has_key.__globals__["hmac"].compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    role = AdminRole(key_file, ())
    for key, right in (("secret-one", True), ("hunter2", True), ("x", False), (None, False)):
        compared.clear()
        assert role.has_key(key) is right
        assert compared == [32, 32]  # digests: their length says nothing of the key's


@pytest.mark.parametrize("content", ["", "# nobody\n", "sha256:12\n", "sha256:" + "g" * 64])
def test_a_file_without_keys_is_named_and_no_line_of_it_shown(tmp_path, content):
    path = tmp_path / "admins"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"^admin_key_file: ") as caught:
        AdminRole(path, ())
    assert "gggg" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^admin_key_file: cannot read"):
        AdminRole(tmp_path / "gone", ())
    with pytest.raises(ValueError, match=r"^tls_ca: must be set beside admin_names"):
        config("a:1", admin_names=("operator",))
