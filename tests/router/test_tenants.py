"""Who a client is: keys in a file or in Redis, hashed, read again while the router runs."""

import json
from hashlib import sha256

import pytest
import structlog
from redis.asyncio import Redis
from typer.testing import CliRunner

from kvmesh.cli.main import app
from kvmesh.errors import Code, RequestError
from kvmesh.fleet_key import FleetKey
from prefix_index.redis_shards import RedisShards
from router.tenant_directory import TenantDirectory
from router.tenant_records import read_tenants
from router.tenant_salts import TenantSalts
from router.tenant_source import TenantFile, TenantsInRedis, tenants_key
from router.tenants import Tenant
from tests.redis_fixture import redis_server  # noqa: F401

KEY, OTHER = "kv-acme-1", "kv-zeta-1"


def hashed(key):
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def record(key=KEY, **fields):
    return {"keys": [hashed(key)], **fields}


def toml(**records):
    lines = []
    for name, fields in records.items():
        lines += [
            f"[{name}]",
            *(f"{field} = {json.dumps(value)}" for field, value in fields.items()),
        ]
    return "\n".join(lines)


def said(key):
    return [("authorization", f"Bearer {key}")]


def test_a_key_finds_its_tenant_and_no_other_does():
    tenants = read_tenants(
        {"acme": {"keys": [hashed(KEY), hashed("second")]}, "zeta": record(OTHER, weight=2)}
    )
    assert tenants.of(KEY).name == tenants.of("second").name == "acme"
    assert tenants.of(OTHER).limits.weight == 2
    for wrong in (KEY[:-1], KEY + "x", "", hashed(KEY), "\udcff"):
        assert tenants.of(wrong) is None


def test_the_command_makes_keys_that_work():
    made = CliRunner().invoke(app, ["key"]).output.split()
    again = CliRunner().invoke(app, ["key", "--stdin"], input=f"{made[1]}\n").output.split()
    assert (made[0], made[2], made[3]) == ("key:", "hash:", again[1])
    assert read_tenants({"acme": {"keys": [made[3]]}}).of(made[1])
    assert CliRunner().invoke(app, ["key", "--stdin"], input="\n").exit_code == 2


def test_the_start_of_a_hash_is_not_enough():
    """A digest that shares with a known one what it is found by."""
    digest = sha256(KEY.encode()).digest()
    near = digest[:-1] + bytes([digest[-1] ^ 1])
    tenants = read_tenants({"acme": {"keys": [f"sha256:{near.hex()}"]}})
    assert tenants.of(KEY) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"keys": []}, "acme.keys: must be a list of hashed keys"),
        ({"keys": [KEY]}, "acme.keys[0]: must be sha256: and the 64 hex digits"),
        ({"keys": ["sha256:12"]}, "acme.keys[0]"),
        (record(requests_per_second=0), "acme.requests_per_second: must be a number above 0, is 0"),
        (record(tokens_per_second=float("inf")), "acme.tokens_per_second"),
        (record(weight=True), "acme.weight"),
        (record(concurrency=1.5), "acme.concurrency: must be a whole number in [1, "),
        (record(max_priority=101), "acme.max_priority: must be a whole number in [-100, 100]"),
        (record(shares_cache=1), "acme.shares_cache"),
        (record(request_per_second=1), "acme.request_per_second: is not known, use keys"),
        ([], "acme: must be a table"),
    ],
)
def test_what_is_wrong_is_named_and_no_key_is_shown(fields, problem):
    with pytest.raises(ValueError, match="acme") as caught:
        read_tenants({"acme": fields})
    assert problem in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_key_belongs_to_one_tenant():
    with pytest.raises(ValueError, match=r"zeta.keys: one is also a key of acme"):
        read_tenants({"acme": record(), "zeta": record()})


def test_tenants_have_other_salts_unless_both_share():
    tenants = read_tenants(
        {"a": record("1"), "b": record("2"), "c": record("3", shares_cache=True)}
    )
    for salts in (TenantSalts(None), TenantSalts(FleetKey(b"k" * 32))):
        a, b, c = (salts.of(tenants.of(key)) for key in "123")
        assert len({a, b, c}) == 3
        assert c == b""


def test_a_tenants_name_is_not_enough_to_make_its_salt():
    """But every router of the fleet makes the same."""
    acme = Tenant("acme")
    one, same, other = (TenantSalts(FleetKey(each * 32)) for each in (b"a", b"a", b"b"))
    assert one.of(acme) == same.of(acme)
    assert len({one.of(acme), other.of(acme), TenantSalts(None).of(acme)}) == 3


def test_without_tenants_everybody_may():
    directory = TenantDirectory(None)
    assert directory.tenant_of([]).limits.any is False


def test_a_client_without_a_known_key_is_not_authenticated(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(toml(acme=record()))
    directory = TenantDirectory.of_file(path)
    assert directory.tenant_of(said(KEY)).name == "acme"
    assert directory.tenant_of([("x-api-key", KEY)]).name == "acme"
    for client, problem in [([], "is missing"), (said("wrong-key"), "is not known")]:
        with pytest.raises(RequestError, match=problem) as caught:
            directory.tenant_of(client)
        assert caught.value.code == Code.UNAUTHENTICATED
        assert "wrong-key" not in caught.value.message


def test_a_file_that_cannot_be_used_ends_the_start(tmp_path):
    path = tmp_path / "tenants.toml"
    with pytest.raises(ValueError, match=r"tenants: .*tenants\.toml"):
        TenantDirectory.of_file(path)
    path.write_text("[acme]\nkeys = 3")
    with pytest.raises(ValueError, match=r"tenants: .*acme.keys"):
        TenantDirectory.of_file(path)


async def test_a_changed_file_counts_and_a_broken_one_changes_nothing(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(toml(acme=record()))
    directory, source = TenantDirectory.of_file(path), TenantFile(path)
    await directory.refresh(source)
    path.write_text(toml(zeta=record(OTHER)))
    await directory.refresh(source)
    assert directory.tenant_of(said(OTHER)).name == "zeta"
    with pytest.raises(RequestError):
        directory.tenant_of(said(KEY))
    with structlog.testing.capture_logs() as logs:
        path.write_text(f"[acme]\nkeys = ['{KEY}']")
        await directory.refresh(source)
        path.unlink()
        await directory.refresh(source)
    assert directory.tenant_of(said(OTHER)).name == "zeta"
    assert directory.failures == 2
    assert "acme.keys[0]" in logs[0]["problem"]
    assert KEY not in str(logs)


async def test_tenants_in_redis_are_followed_and_outlive_it(redis_server):  # noqa: F811
    redis = Redis.from_url(redis_server.url)
    servers = RedisShards(redis_server.url)
    source = TenantsInRedis(servers, "fleet")
    directory = TenantDirectory(source)
    with pytest.raises(RequestError) as caught:
        directory.tenant_of(said(KEY))
    assert caught.value.code == Code.UNAVAILABLE
    await redis.hset(tenants_key("fleet"), "acme", json.dumps(record(concurrency=2)))
    await directory.refresh(source)
    assert directory.tenant_of(said(KEY)).limits.concurrency == 2
    redis_server.stop()
    await directory.refresh(source)
    assert directory.tenant_of(said(KEY)).name == "acme"
    assert directory.failures == 1
    await redis.aclose()
    await servers.aclose()
