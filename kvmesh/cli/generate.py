"""`kvmesh generate`: asks a running fleet."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvmesh.cli.connection import (
    DEFAULT_ROUTER,
    ApiKey,
    Direct,
    Router,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    connect,
)
from kvmesh.cli.errors import fail
from kvmesh.cli.streamed import show

if TYPE_CHECKING:
    from kvmesh.cli.ask import Answer

SAMPLING = "Sampling"


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    router: Router = DEFAULT_ROUTER,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="As a user's message, or as text to go on from.")
    ] = True,
    model: Annotated[
        str, typer.Option(help="Name of the model.", show_default="the only one")
    ] = "",
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens to generate.", rich_help_panel=SAMPLING)
    ] = 256,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Share of probability to keep.", rich_help_panel=SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(min=0, help="Tokens to keep; 0 keeps all.", rich_help_panel=SAMPLING)
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The same seed gives the same answer.",
            show_default="drawn by the router",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text. Can be repeated.", rich_help_panel=SAMPLING),
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after seconds.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object at the end instead of a stream.")
    ] = False,
    api_key: ApiKey = None,
    direct: Direct = False,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Generate text, streamed to standard output.

    Examples:

        kvmesh generate "Why is the sky blue?"
        kvmesh generate --raw --max-tokens 20 "The capital of France is"
        kvmesh generate --temperature 0.8 --seed 7 "Write a haiku about caches."
        kvmesh generate --json - < question.txt

    Ends with a line on standard error: which node answered and why, the time to the first token,
    how much of the prompt came from the cache, and the speed.
    """
    from kvmesh.cli.ask import ask, explain
    from kvmesh.errors import RequestError

    text = sys.stdin.read() if prompt == "-" else prompt
    try:
        files = (tls_ca, tls_cert, tls_key)
        with connect(router, api_key, tls, files, timeout=timeout, direct=direct) as client:
            answer = ask(
                client,
                None if chat else text,
                messages=[{"role": "user", "content": text}] if chat else None,
                on_text=_ignore if as_json else show,
                model=model,
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                stop=stop or [],
            )
    except RequestError as error:
        fail(explain(error, router))
    if as_json:
        typer.echo(json.dumps(answer.as_json()))
    else:
        typer.echo()
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(footer(answer), style="dim", markup=False)


def footer(answer: "Answer") -> str:
    """What a request says of itself, in one line."""
    speed = answer.tokens_per_second
    return (
        f"{answer.node} ({answer.reason}) · first token {answer.ttft * 1e3:.0f} ms · "
        f"cached {answer.cached_tokens} of {answer.prompt_tokens} · "
        f"{answer.completion_tokens} tokens" + (f" at {speed:.1f}/s" if speed else "")
    )


def _ignore(_text: str) -> None: ...
