"""`kvmesh bench`: measurements that anyone can repeat. One file a command."""

import typer

from kvmesh.cli.bench import (
    baselines,
    engine,
    failover,
    generator,
    kernels,
    memory,
    outage,
    paging,
    prefix,
    quant,
    router,
    routing,
    scrape,
    sim,
    soak,
    step,
    suite,
    ttft,
)

app = typer.Typer(no_args_is_help=True, help="Measure a fleet.", rich_markup_mode="markdown")


@app.callback()
def bench() -> None:
    """Measure a fleet, or one engine. Each benchmark starts what it needs unless told where it
    runs. Exit code 2 says that a figure misses its goal.
    """


app.command("ttft")(ttft.ttft)
app.command("all")(suite.suite)
app.command("baselines")(baselines.baselines)
app.command("engine")(engine.engine)
app.command("generator")(generator.generator)
app.command("kernels")(kernels.kernels)
app.command("memory")(memory.memory)
app.command("outage")(outage.outage)
app.command("paging")(paging.paging)
app.command("prefix")(prefix.prefix)
app.command("quant")(quant.quant)
app.command("router")(router.router)
app.command("routing")(routing.routing)
app.command("scrape")(scrape.scrape)
app.command("sim")(sim.sim)
app.command("step")(step.step)
app.command("soak")(soak.soak)
app.command("failover")(failover.failover)
