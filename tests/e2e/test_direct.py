"""`kvmesh serve` with mutual TLS and leases: straight from the nodes, one of which is killed."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvmesh.certificates import CertificateFiles
from kvmesh.client import Client, RequestError
from tests.certificates import Authority
from tests.e2e.serving import Serving

pytestmark = pytest.mark.timeout(300)

STORY = "Once upon a time, in a lighthouse by the sea, there lived a keeper who"
FIELDS = {"temperature": 0.8, "seed": 11, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates")).issue("router")


@pytest.fixture(scope="module")
def serving(tmp_path_factory, files):
    """In float32, so that a batch changes no token."""
    key = tmp_path_factory.mktemp("keys") / "fleet-key"
    key.write_text("0123456789abcdef" * 2)
    tls = ("--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca)
    sizes = ("--kv-cache-bytes", 128 << 20, "--max-model-len", 1024, "--dtype", "float32")
    options = map(str, ("--fleet-key-file", key, *tls, *sizes))
    with Serving(*options, tls=files) as running:
        yield running


def test_a_direct_stream_says_what_the_routers_does(serving, files):
    target = serving.grpc_target
    with Client(target, tls=files) as through, Client(target, tls=files, direct=True) as direct:
        expected = through.generate(STORY, **FIELDS).result()
        done = direct.generate(STORY, **FIELDS).result()
    assert done.token_ids == expected.token_ids
    assert (done.text, done.finish_reason) == (expected.text, expected.finish_reason)
    assert done.usage.completion_tokens == 24
    assert done.usage.cached.gpu > 0


def test_requests_side_by_side_share_the_stream_of_leases(serving, files):
    """One that is wrong ends no other."""
    with Client(serving.grpc_target, tls=files, direct=True) as client:

        def one(temperature):
            try:
                return client.generate(STORY, max_tokens=4, temperature=temperature).result().text
            except RequestError as error:
                return error.field

        with ThreadPoolExecutor(16) as threads:
            texts = list(threads.map(one, [0, 0, 0, -1] * 6))
        expected = one(0)
    assert texts == [expected, expected, expected, "temperature"] * 6


def test_r13_a_direct_stream_goes_on_when_its_node_is_killed(serving, files):
    story = f"{time.time_ns()}: {STORY}"
    with Client(serving.grpc_target, tls=files, direct=True) as client:
        generation = client.generate(story, **FIELDS)
        events = iter(generation)
        texts = [next(events).text for _ in range(8)]
        victim = generation.so_far.route.node
        os.kill(serving.pid_of(victim), signal.SIGKILL)
        texts += [event.text for event in events]
        broken = generation.so_far
        assert broken.summary.node != victim
        assert (len(broken.token_ids), broken.finish_reason) == (24, "length")
        assert "".join(texts) == broken.text
        assert client.generate(story, **FIELDS).result().token_ids == broken.token_ids


def test_a_client_without_a_certificate_gets_nothing(serving, files):
    with (
        Client(serving.grpc_target, timeout=5, tls=CertificateFiles(ca=files.ca)) as stranger,
        pytest.raises(RequestError, match=r"(?i)handshake|certificate|connect|closed"),
    ):
        stranger.list_nodes()
