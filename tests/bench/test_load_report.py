"""The figures of a load, its report and comparisons: of made outcomes, and of a real fleet."""

import asyncio
import csv
import json
import re
import signal
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from bench.load.compare import compared_rows, comparison_notes, read_summary
from bench.load.config import LoadConfig
from bench.load.fleet_watch import FleetWatch, NodeSample
from bench.load.generator import Generator
from bench.load.measures import caveats
from bench.load.outcome import INTERRUPTED, OK, UNSENT, Outcome
from bench.load.plan import make_plan
from bench.load.report import write_report
from bench.load.run import Run
from bench.load.summary import SCHEMA, summarise
from bench.load.vitals import Vitals
from kvmesh.cli.main import app
from tests.bench.load_servers import http_server
from tests.router.fleet_fixture import running_fleet
from tests.router.stub_node import Script, StubNode


def run_of(outcomes, *, lags=(), cpu=0.1, samples=(), interrupted=False, **fields):
    """A run of 10 s; `outcomes` makes them from the plan's turns."""
    config = LoadConfig(requests=4, prefix_tokens=80, prompt_tokens=20, output_tokens=5, **fields)
    generator = Generator(make_plan(config), sender=None, config=config)
    generator.outcomes = outcomes(generator.plan.turns)
    vitals, fleet = Vitals(), FleetWatch(None, config)
    vitals.lags.extend(lags)
    fleet.samples = list(samples)
    started = datetime(2026, 1, 2, tzinfo=UTC)
    return Run(
        config=config, started=started, generator=generator, vitals=vitals, fleet=fleet,
        seconds=10.0, cpu=cpu, interrupted=interrupted,
    )  # fmt: skip


def answered(turn, *, planned=1.0, lag=0.0, ttft=0.5, gap=0.1, cached=0, node="a"):
    outcome = Outcome(turn, planned, sent=planned + lag, status=OK)
    for place in range(turn.output):
        outcome.frame(planned + ttft + place * gap, 1)
    outcome.ended, outcome.node, outcome.cached_tokens = outcome.last, node, cached
    return outcome


def failed(turn, status="UNAVAILABLE"):
    return Outcome(turn, 2.0, sent=2.0, ended=2.5, status=status, message="gone")


def four(turns):
    """Three answers, of which one is slow to begin, and a failure."""
    return [
        answered(turns[0], ttft=0.2, cached=80),
        answered(turns[1], ttft=0.4, cached=80, node="b"),
        answered(turns[2], ttft=3.0),
        failed(turns[3]),
    ]


def test_the_figures():
    summary = summarise(run_of(four))
    assert summary["requests"]["ok"] == 3
    ttft = summary["latency"]["ttft"]
    assert (ttft["p50"], ttft["p99"], ttft["count"]) == (pytest.approx(0.4), pytest.approx(3), 3)
    assert summary["latency"]["itl"]["p50"] == pytest.approx(0.1)
    assert summary["latency"]["itl"]["count"] == 12
    assert summary["latency"]["e2e"]["max"] == pytest.approx(3.4)
    assert summary["throughput"] == {
        "requests_per_s": 0.3,
        "output_tokens_per_s": 1.5,
        "prompt_tokens_per_s": 30.0,
    }
    assert summary["cache"] == {"prompt_tokens": 300, "cached_tokens": 160, "share": 160 / 300}
    assert summary["errors"] == {"UNAVAILABLE": {"count": 1, "example": "gone"}}
    assert summary["nodes"]["by_name"]["a"]["requests"] == 2
    assert summary["nodes"]["spread"] == pytest.approx(120 / 70)
    assert sum(summary["series"]["output_tokens"]) == 15
    assert summary["invalid"] == []
    assert caveats(summary) == []


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({}, 2),
        ({"slo_ttft": 5.0}, 3),
        ({"slo_itl": 0.05}, 0),
        ({"slo_e2e": 0.7}, 1),
    ],
)
def test_goodput_counts_what_meets_the_slo_of_all_that_ended(slo, good):
    summary = summarise(run_of(four, **slo))
    assert summary["goodput"]["requests_per_s"] == good / 10
    assert summary["goodput"]["share"] == good / 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cpu": 0.95}, "CPU"),
        ({"lags": [0.4] * 50}, "event loop lag"),
        (
            {"outcomes": lambda turns: [answered(t, lag=0.4, ttft=3.9) for t in turns]},
            "send lag p99",
        ),
        ({"outcomes": lambda turns: [answered(t, lag=0.06) for t in turns]}, "over the median"),
    ],
)
def test_a_generator_that_does_not_keep_up_makes_the_result_invalid(fields, named):
    summary = summarise(run_of(**{"outcomes": four, **fields}))
    assert named in " ".join(summary["invalid"])
    assert caveats(summary)[0].startswith("INVALID")


