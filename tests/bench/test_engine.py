"""What the engine benchmark asks for, and what it makes of the answers."""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE
from threading import Thread

import pytest

from bench import workloads
from bench.contestants import Served
from bench.engine import OURS, RIVAL, Comparison
from bench.figures import Goal, Spread
from bench.openai_client import OpenAiClient
from bench.timing import Timing
from bench.usage import family

CACHED = 5


class Server(ThreadingHTTPServer):
    request_queue_size = 64


class Answers(BaseHTTPRequestHandler):
    """Answers as OpenAI does; every answer's tokens say their own number."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        count, chat = body["max_tokens"], "messages" in body
        for i in range(count):
            piece = {"delta": {"content": f"{i} "}} if chat else {"text": f"{i} "}
            self.event({"choices": [piece]})
        usage = {
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": CACHED},
        }
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def served():
    with Server(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        client = OpenAiClient(f"http://127.0.0.1:{server.server_port}", "any")
        yield Served("any", client, [])
        server.shutdown()
        thread.join()


def test_every_measure_is_taken_by_some_workload(served):
    found = {}
    for workload in workloads.WORKLOADS:
        found |= workload(served, 0)
    names = {measure.name for measure in workloads.MEASURES}
    # The server is not ours to look into.
    assert set(found) == {name for name in names if not name.startswith(("cpu", "memory"))}
    assert all(value > 0 for value in found.values())
    assert found["chat_cached"] == workloads.USERS * workloads.TURNS * CACHED


def test_all_engines_get_the_same_prompts_and_none_twice():
    class Recorder:
        name = "recorder"

        def __init__(self):
            self.prompts = []

        def complete(self, prompts, max_tokens):
            self.prompts += prompts
            return served_nothing

        def cpu(self):
            return None

    served_nothing = [Timing(0.0, 1.0, 2.0, 3, 0)]
    first, second, later = Recorder(), Recorder(), Recorder()
    for recorder, seed in ((first, 0), (second, 0), (later, 1)):
        workloads.decode(256)(recorder, seed)
        workloads.first_token(recorder, seed)
    assert first.prompts == second.prompts
    assert first.prompts[1][:1024] == first.prompts[2][:1024]
    assert first.prompts[1] != first.prompts[2]
    assert not {tuple(p) for p in first.prompts} & {tuple(p) for p in later.prompts}


def test_usage_of_a_process_counts_its_children():
    spin = "import time; x = bytearray(30 << 20); t = time.time(); "
    spin += "[0 for _ in iter(lambda: time.time() - t > 0.5, True)]; print(1, flush=True); input()"
    command = f"{sys.executable} -c '{spin}' ; true"
    with subprocess.Popen(["sh", "-c", command], stdout=PIPE, stdin=PIPE) as shell:
        shell.stdout.readline()
        served = Served("any", OpenAiClient("http://127.0.0.1:1", "any"), [shell.pid])
        assert served.memory() > 30 << 20
        assert served.cpu() > 0.1
        for pid in reversed(family(shell.pid)):
            os.kill(pid, signal.SIGKILL)


def test_goals_compare_medians_with_the_rival_and_the_bound():
    def of(decode):
        return {"decode_256": Spread.of((decode, 1.0, 99.0))}

    comparison = Comparison({OURS: of(30.0), RIVAL: of(10.0)}, 2e9, 40_000_000)
    assert comparison.bound == 50.0
    assert comparison.ratio("decode_256", RIVAL) == 3.0
    assert comparison.ratio("memory", RIVAL) is None
    bound, rival = comparison.goals
    assert (bound.value, bound.met) == (0.6, False)
    assert (rival.value, rival.met) == (3.0, True)


@pytest.mark.parametrize(("value", "at_most", "met"), [(1, True, True), (2, True, False)])
def test_a_goal_has_a_side(value, at_most, met):
    assert Goal("x", value, 1.5, at_most).met is met
    assert Goal("x", value, 1.5, not at_most).met is not met
