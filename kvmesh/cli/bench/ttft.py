"""`kvmesh bench ttft`: what a cached prefix saves."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.ttft import TtftResult


def ttft(
    router: Annotated[
        str | None,
        typer.Option(
            envvar="KVMESH_ROUTER",
            help="host:port of a running router's gRPC API.",
            show_default="a fleet of its own",
        ),
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Pairs of requests to measure.")] = 7,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Length of the shared prefix.")] = 1024,
    tail_tokens: Annotated[int, typer.Option(min=1, help="Length of what differs.")] = 16,
    as_json: Json = False,
) -> None:
    """Time to the first token, with and without the prefix in the cache.

    Examples:

        kvmesh bench ttft
        kvmesh bench ttft --router 127.0.0.1:50051 --prefix-tokens 4000

    Fresh random prefixes, so nothing is cached that the benchmark did not put there. The warm
    median should be a quarter of the cold one at most.
    """
    from bench.ttft import measure_ttft
    from kvmesh.cli.ask import explain
    from kvmesh.cli.bench.own_fleet import on_own_fleet
    from kvmesh.errors import RequestError

    def measure(target: str) -> "TtftResult":
        try:
            return measure_ttft(
                target,
                repetitions=repetitions,
                prefix_tokens=prefix_tokens,
                tail_tokens=tail_tokens,
            )
        except RequestError as error:
            fail(explain(error, target))

    if router is not None:
        result = measure(router)
    else:
        result = on_own_fleet(lambda config, _fleet: measure(config.grpc_target))
    tell(_report(result), as_json=as_json)


def _report(result: "TtftResult") -> Report:
    lines = (("cold", result.cold, 0.0), ("warm", result.warm, result.cached_tokens))
    rows = [
        [name, *(f"{ms * 1e3:.1f}" for ms in (time.median, time.least, time.most)), f"{cached:g}"]
        for name, time, cached in lines
    ]
    lengths = f"{result.prefix_tokens} shared + {result.tail_tokens} own tokens"
    return Report(
        title=f"Time to first token, {lengths}",
        columns=("", "median ms", "min", "max", "cached tokens"),
        rows=[*rows, ["ratio", f"{result.ratio:.3f}", "", "", ""]],
        data=result.as_json(),
        goals=[result.goal],
    )