def test_a_closed_loop_says_so():
    summary = summarise(run_of(four, arrivals="closed"))
    assert summary["loop"] == "closed"
    assert "CLOSED LOOP" in caveats(summary)[0]
    assert "closed loop" in summary["name"]


def test_an_interrupted_run_tells_what_was_cut_off():
    def cut(turns):
        running = Outcome(turns[2], 2.0, sent=2.0, ended=3.0, status=INTERRUPTED)
        return [*four(turns)[:2], running, Outcome(turns[3], 3.0, status=UNSENT)]

    summary = summarise(run_of(cut, interrupted=True))
    assert summary["goodput"]["share"] == 1.0
    assert "1 requests cut off, 1 of 4 not sent" in caveats(summary)[0]


def test_hits_and_usage_come_from_what_nodes_say():
    samples = [
        NodeSample(time, node, 0.25, 0.5, base + queried, base + hit)
        for node, base in (("a", 1000), ("b", 0))
        for time, queried, hit in ((0.0, 0, 0), (1.0, 100, 25), (2.0, 200, 150))
    ]
    fleet = summarise(run_of(four, samples=samples))["fleet"]
    assert fleet["hit_rate"] == {"time": [1.0, 2.0], "rate": [0.25, 0.75]}
    assert fleet["nodes"]["a"]["held"] == [0.25] * 3


def test_a_report_has_all_its_parts(tmp_path):
    samples = [NodeSample(t, "a", 0.2, 0.1, 100 * t, 50 * t) for t in range(5)]
    write_report(run_of(four, samples=samples), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fleet.png", "latency.png", "report.html", "requests.csv", "result.json", "throughput.png",
    ]  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["OK"] * 3 + ["UNAVAILABLE"]
    assert float(rows[2]["ttft_s"]) == 3.0
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "no coordinated omission" in page
    assert "UNAVAILABLE" in page


def test_a_report_of_nothing_is_a_report(tmp_path):
    def unsent(turns):
        return [Outcome(turn, 0.0, status=UNSENT) for turn in turns]

    summary = write_report(run_of(unsent, interrupted=True), tmp_path)
    assert summary["latency"] == {"ttft": None, "itl": None, "e2e": None}
    page = (tmp_path / "report.html").read_text()
    assert "INTERRUPTED" in page
    assert "No plot of KV usage" in page


