"""`kvmesh bench` commands that take minutes, with little to measure: they end with their table."""

from functools import partial

import pytest
from typer.testing import CliRunner

from bench import kernels, proxy_cost, routing_cost, scrape, step
from kvmesh.cli.main import app

MISSED = 2  # exit code: so little says nothing of speed

SHORT = {
    "scrape": {scrape: {"STREAMS": 2, "OUTPUT": 32, "OFTEN": 0.01}},
    "step": {step: {"BATCH": 4, "PROMPT": 32, "OUTPUT": 8, "SMALL": (8, 100), "LARGE": (16, 200)}},
    "kernels": {
        kernels: {
            "LAYERS": 2,
            "DECODES": ((1, 64), (2, 64)),
            "GOAL_DECODES": ((2, 64),),
            "QUANTISED_SHAPE": (1, 64),
            "TOKENS": (1,),
            "STEPS": (1,),
            "READ_BYTES": 1 << 20,
        }
    },
    "router": {
        routing_cost: {
            "BLOCKS": (4, 8),
            "ROUND": 1000,
            "measure_routing_cost": partial(routing_cost.measure_routing_cost, entries=1000),
        },
        proxy_cost: {"STREAMS": 4, "LONG": 16, "LEASES": 8, "LEASES_AT_ONCE": 4, "WARM": 4},
    },
}


@pytest.mark.parametrize(
    ("name", "arguments", "row"),
    [
        ("scrape", ["--repetitions", "1"], "every 5 s"),
        ("step", ["--repetitions", "1"], "nobody waits"),
        ("kernels", ["--device", "cpu", "--repetitions", "1"], "linears, 1 tokens"),
        ("router", ["--quick"], "a proxied message"),
    ],
)
def test_a_command_shows_what_it_measured(smollm2, monkeypatch, name, arguments, row):
    for module, amounts in SHORT[name].items():
        for constant, amount in amounts.items():
            monkeypatch.setattr(module, constant, amount)
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["bench", name, *arguments])
    assert result.exit_code in (0, MISSED), result.output
    assert row in result.output
