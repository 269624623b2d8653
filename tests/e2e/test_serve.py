"""`kvmesh serve` with the real model: it answers, survives its nodes, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from kvmesh.cli.ask import ask
from kvmesh.cli.ports import free_ports
from kvmesh.client import Client
from tests.e2e.serving import Serving, in_session, poll

pytestmark = pytest.mark.timeout(300)

KVMESH = (sys.executable, "-m", "kvmesh.cli")
OPTIONS = ("--max-tokens", "5", "--raw")
HANDBOOK = "The keeper lights the lamp at sunset and writes the weather into the blue log. " * 8


def generate(fleet, prompt, max_tokens=4):
    with Client(fleet.grpc_target, timeout=60) as client:
        return ask(client, prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def complete(fleet, prompt):
    body = {"model": "smollm2-135m-instruct", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{fleet.http_url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_it_answers_over_grpc_and_http(fleet):
    assert generate(fleet, "The capital of France is", max_tokens=8).completion_tokens == 8
    assert complete(fleet, "The capital of France is")["usage"]["completion_tokens"] == 4


def test_the_router_says_where_its_nodes_tell_their_metrics(fleet):
    def read(url):
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()

    told = read(f"{fleet.http_url}/metrics")
    urls = re.findall(r'kvmesh_router_node_info{.*metrics="(http://127[^"]+)",node="node-', told)
    assert len(urls) == 2
    for url in urls:
        assert url in fleet.log()
        assert "kvmesh_node_info{" in read(url)


def test_the_second_request_with_a_prefix_finds_it_cached(fleet):
    prefix = f"{time.time_ns()}: {HANDBOOK}"
    first = generate(fleet, f"{prefix} Who lights the lamp?")
    second = generate(fleet, f"{prefix} What colour is the log?")
    assert first.cached_tokens == 0
    assert second.cached_tokens > second.prompt_tokens / 2
    assert second.node == first.node
    assert second.reason.startswith("longest prefix")


def test_the_generate_command_streams_text_and_tells_what_happened(fleet):
    result = subprocess.run(
        [*KVMESH, "generate", "--router", fleet.grpc_target, *OPTIONS, "One, two, three,"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "four" in result.stdout
    assert "node-" in result.stderr
    assert "first token" in result.stderr


def test_a_killed_node_is_not_missed_and_comes_back(fleet):
    prefix = f"{time.time_ns()}: {HANDBOOK}"
    victim = generate(fleet, prefix).node
    os.kill(fleet.pid_of(victim), signal.SIGKILL)
    started = time.monotonic()
    answer = generate(fleet, prefix, max_tokens=1)
    assert time.monotonic() - started < 2
    assert answer.node != victim
    poll(fleet.all_up, 60)
    again = generate(fleet, f"{time.time_ns()} again")
    assert again.completion_tokens == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_no_process_is_left(number, code):
    with Serving("--kv-cache-bytes", str(64 << 20), "--max-model-len", "1024", nodes=1) as serving:
        assert len(serving.left()) == 3  # serve, router, node
        assert serving.stop(number) == code
        poll(lambda: not serving.left(), 15)


def test_a_node_that_cannot_start_is_explained_and_nothing_is_left():
    # The pool does not hold one request of the model's context length.
    options = ("--nodes", "1", "--num-blocks", "2")
    ports = [str(port) for port in free_ports("127.0.0.1", 2)]
    process = subprocess.Popen(
        [*KVMESH, "serve", *options, "--http-port", ports[0], "--grpc-port", ports[1]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "node-0 ended with exit code" in errors
    assert "max_model_len" in errors
    assert in_session(process.pid) == []
