"""All comparisons in one run: what it shows, draws and says at the end."""

import json

import pytest
from typer.testing import CliRunner

from bench.figures import Goal
from kvmesh.cli.bench import suite
from kvmesh.cli.bench.report import Report
from kvmesh.cli.main import app

GROWTH = {
    "output_tokens": [32, 64],
    "seconds_without_cache": [1.0, 3.0],
    "seconds_with_cache": [0.5, 1.0],
}
WAYS = {
    name: {"output_tokens_per_s": rate, "ttft_p50_s": 1 / rate}
    for name, rate in (("no KV cache", 5.0), ("kvmesh", 100.0))
}
WASTE = [
    {"block_size": size, "wasted": size / 3000, "running": 1000 / size} for size in (8, 16, 2048)
]
SIDE = {
    "light": {"latency": {"ttft": {"p50": 0.2}}},
    "heavy": {"latency": {"ttft": None}, "throughput": {"requests_per_s": 3.0}},
}
DATA = {
    "memory": {"results": WASTE},
    "baselines": {"growth": GROWTH, "ways": WAYS},
    "prefix": {"loads": {"caching on": SIDE, "caching off": SIDE}},
    "paging": {
        "decode": {8: 0.03, 16: 0.02},
        "ways_back": [{"tokens": n, "swapped": n / 1e6, "computed": n / 1e3} for n in (64, 128)],
    },
    "quant": {},
}


def part(name, value, **fields):
    goal = Goal(f"figure of {name}", value, 1.0)
    report = Report(
        title=name, columns=("", "x"), rows=[[name, "1"]], data=DATA[name], goals=[goal]
    )
    return suite.Part(name, lambda _settings: report, **fields)


@pytest.fixture
def parts(monkeypatch):
    made = [part(name, 0.5) for name in ("memory", "baselines", "prefix", "paging")]
    made.append(part("quant", 2.0, wanted=lambda settings: not settings.quick))
    monkeypatch.setattr(suite, "PARTS", made)


def run(*arguments):
    return CliRunner().invoke(app, ["bench", "all", *map(str, arguments)])


def test_every_part_is_shown_and_drawn(parts, tmp_path):
    result = run("--quick", "--plots", tmp_path)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "baselines.png", "growth.png", "memory.png", "paging.png", "prefix.png",
    ]  # fmt: skip
    assert "figure of memory" in result.output
    assert "quant" not in result.output


def test_a_missed_goal_of_any_part_is_missed(parts):
    result = run()
    assert result.exit_code == 2
    assert "MISSED: figure of quant" in result.output


def test_one_json_object_has_them_all(parts):
    found = json.loads(run("--json", "--quick").stdout)
    assert found["memory"] == {"results": WASTE}
    assert [goal["met"] for goal in found["goals"]] == [True] * 4
    assert found["command"].startswith("kvmesh")


def test_other_engines_are_asked_for_with_their_directory(tmp_path):
    names = [part.name for part in suite.PARTS if part.wanted(suite.Settings(False, None, None))]
    assert names == ["memory", "baselines", "prefix", "paging", "quant"]
    assert suite.PARTS[-1].wanted(suite.Settings(True, None, tmp_path))
    result = run("--peers", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "--peers" in result.output
