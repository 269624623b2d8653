"""What an operator may write to say where the shared index lies."""

import subprocess
import sys

import pytest

from cache_node.config import NodeConfig
from kvmesh.cli.serve_config import ServeConfig
from prefix_index.redis_url import Address, RedisUrl
from router.config import RouterConfig


@pytest.mark.parametrize(
    ("url", "seeds", "first"),
    [
        ("redis://a", [("a", 6379)], "redis://a:6379/0"),
        ("redis://a:1/3", [("a", 1)], "redis://a:1/3"),
        ("redis://[::1]:7/", [("::1", 7)], "redis://[::1]:7/0"),
        ("redis://u:p%40@a:1,b:2,10.0.0.3", [("a", 1), ("b", 2), ("10.0.0.3", 6379)],
         "redis://u:p%40@a:1/0"),
        ("rediss://:pw@a?ssl_check_hostname=false", [("a", 6379)],
         "rediss://:pw@a:6379/0?ssl_check_hostname=false"),
    ],
)  # fmt: skip
def test_a_url_is_read_and_told_again_for_each_server(url, seeds, first):
    read = RedisUrl.parse(url)
    assert read.seeds == tuple(Address(*seed) for seed in seeds)
    assert read.at(read.seeds[0]) == first
    assert RedisUrl.parse(read.at(Address("z", 9))).seeds == (Address("z", 9),)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("foo", "redis://"),
        ("http://a:1", "redis://"),
        ("redis://", "host"),
        ("redis://a:1,,b:2", "host"),
        ("redis://a:99999", "host"),
        ("redis://a:0", "host"),
        ("redis://a b", "host"),
        ("redis://a/x", "NUMBER"),
        ("redis://a/1/2", "NUMBER"),
        ("redis://a?socket_timeout=3", "socket_timeout"),
        ("redis://a?ssl_certfile=/x", "ssl_certfile"),
        ("rediss://a?ssl_ca_certs=/no/such/file", "/no/such/file"),
        ("redis://a?password_file=/no/such/file", "/no/such/file"),
    ],
)
@pytest.mark.parametrize(
    "config",
    [NodeConfig, ServeConfig, lambda **fields: RouterConfig(nodes=("a:1",), **fields)],
    ids=["node", "serve", "router"],
)
def test_what_is_wrong_is_refused_by_every_configuration(config, url, problem):
    with pytest.raises(ValueError, match=r"^redis_url: .*" + problem):
        config(redis_url=url)


def test_no_message_shows_a_password():
    for url in ("redis://u:hunter2@a b", "redis://u:hunter2@a/x", "redis://u:hunter2", "x:hunter2"):
        with pytest.raises(ValueError, match="redis_url") as caught:
            NodeConfig(redis_url=url)
        assert "hunter2" not in str(caught.value)


def test_shards_have_bounds():
    for config in (NodeConfig, ServeConfig):
        with pytest.raises(ValueError, match=r"^redis_shards: "):
            config(redis_shards=0)


def test_a_wrong_url_is_told_before_the_model_is_looked_at():
    command = [sys.executable, "-m", "kvmesh.cli", "node", "--redis", "foo", "--model", "/nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "redis_url" in ended.stderr
    assert "nowhere" not in ended.stdout + ended.stderr


def test_checking_a_url_does_not_load_redis():
    code = "import sys, prefix_index.redis_url; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
