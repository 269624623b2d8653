"""`kvmesh demo`: the prefix cache at work, in a minute."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from kvmesh.cli.errors import fail
from kvmesh.cli.program import program
from kvmesh.cli.screen import Screen
from kvmesh.cli.streamed import show

if TYPE_CHECKING:
    from kvmesh.cli.ask import Answer
    from kvmesh.cli.fleet import Fleet
    from kvmesh.client import Client

MOST_TOKENS = 48
STAGES = ("download", "convert", "load", "warm up")
NEXT = """
[bold]How to go on[/]
  the same fleet, to stay, on http://127.0.0.1:8000:
      make serve
  ask it, in another terminal:
      {program} generate "Why is the sky blue?"
  measure what you have just seen:
      {program} bench ttft
  everything else:
      {program} --help
"""


def demo(
    install_seconds: Annotated[float | None, typer.Option(hidden=True)] = None,
) -> None:
    """See it work: start a router and two nodes, and ask twice with a shared prefix.

    Example:

        kvmesh demo

    The second answer starts sooner, since the node that the router chooses holds the prefix
    already. Needs free memory of about 4 GiB and no GPU; leaves nothing running.
    """
    from kvmesh.cli.hosting import host
    from kvmesh.cli.serve_config import on_free_ports

    screen, config = Screen(quiet=True), on_free_ports()
    seconds: dict[str, float] = {} if install_seconds is None else {"install": install_seconds}

    async def body(fleet: "Fleet") -> None:
        seconds.update(_stage_seconds(screen))
        screen.say(f"\nA router and {len(fleet.nodes)} nodes serve {fleet.model}.")
        screen.say("[dim]A small model: watch the clock, not the facts.[/]")
        started = time.monotonic()
        answers = await asyncio.to_thread(_ask_both, config.grpc_target)
        seconds["ask"] = time.monotonic() - started
        screen.say("")
        screen.out.print(_comparison(answers))

    begun = time.monotonic()
    host(config, screen, body)
    whole = time.monotonic() - begun + (install_seconds or 0.0)
    parts = ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items())
    screen.say(f"This took {whole:.0f} s: {parts}, and the rest to start and to stop processes.")
    screen.say(NEXT.format(program=program()))


def _stage_seconds(screen: Screen) -> dict[str, float]:
    took = {name: screen.stages.longest(name) for name in STAGES}
    return {name: seconds for name, seconds in took.items() if seconds is not None}


def _ask_both(target: str) -> "list[Answer]":
    """One question after the other, with the handbook before each."""
    from kvmesh.cli.ask import explain
    from kvmesh.cli.demo_text import QUESTIONS
    from kvmesh.client import Client
    from kvmesh.errors import RequestError

    with Client(target) as client:
        try:
            return [_ask_about_handbook(client, question) for question in QUESTIONS]
        except RequestError as error:
            fail(explain(error, target))


def _ask_about_handbook(client: "Client", question: str) -> "Answer":
    from kvmesh.cli.ask import ask
    from kvmesh.cli.demo_text import HANDBOOK

    messages = [{"role": "system", "content": HANDBOOK}, {"role": "user", "content": question}]
    show(f"\n> {question}\n  ")
    answer = ask(client, messages=messages, max_tokens=MOST_TOKENS, temperature=0, on_text=show)
    show("\n")
    return answer


def _comparison(answers: "list[Answer]") -> Table:
    """The two requests side by side."""
    table = Table(title="The same handbook, asked about twice")
    table.add_column("")
    for title in ("first", "second"):
        table.add_column(title)
    rows = {
        "time to first token": [f"{answer.ttft * 1e3:.0f} ms" for answer in answers],
        "prompt tokens": [str(answer.prompt_tokens) for answer in answers],
        "of them cached": [str(answer.cached_tokens) for answer in answers],
        "node": [answer.node for answer in answers],
        "why that node": [answer.reason for answer in answers],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table
