"""The `kvmesh` command: its sub-commands, and what they have in common."""

import sys
from typing import Annotated

import typer

from bench.load.config import LoadConfig
from bench.sim.config import SimConfig
from cache_node.config import NodeConfig
from kvmesh import __version__
from kvmesh.cli import (
    bench,
    cache,
    chat,
    demo,
    doctor,
    explain,
    generate,
    health,
    key,
    load,
    model,
    nodes,
    processes,
    serve,
    sim,
    top,
)
from kvmesh.cli.flags import as_command
from kvmesh.cli.load_flags import LOAD_FLAGS
from kvmesh.cli.node_flags import NODE_FLAGS
from kvmesh.cli.parent import end_with_parent
from kvmesh.cli.plan import command as planning
from kvmesh.cli.plan.config import PLAN_FLAGS, PlanConfig
from kvmesh.cli.router_flags import ROUTER_FLAGS
from kvmesh.cli.serve_config import SERVE_FLAGS, ServeConfig
from kvmesh.cli.sim_flags import SIM_FLAGS
from router.config import RouterConfig

RUN, ASK, LEARN = "Run a fleet", "Use a fleet", "Measure and learn"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvmesh {__version__}")
        raise typer.Exit


@app.callback()
def kvmesh(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A KV-cache serving fleet for large language models.

    A **router** sends each prompt to the **cache node** that already holds the longest part of it.

    Start here:

        kvmesh demo                          see it work, in a minute
        kvmesh serve                         a router and two nodes on this host
        kvmesh generate "Why is the sky blue?"
    """


app.command("serve", help=serve.HELP, rich_help_panel=RUN)(
    as_command(ServeConfig, SERVE_FLAGS, serve.serve, presets=True)
)
app.command("router", help=processes.ROUTER_HELP, rich_help_panel=RUN)(
    as_command(RouterConfig, ROUTER_FLAGS, processes.router, presets=True)
)
app.command("node", help=processes.NODE_HELP, rich_help_panel=RUN)(
    as_command(NodeConfig, NODE_FLAGS, processes.node, presets=True)
)
app.command("key", rich_help_panel=RUN)(key.key)
app.command("generate", rich_help_panel=ASK)(generate.generate)
app.command("chat", rich_help_panel=ASK)(chat.chat)
app.command("nodes", rich_help_panel=ASK)(nodes.nodes)
app.command("top", rich_help_panel=ASK)(top.top)
app.command("health", rich_help_panel=ASK)(health.health)
app.command("doctor", rich_help_panel=ASK)(doctor.doctor)
app.command("explain", rich_help_panel=ASK)(explain.explain)
app.command("model", rich_help_panel=ASK)(model.model)
app.command("plan", help=planning.HELP, rich_help_panel=LEARN)(
    as_command(PlanConfig, PLAN_FLAGS, planning.plan, presets=True)
)
app.command("demo", rich_help_panel=LEARN)(demo.demo)
app.command("load", help=load.HELP, rich_help_panel=LEARN)(
    as_command(LoadConfig, LOAD_FLAGS, load.load)
)
app.command("sim", help=sim.HELP, rich_help_panel=LEARN)(as_command(SimConfig, SIM_FLAGS, sim.sim))
app.add_typer(cache.app, name="cache", rich_help_panel=ASK)
app.add_typer(bench.app, name="bench", rich_help_panel=LEARN)


def main() -> None:
    """The entry point. A child of another kvmesh process ends with it."""
    end_with_parent()
    sys.exit(app())
