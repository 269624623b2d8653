"""`--preset`: what it sets, what goes before it, and what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cache_node.config import NodeConfig
from kvmesh.cli.flags import as_command
from kvmesh.cli.node_flags import NODE_FLAGS
from kvmesh.cli.presets import PRESETS
from kvmesh.cli.router_flags import ROUTER_FLAGS
from kvmesh.cli.serve_config import SERVE_FLAGS, ServeConfig
from router.config import RouterConfig

COMMANDS = {
    "node": (NodeConfig, NODE_FLAGS, []),
    "router": (RouterConfig, ROUTER_FLAGS, ["--node", "a:1"]),
    "serve": (ServeConfig, SERVE_FLAGS, []),
}


def run(command, *arguments, **environment):
    """The configuration, and what was said about it."""
    config_type, flags, needed = COMMANDS[command]
    given = []
    app = typer.Typer()
    app.command()(as_command(config_type, flags, given.append, presets=True))
    environment = {"KVMESH_LOG_FORMAT": "console"} | environment
    result = CliRunner(env=environment).invoke(app, [*needed, *arguments])
    assert result.exit_code == 0, result.output
    return given[0], result.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_what_the_command_has_of_it_and_nothing_else(command, preset):
    plain, silent = run(command)
    config, said = run(command, "--preset", preset)
    for field in COMMANDS[command][1]:
        wanted = PRESETS[preset].values.get(field, getattr(plain, field))
        assert getattr(config, field) == wanted, field
        if field in PRESETS[preset].values:
            assert f"--{field.replace('_', '-')} {wanted}" in said
    assert silent == ""


def test_every_value_of_a_preset_belongs_to_a_node_or_a_router():
    known = {*NODE_FLAGS, *ROUTER_FLAGS}
    assert all(set(preset.values) <= known for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("arguments", "environment", "seqs"),
    [
        ([], {}, 256),
        (["--preset", "chat"], {}, 64),
        (["--preset", "chat"], {"KVMESH_MAX_NUM_SEQS": "5"}, 5),
        (["--preset", "chat", "--max-num-seqs", "7"], {"KVMESH_MAX_NUM_SEQS": "5"}, 7),
        (["--preset", "chat", "--max-num-seqs", "256"], {}, 256),
        ([], {"KVMESH_PRESET": "chat"}, 64),
        (["--preset", "low-latency"], {"KVMESH_PRESET": "chat"}, 8),
        (["--max-num-seqs", "3"], {"KVMESH_PRESET": "chat"}, 3),
    ],
    ids=str,
)
def test_the_command_line_goes_before_the_environment_and_both_before_the_preset(
    arguments, environment, seqs
):
    assert run("node", *arguments, **environment)[0].max_num_seqs == seqs


def test_it_says_what_it_sets_and_what_stays_yours():
    arguments = ["--preset", "chat", "--swap-space", "1.5", "--block-size", "8"]
    _, said = run("node", *arguments)
    sets, kept = said.splitlines()
    assert sets == "preset chat sets --max-num-seqs 64 --max-num-batched-tokens 512"
    assert kept == "your own: --swap-space 1.5"


def test_for_machines_it_says_so_in_json():
    _, said = run("node", "--preset", "chat", "--swap-space", "1.5", KVMESH_LOG_FORMAT="json")
    line = json.loads(said)
    assert (line["event"], line["preset"]) == ("preset", "chat")
    assert line["sets"] == {"max-num-seqs": 64, "max-num-batched-tokens": 512}
    assert line["kept"] == {"swap-space": 1.5}


def test_the_table_in_the_docs_is_what_they_set():
    page = (Path(__file__).parents[2] / "docs/plan.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    head = next(row for row in rows if row[:1] == ["flag"])
    assert head[2:] == list(PRESETS)
    told = {preset: {} for preset in PRESETS}
    for flags, _, *cells in (row for row in rows if len(row) == len(head) and row[0][0] == "`"):
        names = [name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", flags)]
        for preset, cell in zip(PRESETS, cells, strict=True):
            told[preset] |= dict(zip(names, filter(None, cell.split(", ")), strict=False))
    assert told == {
        preset: {
            field: value if isinstance(value, str) else f"{value:g}"
            for field, value in each.values.items()
        }
        for preset, each in PRESETS.items()
    }


def test_an_unknown_preset_is_named_with_those_that_are_known():
    app = typer.Typer()
    app.command()(as_command(NodeConfig, NODE_FLAGS, lambda _: None, presets=True))
    result = CliRunner().invoke(app, ["--preset", "chatt"])
    assert result.exit_code == 2
    assert all(name in result.output for name in PRESETS)


def test_children_of_a_fleet_are_told_flag_by_flag_and_not_by_preset():
    """Else a child would say that a preset was overridden by its user."""
    code = "from kvmesh.cli.parent import environment; print(environment().get('KVMESH_PRESET'))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KVMESH_PRESET": "chat"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "None"
