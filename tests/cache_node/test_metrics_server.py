"""A node's metrics, while others hold connections to them and say nothing."""

import socket
import ssl
import threading
import urllib.error
import urllib.request

import pytest

from cache_node import metrics_server
from cache_node.metrics_server import MetricsServer, registry_of
from kvmesh.certificates import CertificateFiles
from tests.certificates import Authority
from tests.e2e.serving import poll

PLAIN = CertificateFiles(None, None, None)


@pytest.fixture(params=["http", "https"])
def files(request, tmp_path):
    return PLAIN if request.param == "http" else Authority(tmp_path).issue("node")


def scrape(server, files, context=None):
    scheme = "http" if files is PLAIN else "https"
    url = f"{scheme}://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        return answer.status


def context_of(files, certificate=True):
    if files is PLAIN:
        return None
    context = ssl.create_default_context(cafile=files.ca)
    if certificate:
        context.load_cert_chain(files.cert, files.key)
    return context


def test_silent_clients_keep_nobody_from_scraping_nor_the_node_from_ending(files):
    server = MetricsServer(0, "127.0.0.1", registry_of(), files)
    silent = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(20)]
    assert scrape(server, files, context_of(files)) == 200
    ending = threading.Thread(target=server.close, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    for each in silent:
        each.close()


def test_silent_clients_are_left_after_a_while(files, monkeypatch, capfd):
    monkeypatch.setattr(metrics_server, "PATIENCE", 0.2)
    server = MetricsServer(0, "127.0.0.1", registry_of(), files)
    try:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", server.port), 5) as silent:
            silent.settimeout(10)
            assert silent.recv(1) == b""
        poll(lambda: threading.active_count() <= before, 10)
        with socket.create_connection(("127.0.0.1", server.port), 5) as noisy:
            noisy.sendall(b"\x00\xff" * 100)
        poll(lambda: threading.active_count() <= before, 10)
    finally:
        server.close()
    assert capfd.readouterr().err == ""


def test_over_tls_a_certificate_is_needed(tmp_path):
    files = Authority(tmp_path).issue("node")
    server = MetricsServer(0, "127.0.0.1", registry_of(), files)
    try:
        with pytest.raises((urllib.error.URLError, OSError)):
            scrape(server, files, context_of(files, certificate=False))
        assert scrape(server, files, context_of(files)) == 200
    finally:
        server.close()
