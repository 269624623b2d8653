from kvmesh.addresses import host_and_port
from kvmesh.cli.serve_config import ServeConfig


def test_an_ipv6_address_is_in_brackets():
    assert host_and_port("::1", 80) == "[::1]:80"
    assert host_and_port("node-0", 80) == "node-0:80"
    served = ServeConfig(host="fd00::5", http_port=80, grpc_port=81)
    assert (served.http_url, served.grpc_target) == ("http://[fd00::5]:80", "[fd00::5]:81")
