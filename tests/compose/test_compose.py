"""The fleet of compose.yaml, on a real engine: see `make compose-test`."""

import threading

import httpx
import pytest

from tests.compose.asking import (
    all_up,
    cached,
    chat,
    check_that_the_second_request_hits,
    indexed,
    scraped,
)
from tests.compose.project import START, WITHOUT, Project
from tests.compose.test_dashboards import DASHBOARDS
from tests.compose.test_rules import RULES
from tests.e2e.serving import poll

pytestmark = [pytest.mark.compose, pytest.mark.timeout(2400)]

LONG = {"prompt": "Count up: one, two, three,", "max_tokens": 150, "temperature": 0}


ADMIN = {"authorization": "Bearer a-key-of-this-test"}


@pytest.fixture(scope="module")
def project(images, tmp_path_factory):
    keys = tmp_path_factory.mktemp("admin") / "keys"
    keys.write_text(ADMIN["authorization"].removeprefix("Bearer "))
    with Project(KVMESH_ADMIN_KEYS=keys) as project:
        yield project


@pytest.fixture
def client(project):
    with project.client() as client:
        yield client


def test_both_nodes_are_found(project):
    poll(lambda: all_up(project, 2), 60)


def test_the_second_request_with_the_same_prefix_hits(project):
    check_that_the_second_request_hits(project)


def test_an_admin_key_opens_the_page(project):
    def ask(headers):
        url = f"{project.http_url}/ui/state"
        return httpx.get(url, headers=headers, timeout=30, trust_env=False)

    assert ask({}).status_code == 403
    reply = ask(ADMIN)
    assert reply.status_code == 200, reply.text
    assert len(reply.json()["nodes"]) == 2


def test_a_third_node_is_found(project):
    project.up("--scale", "cache-node=3", "--no-recreate")
    poll(lambda: all_up(project, 3), START)


def test_a_stream_goes_on_when_its_node_is_killed(project, client):
    undisturbed = client.generate(**LONG).result().text
    stream = client.generate(**LONG)
    events = iter(stream)
    for _ in range(5):
        next(events)
    killed = stream.so_far.route.node  # a node has the name of its container
    project.docker("kill", killed)
    done = stream.result()
    assert done.text == undisturbed
    assert done.summary.node != killed
    poll(lambda: all_up(project, 2), 30)


def test_requests_go_on_while_redis_starts_again(project):
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(chat(project, "What is the loudest?"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        project.compose("restart", "redis")
        before = len(answers)
        poll(lambda: len(answers) >= before + 2, 60)
    finally:
        stop.set()
        asking.join()
    poll(lambda: indexed(project), 60)
    assert cached(chat(project, "What is the smallest?")) > 200


def test_prometheus_scrapes_every_process(project):
    poll(lambda: scraped(project) == (1, 2), 60)


def test_the_rules_are_loaded_and_alerts_reach_the_manager(project):
    def get(path):
        return httpx.get(f"{project.prometheus_url}/api/v1/{path}", trust_env=False).json()["data"]

    assert sum(len(group["rules"]) for group in get("rules")["groups"]) == len(RULES)
    poll(lambda: len(get("alertmanagers")["activeAlertmanagers"]) == 1, 60)


@pytest.mark.skipif("grafana" in WITHOUT, reason="Grafana's image cannot be had here")
def test_grafana_shows_its_dashboards_to_everybody_and_asks_prometheus(project):
    def get(path, **query):
        return httpx.get(f"{project.grafana_url}/api/{path}", params=query, trust_env=False).json()

    found = {each["uid"] for each in get("search", type="dash-db")}
    assert found == {board["uid"] for board in DASHBOARDS.values()}
    proxied = "datasources/proxy/uid/prometheus/api/v1/query"
    poll(lambda: get(proxied, query="kvmesh_node_info")["data"]["result"], 60)


def test_images_can_send_traces(project):
    for service in ("router", "cache-node"):
        project.compose("exec", "-T", service, "python", "-c", "import kvmesh.tracing")


def test_a_container_writes_nowhere_but_to_its_volume(project):
    for service in ("router", "cache-node"):
        container = project.containers(service)[0]
        shown = project.docker("inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", container)
        assert shown.strip() == "true"
        assert project.docker("exec", container, "id", "-u").strip() == "10001"