def test_what_is_read_is_escaped(tmp_path):
    write_report(run_of(lambda turns: [failed(turns[0], "<script>")]), tmp_path)
    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_comparing_says_what_became_better_and_what_differs(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    write_report(run_of(four), paths[0])
    write_report(
        run_of(lambda turns: [answered(t, ttft=0.1) for t in turns], cpu=0.95, seed=3), paths[1]
    )
    a, b = (read_summary(path / "result.json") for path in paths)
    rows = {row[0]: row[1:] for row in compared_rows(a, b)}
    assert rows["TTFT p50"] == ["400.0 ms", "100.0 ms", "0.25× better"]
    assert rows["answered"][2] == "1.33× better"
    assert rows["ITL p50"][2] == "1.00×"
    notes = comparison_notes(a, b)
    assert "NOT THE SAME LOAD: seed 0 and 3" in notes
    assert any(note.startswith("b: INVALID") for note in notes)
    result = CliRunner().invoke(
        app, ["load", "--compare", *(str(path / "result.json") for path in paths)]
    )
    assert result.exit_code == 0
    assert "0.25× better" in result.output


@pytest.mark.parametrize("text", ["{}", "[", json.dumps({"schema": SCHEMA, "config": []})])
def test_comparing_with_what_is_no_result_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    result = CliRunner().invoke(app, ["load", "--compare", *[str(tmp_path / "x.json")] * 2])
    assert result.exit_code == 1
    assert "x.json" in result.output
    assert isinstance(result.exception, SystemExit)


LOAD = ("--token-ids", "32:250", "--prefix-tokens", "64", "--output-tokens", "4", "--max-lag", "5")


async def kvmesh_load(*arguments, stop_after=None):
    """Exit code and output of the command."""
    command = (sys.executable, "-m", "kvmesh.cli", "load", *LOAD, *map(str, arguments))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    if stop_after is not None:
        await stop_after()
        process.send_signal(signal.SIGTERM)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_a_fleet_under_load(tmp_path, transport):
    script = Script(prefill=0.3)  # beside which the lag of a busy machine is small
    nodes = StubNode("node-0", script=script), StubNode("node-1", script=script)
    async with running_fleet(*nodes) as fleet:
        target = {"grpc": [fleet.target], "http": [fleet.http_url, "--fleet", fleet.target]}
        code, output = await kvmesh_load(
            "--target", *target[transport], "--workload", "chat", "--rate", "40", "--think", "0",
            "--requests", "40", "--out", tmp_path,
        )  # fmt: skip
    assert code in (0, 2), output  # 2: the machine is too busy for figures to be trusted
    summary = read_summary(tmp_path / "result.json")
    assert code == (2 if summary["invalid"] else 0)
    assert summary["requests"]["ok"] == 40
    assert summary["requests"]["short"] == 0
    assert summary["cache"]["cached_tokens"] > 0
    by_name = summary["nodes"]["by_name"]
    assert sum(node["requests"] for node in by_name.values()) == len(nodes[0].requests) + len(
        nodes[1].requests
    )
    assert set(summary["fleet"]["nodes"]) == {"node-0", "node-1"}
    assert re.search(r"requests answered +│ +40 ", output)
    assert str(tmp_path / "report.html") in output


async def test_an_interrupted_load_still_writes_its_report(tmp_path):
    node = StubNode("node-0", script=Script(per_token=0.2))
    async with running_fleet(node) as fleet:

        async def until_some_answers():
            while node.frames < 24:  # noqa: ASYNC110  # the node has no event for it
                await asyncio.sleep(0.05)

        code, output = await kvmesh_load(
            "--target", fleet.target, "--rate", "5", "--requests", "500", "--out", tmp_path,
            stop_after=until_some_answers,
        )  # fmt: skip
    assert code == 130, output
    assert "INTERRUPTED" in output
    summary = read_summary(tmp_path / "result.json")
    assert summary["interrupted"]
    assert summary["requests"]["ok"] >= 1
    assert summary["requests"]["unsent"] > 400
    assert (tmp_path / "report.html").exists()


async def test_a_load_that_is_stopped_before_it_began_says_nothing(tmp_path):
    connected, release = asyncio.Event(), asyncio.Event()

    async def never_answer(_reader, writer):
        connected.set()
        await release.wait()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        code, output = await kvmesh_load(
            "--target", f"http://127.0.0.1:{port}", "--out", tmp_path / "none",
            stop_after=connected.wait,
        )  # fmt: skip
        release.set()
    assert code == 130
    assert "Traceback" not in output
    assert not (tmp_path / "none").exists()


async def test_a_place_where_no_report_can_be_written_is_named_before_the_load(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "report", "/proc/report"):
        async with http_server() as (url, asked):
            code, output = await kvmesh_load("--target", url, "--out", place)
        assert code == 1
        assert "--out" in output
        assert not asked


async def test_a_generator_that_cannot_keep_up_exits_with_2(tmp_path):
    async with http_server() as (url, _):
        code, output = await kvmesh_load(
            "--target", url, "--rate", "50", "--requests", "20", "--out", tmp_path,
            "--max-cpu", "0.0001",
        )  # fmt: skip
    assert code == 2, output
    assert "INVALID" in output
    assert json.loads((tmp_path / "result.json").read_text())["invalid"]
