"""Commands of README and guide that are not run as they stand: the one place that knows them.

Each is known by `in_a_line`. A command that is in no table is run as it is.
"""

from typing import NamedTuple

CI = ".ci/run"
SUITE = "kvmesh/cli/bench/suite.py"
SHORT = "tests/bench/test_bench_commands.py"

LOAD = "kvmesh load --target http://127.0.0.1:8000"
TIMED = f"{LOAD} --requests 8 --rate 4 --prefix-tokens 256"

QUICK = {
    # Less of the same, run here.
    "make load-test": (
        "make -o install load-test ARGS='--target 127.0.0.1:50051 --requests 4 --output-tokens 4'"
    ),
    f"{LOAD} --fleet 127.0.0.1:50051 --workload chat --rate 2": (
        f"{LOAD} --fleet 127.0.0.1:50051 --workload chat --rate 8 --requests 4 --think 0.1"
    ),
    f"{TIMED} --out kvmesh-load/shared": f"{TIMED} --out kvmesh-load/shared --output-tokens 4",
    f"{TIMED} --workload random --out kvmesh-load/random": (
        f"{TIMED} --workload random --out kvmesh-load/random --output-tokens 4"
    ),
    "kvmesh bench ttft": "kvmesh bench ttft --repetitions 1",
    "kvmesh bench memory": "kvmesh bench memory --requests 50",
    "kvmesh bench memory --requests 300": "kvmesh bench memory --requests 50",
    "kvmesh bench routing": "kvmesh bench routing --trace trace.jsonl --requests 20",
    "kvmesh sim --trace mooncake_conversation.jsonl --nodes 100 --requests 20000"
    " --policy prefix-aware": "kvmesh sim --trace trace.jsonl --nodes 10 --requests 20",
    # The fleet at the default addresses, which may be somebody else's here.
    "kvmesh health": "kvmesh health 127.0.0.1:50051",
    "kvmesh doctor": "kvmesh doctor --router http://127.0.0.1:8000",
    # Servers that would go on for ever, whose ports the reader chooses.
    "kvmesh node": "kvmesh node --help",
    "kvmesh router --node host:port ...": "kvmesh router --node host:port --help",
}


ALSO_GOOD = {
    # Exit codes beside 0, by the command's beginning, and what it shows with them.
    "kvmesh bench": {2: "MISSED"},  # a goal, by a busy machine
    "kvmesh load": {2: "INVALID"},  # the same
    "kvmesh doctor": {1: "advice", 2: "serious"},
}


class Place(NamedTuple):
    file: str  # from the root
    has: str  # a part of it


ELSEWHERE = {
    # Many minutes, or more than this machine must have: where it is run instead.
    "make install": [Place(CI, "make install")],
    "make demo": [Place(CI, " make demo")],
    "make test": [Place(CI, "make test ARGS=")],
    "make serve": [
        Place("Makefile", "$(BIN)/kvmesh serve $(ARGS)"),
        Place("tests/e2e/serving.py", '"serve", "--nodes"'),
    ],
    "make bench": [
        Place("Makefile", "$(BIN)/kvmesh bench all $(if $(QUICK),--quick)"),
        Place(CI, "bench all --quick"),
    ],
    "make bench QUICK=1": [
        Place("Makefile", "$(BIN)/kvmesh bench all $(if $(QUICK),--quick)"),
        Place(CI, "bench all --quick"),
    ],
    "make soak-node": [
        Place("Makefile", "$(BIN)/kvmesh bench soak"),
        Place("tests/bench/test_soak.py", "soak(WARM_UP"),
    ],
    "docker compose up": [Place(CI, "make compose-test"), Place("Makefile", "compose/test.sh")],
    "docker compose up --detach --wait": [
        Place(CI, "make compose-test"),
        Place("tests/compose/project.py", 'compose("up", "--detach"'),
    ],
    "docker compose -f compose/compose.yaml -f compose/compose.tls.yaml up": [
        Place(CI, "make compose-test"),
        Place("tests/compose/test_variants.py", 'Project("tls"'),
    ],
    "grpcurl -plaintext 127.0.0.1:50051 list": [
        Place("tests/router/test_fleet_service.py", "def test_reflection_tells"),
    ],
    "kvmesh bench outage": [Place("tests/bench/test_outage.py", '"bench", "outage"')],
    "kvmesh bench prefix": [Place(CI, "bench all --quick"), Place(SUITE, 'Part("prefix"')],
    "kvmesh bench prefix --trace FILE": [
        Place(CI, "bench all --quick"),
        Place("tests/bench/test_load_prefix.py", "def test_routing_is_compared"),
    ],
    "kvmesh bench baselines": [Place(CI, "bench all --quick"), Place(SUITE, 'Part("baselines"')],
    "kvmesh bench paging": [Place(CI, "bench all --quick"), Place(SUITE, 'Part("paging"')],
    "kvmesh bench engine": [Place("tests/bench/test_engine.py", "def test_every_measure_is_taken")],
    "kvmesh bench scrape": [Place(SHORT, '"scrape"')],
    "kvmesh bench sim": [Place(CI, "bench sim --requests 8")],
    "kvmesh bench step": [Place(SHORT, '"step"')],
    "kvmesh bench kernels": [Place(SHORT, '"kernels"')],
    "kvmesh bench router": [Place(SHORT, '"router"')],
    "kvmesh bench quant": [Place("tests/parity/test_kv_quality.py", "quant.measure_quant")],
}


class Typed(NamedTuple):
    """What a person at a terminal does."""

    waits_for: str
    keys: str
    sees: str
    leaves_by: str


INTERACTIVE = {
    "kvmesh chat": Typed("› ", "Say yes.\n", "first token", "/quit\n"),
    "kvmesh top": Typed("node-0", "", "node-1", "q"),
}

ALSO_IN_TABLES = (QUICK, ELSEWHERE, INTERACTIVE)
