"""compose.tls.yaml and compose.cluster.yaml on a real engine; that all files are right as files."""

import json
import re

import httpx
import pytest

from kvmesh.certificates import CertificateFiles
from kvmesh.client import Client
from kvmesh.errors import RequestError
from kvmesh.v1 import fleet_pb2
from tests.compose.asking import all_up, check_that_the_second_request_hits, scraped
from tests.compose.project import ROOT, Project, run, with_variant
from tests.e2e.serving import poll

VARIANTS = ("tls", "cluster", "gpu")

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def tls(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make = ("env", f"KVMESH_TLS_DIR={folder}", "compose/tls/make.sh", "another.name")
    run(*make, timeout=60)
    client = CertificateFiles(folder / "client.pem", folder / "client.key", folder / "ca.pem")
    services = ("router", "prometheus")
    with Project("tls", services, client, nodes=1, KVMESH_TLS_DIR=folder) as project:
        yield project


@pytest.fixture(scope="module")
def cluster(images):
    with Project("cluster", ("router",), nodes=1) as project:
        yield project


def test_tls_nodes_are_found_and_the_cache_works(tls):
    poll(lambda: all_up(tls, 1), 60)
    check_that_the_second_request_hits(tls)


def test_tls_prometheus_reaches_every_process(tls):
    assert poll(lambda: scraped(tls) == (1, 1), 60)


def test_tls_who_shows_no_certificate_gets_no_answer(tls):
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{tls.http_url}/v1/models", verify=False, trust_env=False)
    stranger = CertificateFiles(ca=tls.tls.ca)
    for shown in (None, stranger):
        with Client(tls.grpc_target, timeout=10, tls=shown) as client, pytest.raises(RequestError):
            client.list_nodes()


def test_cluster_nodes_are_found_and_the_cache_works(cluster):
    poll(lambda: all_up(cluster, 1), 60)
    check_that_the_second_request_hits(cluster)


def modes(project):
    """Of the index of each node, at the router."""
    with project.client() as client:
        return {fleet_pb2.IndexMode.Name(node.index_mode) for node in client.list_nodes()}


def slots_served(project):
    """By the whole cluster, as its first server knows."""
    ask = "REDISCLI_AUTH=$(cat /run/secrets/redis-password) redis-cli --user cluster cluster info"
    told = project.compose("exec", "-T", "redis", "sh", "-c", ask)
    return int(re.search(r"cluster_slots_ok:(\d+)", told)[1])


def test_cluster_is_whole_again_when_a_server_has_started_again(cluster):
    assert modes(cluster) == {"INDEX_MODE_EXACT"}
    cluster.compose("restart", "--timeout", "2", "redis-2")
    poll(lambda: slots_served(cluster) == 16384 and modes(cluster) == {"INDEX_MODE_EXACT"}, 60)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_service_fills_the_models_volume_before_all_others(variant):
    """Two that do so at once are a fault of Docker's, now and then."""
    services = services_of(variant)
    first = services.pop("models")
    users = {
        name: service
        for name, service in services.items()
        if any(volume.get("source") == "models" for volume in service.get("volumes", ()))
    }
    assert "cache-node" in users
    for service in users.values():
        assert service["depends_on"]["models"]["condition"] == "service_completed_successfully"
        assert service["image"] == first["image"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_our_images_are_not_asked_of_a_registry(variant):
    """Where nobody has pushed them, somebody may: they are built."""
    own = {
        name: service
        for name, service in services_of(variant, "--profile", "tools").items()
        if service["image"].startswith("kvmesh/")
    }
    assert set(own) == {"router", "cache-node", "models", "tools"}
    assert {service["pull_policy"] for service in own.values()} == {"never"}


def services_of(variant, *options):
    command = ("docker", "compose", *with_variant(variant), *options, "config", "--format=json")
    return json.loads(run(*command, timeout=60))["services"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_file_is_right_as_a_file(variant):
    run("docker", "compose", *with_variant(variant), "config", "--quiet", timeout=60)
    head = (ROOT / "compose" / f"compose.{variant}.yaml").read_text().partition("services:")[0]
    assert f"docker compose {' '.join(with_variant(variant))} up" in head
